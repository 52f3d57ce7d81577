#ifndef EPS_SERVER_CORE_SHARD_FACTS_H_
#define EPS_SERVER_CORE_SHARD_FACTS_H_

// The facts that every desk of a shard may read. Only the router changes it, when it delivers an
// internal event (internal_events.h). Desks hold a const reference.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/exit_code.h"
#include "base/ids.h"
#include "base/job/drivers/driver_lease.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/optimizers.h"
#include "base/numerics/loss_scale.h"
#include "compression/codec_table.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/core_limits.h"
#include "eps_server/core/events.h"
#include "eps_server/core/residuals.h"
#include "eps_server/core/trace/trace_action.h"
#include "storage/cuts/cut.h"
#include "storage/state_backend.h"

namespace eps {

// Facts that stay the same while the process lives. Plain value; borrows spec and chunks.
struct JobFacts {
  const JobSpec& spec;
  const ChunkMap& chunks;
  CodecTable codecs;
  JobId id;
  ShardId shard;
  std::vector<std::string> servers;  // addresses in shard order
  StateBackend::Caps caps;
  CoreLimits limits;

  bool durable() const { return caps.durable; }
  bool logs() const { return caps.log_steps > 0; }  // it writes a contribution log
  bool is_lead() const { return shard == ShardId(0); }
  bool sealed() const { return spec.training.mode == Mode::kSealed; }
  // Whether an update needs the trust ratios of its tensors. Such a job is sealed.
  bool adapts() const { return RowOf(spec.optimizer.name).adapts; }
  // Whether several stages use the chunk.
  bool IsTied(ChunkId chunk) const { return chunks.chunk(chunk).uses.size() > 1; }
  bool IsFrozen(ChunkId chunk) const { return chunks.chunk(chunk).frozen; }
  const std::string& StageName(StageId stage) const { return spec.stages[stage.value()].name; }
};

// A chunk that this shard owns. Plain value.
struct OwnedChunk {
  ChunkId id;
  Version version;  // of a frozen chunk, which has its content at every version: the open step's
  bool updating = false;  // to version.Next()
};

// Why a job cannot continue, and the exit code for programs that end because of it. Plain value.
struct Failure {
  std::string reason;  // empty: the job did not fail
  ExitCode code = ExitCode::kDataInvalid;
};

// The leases of a part in this term, by their generations; a higher one fences lower ones. Plain
// value.
struct PartLeases {
  uint64_t seen = 0;     // the highest in a request; 0: no request named a lease
  uint64_t granted = 0;  // the last one that was granted, as far as the lead has told
  bool leaving = false;  // the part's worker leaves after the open step
};

// The state of the shard as far as several desks need it. Plain value.
struct ShardFacts {
  // The contribution log of this shard: not there, written, or read.
  enum class LogState { kNone, kWritten, kReplayed };
  // The cuts of a durable shard that other desks than CutDesk must know.
  struct Cuts {
    std::optional<CutId> base;         // the term continues from it
    std::optional<CutBorder> pending;  // has to begin before the next update
    std::optional<CutId> everywhere;   // the youngest that every shard has, as far as known
  };
  // The open step, but for what its desks keep.
  struct OpenStep {
    uint64_t updates = 0;                 // chunks updated, or being updated
    std::optional<bool> push_residuals;   // decided by the first BeginStep
    std::optional<LossScale> loss_scale;  // with training.precision: cmp
  };
  // The reasons why the job takes no further step.
  struct Hold {
    v1::Gate gate;                              // the lowest in force, as far as the lead has told
    std::optional<uint64_t> draining_since_ms;  // the process ends soon
  };

  ShardFacts(JobFacts job_facts, const std::vector<ChunkId>& owned_chunks, Term first_term);

  const JobFacts job;
  std::vector<OwnedChunk> owned;  // ascending; never resized
  std::vector<int32_t> local;     // chunk id -> index in owned, or -1
  uint64_t now_ms = 0;            // of the event that is being handled

  uint64_t incarnation = 0;  // names the process; a replay takes over that of the process before
  DriverLease driver;        // of the driver that created the job last
  Term term;
  v1::JobState state = v1::JOB_STATE_IMPORTING;
  Failure failure;
  uint64_t step = 0;     // the open step; 0 while importing; steps + 1 when done
  uint64_t version = 0;  // the version that the open step reads
  OpenStep open;
  Hold hold;
  Residuals residuals;          // what gradients left out up to the border
  uint32_t border_readers = 0;  // exports in flight: updates wait
  Cuts cuts;
  std::vector<PartLeases> parts;         // never resized
  std::optional<v1::Imported> imported;  // the border that this shard reported to the lead
  LogState log = LogState::kNone;

  // Returns null if the shard does not own the chunk.
  const OwnedChunk* Owned(ChunkId chunk) const;
  OwnedChunk* Owned(ChunkId chunk);
  bool logging() const { return log == LogState::kWritten; }
  bool replays() const { return log == LogState::kReplayed; }
  // The open step's k of BeginStepReply.loss_scale_log2.
  int loss_scale_log2() const { return LossScaleLog2(job.spec, open.loss_scale); }
  // Whether the gate withholds the step.
  bool IsGated(uint64_t begun) const { return hold.gate.has_step() && begun > hold.gate.step(); }
  // Whether the job has no weights yet, or does not know yet whether it has them.
  bool WaitsForState() const;
  // Whether contributions to the open step bring their residuals. Residuals that live with the
  // workers come along wherever the state after the step is saved: at a gate, at the end of the
  // job, and at a possible cut.
  bool PushResiduals() const;
  // The same for the contributions of one part: a worker that leaves brings what it keeps.
  bool PushResiduals(PartId part) const { return parts[part.value()].leaving || PushResiduals(); }
  // The answer to requests for a job that failed.
  absl::Status FailedStatus() const;
  // Checks the generation of the lease with which a request computes the part. A request without a
  // lease has generation 0, which is valid until a lease is seen. Returns Aborted, with both
  // generations, if another process holds the part; InvalidArgument for a generation that was not
  // granted, as far as this shard knows. `rpc` begins the text. REQUIRES: the part is one of the
  // job.
  absl::Status CheckGeneration(absl::string_view rpc, PartId part, uint64_t generation) const;
  // Checks the lease of a driver that imports or sets a gate. Returns Aborted, with both leases, if
  // another driver has created the job. `rpc` begins the text.
  absl::Status CheckDriver(absl::string_view rpc, const DriverLease& lease) const;
  // Checks the parts that a request names: each is a part of the job, and none is named twice.
  absl::Status CheckParts(absl::string_view rpc, absl::Span<const uint32_t> requested) const;
  // Whether a request in this term has named a lease.
  bool KnowsLeases() const;
  // Returns the chunks that a request names, in its order. Returns InvalidArgument, which names
  // `rpc` and the chunk, for one that this shard does not own or that is named twice.
  absl::StatusOr<std::vector<ChunkId>> NamedChunks(absl::string_view rpc,
                                                   absl::Span<const uint32_t> ids) const;
  // Whether only a new process can find out what the disk holds after this error.
  bool EndsProcess(const absl::Status& status) const;
  // A message from this shard in its term.
  v1::ShardMessage NewMessage() const;
  // A line of the trace in the open step.
  effect::Trace Traced(TraceAction::Kind kind, uint64_t subject, Version version,
                       const CutId& cut = CutId()) const;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_SHARD_FACTS_H_
