#ifndef EPS_SERVER_CORE_CORE_LIMITS_H_
#define EPS_SERVER_CORE_CORE_LIMITS_H_

#include <cstdint>

namespace eps {

// 1 s in mode sealed, where a change of workers costs nothing; else the length of a lease.
inline constexpr uint64_t kAutoCloseGrace = UINT64_MAX;

// The limits that an operator configures. A plain value.
struct CoreLimits {
  uint64_t part_timeout_ms = 60'000;  // an eager job fails once a part is lost for longer
  uint64_t worker_lease_ms = 10'000;  // a lease ends so long after the last Beat of its worker
  // A lease ends so long after the session of its worker closed.
  uint64_t worker_close_grace_ms = kAutoCloseGrace;
  uint64_t worker_stuck_ms = 600'000;  // the most time of a stage on a worker; 0 sets no limit
  // A contribution's payload is complete so long after its credit, or the credit is taken back.
  uint64_t push_timeout_ms = 30'000;
  // A gate that lapses ends so long after the last request of its holder.
  uint64_t gate_timeout_ms = 30'000;
  uint32_t max_fetches_per_stream = 8;
  // Number of stages to quantize ahead of their first fetch. With 0, a fetch quantizes its stage.
  uint32_t jit_depth = 0;
  // Steps between two cuts, if the backend can make them; 0 sets no interval. kAutoCutSteps
  // (storage/cuts/cut.h) chooses one at which cuts cost at most 1 % of the time. The imported state
  // and the state after the last step are always cut. The lead's value applies to all shards.
  uint64_t cut_steps = 0;
  // The first step that is decided so long after the last cut ends with a cut, too; 0 disables
  // this. The lead's value applies to all shards.
  uint64_t cut_ms = 0;
  // The rate at which the kept cuts are read and checked, again and again; 0 disables.
  uint64_t scrub_bytes_per_second = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_CORE_LIMITS_H_
