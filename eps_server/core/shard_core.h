#ifndef EPS_SERVER_CORE_SHARD_CORE_H_
#define EPS_SERVER_CORE_SHARD_CORE_H_

// The protocol of one shard of one job as a deterministic state machine: events in, effects out. It
// touches no thread, clock, file or socket, and no byte of a payload unless it replays a log;
// events bring the time. The daemon and the in-process test cluster are shells around it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "eps/v1/control.pb.h"
#include "eps_server/core/core_limits.h"
#include "eps_server/core/events.h"
#include "storage/log/log_room.h"
#include "storage/state_backend.h"

namespace eps {

class ShardRouter;
struct ShardLife;

// With caps.durable the first event is Opened, and the state is RECOVERING until all shards have
// agreed on the cut that they continue from (cuts/recovery.h). If there is none, the job waits for
// ImportState. A shard whose earlier process wrote a contribution log (caps.log_steps) replays the
// log first and is then what it was, with the same incarnation in the same term: nobody has to
// agree on anything.
//
// Thread-compatible. Ignores unknown or late operations, timers and streams.
class ShardCore {
 public:
  // `chunks` must be of `spec`; `placement` from ChunkMap::Place(servers.size()).
  struct Options {
    const JobSpec* spec = nullptr;     // outlives the core
    const ChunkMap* chunks = nullptr;  // outlives the core
    std::vector<std::string> servers;  // addresses in shard order, for workers
    ShardId shard;
    uint64_t incarnation = 0;
    // The term of a job that is not durable. The shards of a durable job agree on their term.
    Term term{1};
    StateBackend::Caps caps;
    CoreLimits limits;
  };
  explicit ShardCore(Options options);
  ~ShardCore();

  // Appends the effects of `event`, which happened at `now_ms` of a monotonic clock. Times matter
  // only for ages in the status page, for step_seconds, for the end of credits, and for automatic
  // intervals between cuts.
  void Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out);

  // Returns what a contribution log has to hold for each step of a shard. The caller sets `steps`.
  static LogRoom LogNeeds(const JobSpec& spec, const ChunkMap& chunks,
                          const std::vector<ChunkId>& owned, uint64_t shards);
  // Returns how many bytes of contributions the job may hold in memory at most; they are reserved
  // when the job is admitted: parts * (quota of the two largest stages here + tied holdings) and,
  // in sealed mode, the sums that wait in memory for the norm of the whole gradient: those of the
  // first `gradients_in_memory` bytes of the state (ChunksInMemory).
  static uint64_t ContributionBudget(const JobSpec& spec, const ChunkMap& chunks,
                                     const std::vector<ChunkId>& owned,
                                     uint64_t gradients_in_memory);
  // Returns how many bytes of gradients all parts together may have on their way or wait here, as
  // ContributionBudget without sums.
  static uint64_t GradientBudget(const JobSpec& spec, const ChunkMap& chunks,
                                 const std::vector<ChunkId>& owned);
  // Returns the bytes of encoded weights, in whole pages, that may be on their way to workers: of
  // the stage that they fetch, of the stages that are prepared ahead, of the stage before, and of a
  // dropped one that a stream still sends.
  static uint64_t FetchBudget(const JobSpec& spec, const ChunkMap& chunks,
                              const std::vector<ChunkId>& owned, uint32_t jit_depth);

  // Fills the job part of a status page. Each wait says who waits, for what, and since when.
  void FillStatus(uint64_t now_ms, v1::StatusReply* status) const;
  v1::JobState state() const;

 private:
  std::unique_ptr<ShardLife> life_;
  std::unique_ptr<ShardRouter> term_;  // replaced when a later term begins
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_SHARD_CORE_H_
