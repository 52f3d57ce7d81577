#ifndef EPS_SERVER_CORE_SHARD_CORE_H_
#define EPS_SERVER_CORE_SHARD_CORE_H_

// The protocol of one shard of one job as a deterministic state machine: events in, effects out.
// No thread, clock, file or socket is touched here, nor a payload's byte unless a log is replayed;
// time comes in with the events.
// The daemon, the in-process test shell, a simulator and a trace checker are shells around it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps_server/core/events.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"
#include "storage/log/log_room.h"
#include "storage/state_backend.h"

namespace eps {

// What an operator sets.
struct CoreLimits {
  uint64_t part_timeout_ms = 60'000;  // a part gone for longer ends an eager job
  uint32_t max_fetches_per_stream = 8;
  // Stages quantized ahead of the first fetch of them; 0: when they are fetched.
  uint32_t jit_depth = 0;
  // Every so many steps the border is made durable, if the backend can; 0: only what was imported,
  // and the end; kAutoCutSteps (storage/cuts/cut.h): so many that they take at most 1 % of the time.
  // Asked of the lead.
  uint64_t cut_steps = 0;
  // At which the kept cuts are read and checked, over and over; 0: they are not.
  uint64_t scrub_bytes_per_second = 0;
};

// With caps.durable the first event is Opened, and the state is RECOVERING until all shards have
// agreed on what they have (recovery.h): then it waits for ImportState, or goes on. A shard whose
// process before had a contribution log (caps.log_steps) replays that first, and is then, with the
// same incarnation in the same term, what it was: nobody has to agree on anything.
//
// Handle() is called by one thread at a time. Unknown or late ops, timers and streams are ignored.
class ShardCore {
 public:
  // `chunks` must be of `spec`; `placement` from ChunkMap::Place(servers.size()).
  struct Options {
    const JobSpec* spec = nullptr;     // outlives the core
    const ChunkMap* chunks = nullptr;  // outlives the core
    std::vector<std::string> servers;  // addresses in shard order; told to workers
    ShardId shard;
    uint64_t incarnation = 0;
    // Of a job whose state is nowhere durable. A durable one agrees on its term when it is opened.
    Term term{1};
    StateBackend::Caps caps;
    CoreLimits limits;
  };
  explicit ShardCore(Options options);
  ~ShardCore();

  // Appends the effects of `event`, which happened at `now_ms` of some monotonic clock (used only
  // for ages in the status and step_seconds).
  void Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out);

  // Bytes of residuals that the job holds between steps: with quantization.residual_home=server,
  // and in a durable job, whose cuts hold them, with any.
  static uint64_t ResidualBudget(const JobSpec& spec, const ChunkMap& chunks,
                                 const std::vector<ChunkId>& owned, bool durable);
  // What a contribution log has to hold of a shard; `steps` is left to the caller.
  static LogRoom LogNeeds(const JobSpec& spec, const ChunkMap& chunks,
                          const std::vector<ChunkId>& owned, uint64_t shards);
  // Bytes of contributions that the job may hold at most, reserved when it is admitted:
  // parts * (quota of two largest stages here + tied holdings), and in sealed mode the sums of all
  // chunks, which wait for the norm of the whole gradient.
  static uint64_t ContributionBudget(const JobSpec& spec, const ChunkMap& chunks,
                                     const std::vector<ChunkId>& owned);

  // Fills the job part of a status page; each wait says what, for whom and since when.
  void FillStatus(uint64_t now_ms, v1::StatusReply* status) const;
  v1::JobState state() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_SHARD_CORE_H_
