#ifndef EPS_SERVER_CORE_INTERNAL_EVENTS_H_
#define EPS_SERVER_CORE_INTERNAL_EVENTS_H_

// The news that one desk of a shard tells the others. The router changes ShardFacts and delivers
// the event to the desks that it concerns before Outbox::Raise returns, so before the next event
// from outside. Raise an event only when the state of your own desk is consistent: the event may
// come back to it. Pointers in events are borrowed for the time of the call.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/exit_code.h"
#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/log.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/residuals.h"
#include "optimizer/update_request.h"
#include "storage/cuts/cut.h"

namespace eps {
namespace internal_event {

// ---- Failures.

// A backend call failed: the job, or the process, cannot continue.
struct OpFailed {
  std::string what;
  absl::Status status;
};
// The job cannot continue. Later failures of the same job are ignored.
struct JobFailed {
  std::string reason;
  ExitCode code = ExitCode::kDataInvalid;  // for programs that end because of it
};
// This shard cannot finish the step: the job returns to its last cut, in a new term.
struct RollBack {};

// ---- Parts and their workers.

// A request names the generations of its parts' leases: they fence all lower ones from now on.
struct PartsSeen {
  std::vector<std::pair<PartId, uint64_t>> parts;  // each with its generation
};
// A worker begins the open step with these parts.
struct PartsBegun {
  std::vector<PartId> parts;
  uint64_t nonce = 0;    // names the worker's process
  bool leaving = false;  // it leaves after the step
};
// The lead has granted leases; other shards hear it from the lead.
struct LeasesChanged {
  std::vector<uint64_t> granted;  // by part: the last generation that was granted
};
// The lead has sent this shard the lowest gate in force. The shard answers it with GateSet.
struct GateMoved {
  v1::Gate gate;
};
// For the lead: the borders at which some holder has a gate.
struct GatesChanged {
  std::set<uint64_t> steps;
};
// For the lead: a shard registered, and will end soon or not.
struct ShardDrains {
  ShardId shard;
  bool drains = false;
};
// This shard drains: the lead is told.
struct DrainBegan {};
// The lead lets this shard end.
struct MayEnd {};
// A worker reports losses of the step before.
struct LossesReported {
  const v1::BeginStepRequest* request;
};
// The same worker reports evaluations at the newest border.
struct EvaluationsReported {
  const v1::BeginStepRequest* request;
};

// ---- Gradients and updates of the open step.

// A contribution left something out for the next one.
struct ResidualLeft {
  Residuals::Place place;
  Residuals::Residual residual;
};
// Every contribution to the chunk is counted.
struct ChunkComplete {
  ChunkId chunk;
  std::optional<uint64_t> tokens;   // nullopt: its uses count different numbers of tokens
  bool nonfinite = false;           // a contribution is not finite, so there are no inputs
  std::vector<UpdateInput> inputs;  // all contributions
};
// The memory of the chunk's contributions is free. MemoryFreed follows.
struct GradientUsed {
  ChunkId chunk;
};
// Offers may be admitted again.
struct MemoryFreed {};
// The chunk's update could begin but for the trust ratios of its tensors.
struct Measurable {
  UpdateRequest request;  // the update, without them
};
// The trust ratios of a step are known.
struct Trusted {};
// The chunk's update begins, from its current version. It encodes along DeskQueries::AxesForUpdate.
struct UpdateStarted {
  ChunkId chunk;
};
// The chunk has its next version; `encoded` holds what the update encoded, axis by axis.
struct ChunkUpdated {
  ChunkId chunk;
  std::vector<Bytes> encoded;
};
// All chunks are updated, or the step is skipped. The facts name the next step afterwards.
struct StepComplete {
  v1::Decision decision;
};
// The state after StepComplete is consistent everywhere: a cut may be made of it.
struct BorderReached {};
// The next step, or the end of the job, begins.
struct StepOpened {};
// Everything about the new step is known: whoever waits for it may go on.
struct StepReady {};

// ---- The lead.

// The lead decided on a step.
struct Decided {
  v1::Decision decision;
};
// The lead recorded a step, or an evaluation.
struct Recorded {
  v1::StepRecord record;
};
// The lead has recorded all that it can for now.
struct RecordsUpToDate {};
// Every shard holds the border: the step after it opens.
struct BorderOpened {
  v1::Imported border;
};
// The link to the lead is up: repeat what it may have missed.
struct LeadReached {};
// For the lead: the link to the shard is up: repeat what it may have missed.
struct ShardReached {
  ShardId shard;
};

// ---- State in and out.

// The backend holds an imported chunk.
struct ChunkImported {
  ChunkId chunk;
  Version version;
};
// An import brought a residual.
struct ResidualImported {
  Residuals::Place place;
  Bytes residual;
};
// The backend holds all that an import sent; a durable shard makes a cut before it answers.
struct ImportComplete {
  StreamId stream;
  v1::Imported border;
};
// The import may be answered.
struct ImportDurable {
  StreamId stream;
  v1::Imported border;
};
// This shard holds the border: the lead is told.
struct Imported {
  v1::Imported border;
};
// The number of exports that read the border now.
struct BorderReaders {
  uint32_t count = 0;
};
// An export ended: updates that waited for it may begin.
struct ExportEnded {};

// ---- Cuts and terms of durable shards.

// The pending cut has begun: updates of the next step may follow.
struct CutStarted {};
// The most steps that may lie between two cuts; 0: any number.
struct CutLimit {
  uint64_t steps = 0;
};
// Whether this shard needs a cut soon: a kept one is damaged, and the next one replaces it.
struct CutWanted {
  bool wanted = false;
};
// The time from the begin of a cut until every shard had it.
struct CutMeasured {
  double seconds = 0;
};
// Every shard has the cut.
struct CutEverywhere {
  CutId cut;
};
// A later term begins, and nothing of this one continues.
struct TermOver {
  Term next;
};
// The state of a cut is back.
struct StateRestored {
  CutBorder border;
  const std::vector<CutResidual>* residuals;
  const std::vector<v1::StepRecord>* records;
};
// No shard has a cut: the weights have to be imported.
struct NothingToRestore {};

// ---- The contribution log.

// A log of an earlier process was found: this shard replays it.
struct LogFound {
  FoundLog log;
};
// The backend has an entry of the log, or the start of the log.
struct LogWritten {
  OpId op;
};
// That entry is durable.
struct LogDurable {
  OpId op;
};
// Something that the log's session entry holds has changed.
struct SessionChanged {};
// The base of the log is restored, and the log follows.
struct ReplayOpened {
  v1::Imported border;
  CutId opened;  // the cut with which the term began
};
// The replay has reached a session entry.
struct SessionReplayed {
  const v1::LoggedSession* session;
};
// The shard stands where the process before it stood.
struct ReplayEnded {};

}  // namespace internal_event

using InternalEvent = std::variant<
    internal_event::OpFailed, internal_event::JobFailed, internal_event::RollBack,
    internal_event::PartsSeen, internal_event::PartsBegun, internal_event::LeasesChanged,
    internal_event::GateMoved, internal_event::GatesChanged, internal_event::ShardDrains,
    internal_event::DrainBegan, internal_event::MayEnd, internal_event::LossesReported,
    internal_event::EvaluationsReported, internal_event::ResidualLeft,
    internal_event::ChunkComplete, internal_event::GradientUsed, internal_event::MemoryFreed,
    internal_event::Measurable, internal_event::Trusted, internal_event::UpdateStarted,
    internal_event::ChunkUpdated, internal_event::StepComplete, internal_event::BorderReached,
    internal_event::StepOpened, internal_event::StepReady, internal_event::Decided,
    internal_event::Recorded, internal_event::RecordsUpToDate, internal_event::BorderOpened,
    internal_event::LeadReached, internal_event::ShardReached, internal_event::ChunkImported,
    internal_event::ResidualImported, internal_event::ImportComplete, internal_event::ImportDurable,
    internal_event::Imported, internal_event::BorderReaders, internal_event::ExportEnded,
    internal_event::CutStarted, internal_event::CutLimit, internal_event::CutWanted,
    internal_event::CutMeasured, internal_event::CutEverywhere, internal_event::TermOver,
    internal_event::StateRestored, internal_event::NothingToRestore, internal_event::LogFound,
    internal_event::LogWritten, internal_event::LogDurable, internal_event::SessionChanged,
    internal_event::ReplayOpened, internal_event::SessionReplayed, internal_event::ReplayEnded>;

}  // namespace eps

#endif  // EPS_SERVER_CORE_INTERNAL_EVENTS_H_
