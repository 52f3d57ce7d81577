#ifndef EPS_SERVER_CORE_EVENTS_H_
#define EPS_SERVER_CORE_EVENTS_H_

// The inputs (events) and outputs (effects) of ShardCore, as values. Not synchronized.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "base/ids.h"
#include "base/job/drivers/driver_lease.h"
#include "base/job/drivers/job_standing.h"
#include "base/numerics/loss_scale.h"
#include "base/numerics/reduction_tree.h"
#include "compression/codec.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/trace/trace_action.h"
#include "storage/cuts/cut.h"
#include "storage/requests.h"
#include "storage/state_backend.h"

namespace eps {

// A contribution's identity within a job and term (docs/protocol.md).
struct PushKey {
  Term term;
  Step step;
  StageId use;
  TreeRange parts;
  ChunkId chunk;
};

// The inputs. A StreamId names one RPC (unary or streaming) while it lives, and is never reused.
namespace event {
struct Opened {};  // The first event of a durable shard: it may now ask for its durable state.
// A data stream (Fetch, Push), watch or unary call ended. Drops everything that waits for it.
struct StreamClosed {
  StreamId stream;
};
// A worker asks the lead for leases.
struct Join {
  StreamId stream;
  v1::JoinRequest request;
};
// A worker says that it is alive, or leaves. The session is the stream of its Beats.
struct Beat {
  StreamId stream;
  v1::Beat beat;
};
// A worker begins a step, and reports the losses of the step before.
struct BeginStep {
  StreamId stream;
  v1::BeginStepRequest request;
};
// A worker requests weights, or residuals, at one version.
struct Fetch {
  StreamId stream;
  v1::FetchRequest request;
};
// The transport sent everything that was queued on a fetch stream.
struct FetchDrained {
  StreamId stream;
};
// Announces a contribution. The shard gives Credit before memory is reserved for the payload.
struct PushOffered {
  StreamId stream;
  v1::PushHeader header;
};
// The payload, and the residual if announced, arrived and passed CRC and Codec::Open.
struct PushReceived {
  StreamId stream;
  uint64_t tag = 0;
  std::shared_ptr<const EncodedChunk> data;
  Bytes residual;
};
// CRC or codec rejected the payload. For an InadmissibleElement, training.nonfinite decides.
struct PushInvalid {
  StreamId stream;
  uint64_t tag = 0;
  absl::Status status;  // the text of the ack
};
// A driver with this lease has created the job, or one without a lease. The shard refuses imports
// and gates of drivers with earlier leases from now on.
struct NewDriver {
  DriverLease lease;
};
// At the lead, after every shard has the driver: it begins the import of a job that is not open.
// Whatever was imported before is forgotten, also by a driver with the same lease.
struct RestartImport {};
// At the lead: how the job stands on the board of jobs. A driver's gate ends with its lease, and a
// job that is held trains no further. Comes before the gates of a driver that has a new lease.
struct Standing {
  JobStanding standing = JobStanding::kOffTheBoard;
  uint32_t workers = 0;  // that shall compute the job; 0: each takes what it asks for
};
// At the lead: a worker shall finish its step, give back its parts and end.
struct DrainWorker {
  uint64_t nonce = 0;
};
// ImportState: sets all chunks of this shard to the initial values of the spec.
struct ImportInitialize {
  StreamId stream;
  DriverLease lease = {};
};
// ImportState: the state of one chunk at a version, as ReadStateRequest returns it.
struct ImportChunk {
  StreamId stream;
  ChunkId chunk;
  Version version;
  Bytes state;
  DriverLease lease = {};
};
// ImportState: the residual that a part left in its use of the chunk.
struct ImportResidual {
  StreamId stream;
  ChunkId chunk;
  StageId use;
  PartId part;
  Bytes residual;
  DriverLease lease = {};
};
// ImportState: the client has sent everything. The fields describe the border of the state.
struct ImportFinish {
  StreamId stream;
  Step step;
  Version version;
  uint64_t update = 0;
  double lagged_norm = 0;
  std::optional<LossScale> loss_scale = {};
  DriverLease lease = {};
};
// A client requests this shard's state at a border.
struct Export {
  StreamId stream;
  v1::ExportStateRequest request;
};
// The transport sent the last message of an export; the shard may read the next chunk.
struct ExportDrained {
  StreamId stream;
};
// A client asks the lead for records of later steps and evaluations (WatchStepsRequest).
struct Watch {
  StreamId stream;
  uint64_t after_step = 0;
  uint64_t after_evaluation = 0;
  uint64_t until_evaluation = 0;
};
// Withholds the steps after `step` for a holder; nullopt lifts the holder's gate. A gate that
// lapses ends CoreLimits::gate_timeout_ms after the last such event of its holder. A driver's gate
// ends with its lease, unless it outlives the driver.
struct Gate {
  StreamId stream;
  std::string holder;
  std::optional<uint64_t> step;
  bool lapses = false;
  DriverLease lease = {};
  bool outlives_driver = false;
  uint64_t number = 0;  // of the holder's requests
};
// The process is asked to end. effect::Drained says when it can end without a loss.
struct Drain {};
// The backend completed an operation that effect::Start began.
struct OpDone {
  BackendDone done;
};
// A message of another shard arrived.
struct FromShard {
  ShardId from;
  v1::ShardMessage message;
};
// The link to `peer` opened, for the first time or again. One of its ends is the lead.
struct LinkUp {
  ShardId peer;
};
// The link to `peer` was lost.
struct LinkDown {
  ShardId peer;
};
// A timer that effect::SetTimer started expired.
struct Timer {
  TimerId id;
};
}  // namespace event
using Event =
    std::variant<event::Opened, event::StreamClosed, event::Join, event::Beat, event::BeginStep,
                 event::Fetch, event::FetchDrained, event::PushOffered, event::PushReceived,
                 event::PushInvalid, event::NewDriver, event::RestartImport, event::Standing,
                 event::DrainWorker, event::ImportInitialize, event::ImportChunk,
                 event::ImportResidual, event::ImportFinish, event::Export, event::ExportDrained,
                 event::Watch, event::Gate, event::Drain, event::OpDone, event::FromShard,
                 event::LinkUp, event::LinkDown, event::Timer>;

// The outputs. A shell carries them out in order and decides nothing.
namespace effect {
// All watches share a record.
using SharedRecord = std::shared_ptr<const v1::StepRecord>;
using ReplyMessage = std::variant<v1::JoinReply, v1::BeginStepReply, v1::ImportStateReply,
                                  v1::GateReply, SharedRecord, v1::Notice>;
// Sends the reply to a unary call, or one element of a stream of replies.
struct Reply {
  StreamId stream;
  ReplyMessage message;
};
// Ends an RPC with a status. OK ends a stream of replies normally.
struct Close {
  StreamId stream;
  absl::Status status;
};
// Answers a fetch with one whole encoded chunk, which the shell cuts into slices.
struct SendChunk {
  StreamId stream;
  uint64_t tag = 0;
  ChunkId chunk;
  Version version;
  CodecId codec;
  uint32_t view = 0;  // FetchSlice.view
  bool residual = false;
  bool completes_fetch = false;
  Bytes payload;
  std::shared_ptr<SharedCrc> crc;  // of the payload; all answers with the same copy share it
};
// Fails one fetch of a stream; the stream stays open.
struct FailFetch {
  StreamId stream;
  uint64_t tag = 0;
  absl::Status status;
};
// Allows the sender of an offered contribution to send its payload.
struct Credit {
  StreamId stream;
  uint64_t tag = 0;
};
// Reports the outcome of a contribution to its sender.
struct SendAck {
  StreamId stream;
  uint64_t tag = 0;
  v1::Ack ack;
};
// Sends one chunk, or one residual, of an export. ExportDrained follows once it is sent.
struct SendState {
  StreamId stream;
  v1::ExportStateReply header;
  Bytes state;
};
// Begins an operation of the backend. OpDone returns its outcome.
struct Start {
  OpId op;
  Request request;
};
// Tells the backend that all shards have this cut (StateBackend::Recycle).
struct Recycle {
  CutId oldest_kept;
};
// Sends a message to another shard. It may be lost with the link.
struct ToShard {
  ShardId to;
  v1::ShardMessage message;
};
// Starts a timer that expires after `after_ms` milliseconds.
struct SetTimer {
  TimerId id;
  uint64_t after_ms = 0;
};
// Stops a timer. Does nothing if it has expired.
struct ClearTimer {
  TimerId id;
};
// Reports a change of the protocol's state to the trace.
struct Trace {
  TraceAction action;
};
// After event::Drain: nothing is gained if the process waits longer. May be repeated.
struct Drained {
  std::string why;
};
// Ends the process with this code, because its storage failed or holds damaged data.
struct Abort {
  ExitCode code;
  std::string why;
};
}  // namespace effect
using Effect = std::variant<effect::Reply, effect::Close, effect::SendChunk, effect::FailFetch,
                            effect::Credit, effect::SendAck, effect::SendState, effect::Start,
                            effect::Recycle, effect::ToShard, effect::SetTimer, effect::ClearTimer,
                            effect::Trace, effect::Drained, effect::Abort>;

}  // namespace eps

#endif  // EPS_SERVER_CORE_EVENTS_H_
