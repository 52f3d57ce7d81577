#ifndef EPS_SERVER_CORE_EVENTS_H_
#define EPS_SERVER_CORE_EVENTS_H_

// What can happen to a shard, and what it can want: the inputs and outputs of ShardCore as values.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/exit_code.h"
#include "base/ids.h"
#include "compression/codec.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/trace/trace_action.h"
#include "base/job/reduction_tree.h"
#include "storage/state_backend.h"

namespace eps {

// A contribution's identity within a job and term (PROTOCOL.md 1.1).
struct PushKey {
  Term term;
  Step step;
  StageId use;
  TreeRange parts;
  ChunkId chunk;
};

// Inputs: everything that can happen to a shard. A StreamId names one RPC (unary or streaming) for
// as long as it lives; ids are never reused.
namespace event {
// The first event of a durable shard: it may look at what its backend has.
struct Opened {};
// A data stream (Fetch, Push) or watch ended, or a unary caller went away: its waits are dropped.
struct StreamClosed {
  StreamId stream;
};
struct Join {
  StreamId stream;
  v1::JoinRequest request;
};
struct BeginStep {
  StreamId stream;
  v1::BeginStepRequest request;
};
struct Fetch {
  StreamId stream;
  v1::FetchRequest request;
};
// The transport took all that was sent on a fetch stream.
struct FetchDrained {
  StreamId stream;
};
// A push header: admission comes before memory.
struct PushOffered {
  StreamId stream;
  v1::PushHeader header;
};
// The payload is in; CRC and Codec::Open passed, of the residual too if the header has one.
struct PushReceived {
  StreamId stream;
  uint64_t tag = 0;
  std::shared_ptr<const EncodedChunk> data;
  Bytes residual;
};
// The payload was refused by CRC or codec; `status` becomes the ack's text. If InadmissibleElement
// (compression/codec.h) says that it is a value of the gradient, training.nonfinite decides.
struct PushInvalid {
  StreamId stream;
  uint64_t tag = 0;
  absl::Status status;
};
// ImportState: fill with the spec's initial values; one chunk's state; all sent.
struct ImportInitialize {
  StreamId stream;
};
struct ImportChunk {
  StreamId stream;
  ChunkId chunk;
  Version version;
  Bytes state;
};
struct ImportResidual {
  StreamId stream;
  ChunkId chunk;
  StageId use;
  PartId part;
  Bytes residual;
};
struct ImportFinish {
  StreamId stream;
  Step step;
  Version version;
  uint64_t update = 0;
  double lagged_norm = 0;
};
struct Export {
  StreamId stream;
  v1::ExportStateRequest request;
};
// The transport took what Export sent: the next chunk may be read.
struct ExportDrained {
  StreamId stream;
};
struct Watch {
  StreamId stream;
  uint64_t after_step = 0;
  uint64_t after_evaluation = 0;
  uint64_t until_evaluation = 0;
};
struct Gate {
  StreamId stream;
  uint64_t step = 0;
};
struct OpDone {
  BackendDone done;
};
struct FromShard {
  ShardId from;
  v1::ShardMessage message;
};
// The link between this shard and the lead is (again) open, or lost.
struct LinkUp {
  ShardId peer;
};
struct LinkDown {
  ShardId peer;
};
struct Timer {
  TimerId id;
};
}  // namespace event
using Event =
    std::variant<event::Opened, event::StreamClosed, event::Join, event::BeginStep, event::Fetch,
                 event::FetchDrained, event::PushOffered, event::PushReceived, event::PushInvalid,
                 event::ImportInitialize, event::ImportChunk, event::ImportResidual,
                 event::ImportFinish, event::Export, event::ExportDrained, event::Watch,
                 event::Gate, event::OpDone, event::FromShard, event::LinkUp, event::LinkDown,
                 event::Timer>;

// Calls on the StateBackend, as values.
namespace backend_call {
struct Read {
  ChunkId chunk;
  Version version;
  const Codec* codec = nullptr;
  Axis axis = Axis::kRow;
};
struct ReadState {
  ChunkId chunk;
  Version version;
};
struct WriteState {
  ChunkId chunk;
  Version version;
  Bytes state;
};
struct Initialize {
  ChunkId chunk;
};
struct Stats {
  UpdateRequest request;
};
struct Update {
  UpdateRequest request;
};
struct Cut {
  CutRequest request;
};
struct Recycle {  // completes nothing
  CutId oldest_kept;
};
struct Quiesce {};
struct Recover {};
struct Restore {
  std::optional<CutId> base;
  Term term;
};
struct Promise {
  Term term;
};
struct Scrub {};
struct StartLog {
  FoundLog log;
};
struct Log {
  LogEntry entry;
};
struct ReadLog {};
}  // namespace backend_call
using BackendCall = std::variant<
    backend_call::Read, backend_call::ReadState, backend_call::WriteState, backend_call::Initialize,
    backend_call::Stats, backend_call::Update, backend_call::Cut, backend_call::Recycle,
    backend_call::Quiesce, backend_call::Recover, backend_call::Restore, backend_call::Promise,
    backend_call::Scrub, backend_call::StartLog, backend_call::Log, backend_call::ReadLog>;
// Carries a call out.
void Call(StateBackend* backend, OpId op, const BackendCall& call);

// Outputs: a shell carries them out in order and decides nothing.
namespace effect {
// A unary reply, or an element of a stream of replies.
using ReplyMessage = std::variant<v1::JoinReply, v1::BeginStepReply, v1::ImportStateReply,
                                  v1::GateReply, v1::StepRecord>;
struct Reply {
  StreamId stream;
  ReplyMessage message;
};
// Ends an RPC; OK ends a stream of replies in good order.
struct Close {
  StreamId stream;
  absl::Status status;
};
// One whole encoded chunk of a fetch; the shell cuts it into slices.
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
};
struct FailFetch {
  StreamId stream;
  uint64_t tag = 0;
  absl::Status status;
};
struct Credit {
  StreamId stream;
  uint64_t tag = 0;
};
struct SendAck {
  StreamId stream;
  uint64_t tag = 0;
  v1::Ack ack;
};
struct SendState {
  StreamId stream;
  v1::ExportStateReply header;
  Bytes state;
};
struct Start {
  OpId op;
  BackendCall call;
};
struct ToShard {
  ShardId to;
  v1::ShardMessage message;
};
struct SetTimer {
  TimerId id;
  uint64_t after_ms = 0;
};
struct ClearTimer {
  TimerId id;
};
struct Trace {
  TraceAction action;
};
// A broken invariant: the process must end.
struct Abort {
  ExitCode code;
  std::string why;
};
}  // namespace effect
using Effect =
    std::variant<effect::Reply, effect::Close, effect::SendChunk, effect::FailFetch, effect::Credit,
                 effect::SendAck, effect::SendState, effect::Start, effect::ToShard,
                 effect::SetTimer, effect::ClearTimer, effect::Trace, effect::Abort>;

}  // namespace eps

#endif  // EPS_SERVER_CORE_EVENTS_H_
