#ifndef EPS_PLANNER_MEMORY_PLAN_H_
#define EPS_PLANNER_MEMORY_PLAN_H_

// Bytes by tier and kind: what a run holds on the fullest machine of each tier. Kinds are those of
// the run's own memory accounts (base/memory_account.h); what lies on a device beside the stash,
// LibTorch's memory, is "weights", "gradients" and "activations". Pure functions.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compression/codec_table.h"
#include "planner/hardware.h"
#include "planner/step_model.h"
#include "planner/units.h"
#include "planner/workload.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"

namespace eps::planner {

struct MemoryUse {
  std::string kind;  // as in the accounts: "state", "contribution", "fetch", "stage", "stash"
  Bytes bytes;
  bool exact = true;  // what the account will show; else the most that it can
  Bytes growing;      // of `bytes`: what grows with the number of layers
};

// Of a chunk on disk: a cut is written beside the one before (docs/formats/extent.md).
inline constexpr double kDiskSlots = 2;

enum class Tier { kServerMemory, kServerDisk, kWorkerMemory, kDevice };
const char* TierName(Tier tier);

struct TierUse {
  Tier tier = Tier::kServerMemory;
  std::string machine;  // the fullest kind
  Bytes available;      // of one machine
  std::vector<MemoryUse> uses;
  Bytes beside;        // that another tier uses of the same memory (one_machine)
  std::string remedy;  // with the key to change, if it does not fit

  Bytes used() const;
  Bytes growing() const;
  bool fits() const { return used() + beside <= available; }
};

// Elements of the largest stage: of its gradient, and of the weights of its backward pass, where
// some come twice (quantization.backward_weights=both_axes).
struct LargestStage {
  double gradient = 0;
  double weights = 0;
};
// `chunks` and `codecs` are the spec's.
LargestStage FindLargestStage(const JobSpec& spec, const ChunkMap& chunks,
                              const CodecTable& codecs);

// What a run keeps beside the spec.
struct StoragePlan {
  bool durable = false;  // keeps cuts in files
  Bytes staging;         // of a durable server
  Bytes server_limit;    // servers.memory_limit; 0: all the machine's memory
  // What sparse gradients leave out waits at the servers (quantization.residual_home).
  bool residuals_at_servers = true;
};

// Tiers that the run uses. `spec` must be valid; InvalidArgument if there are more servers than
// chunks, a codec is unknown, or state is to lie on disks that are not there.
absl::StatusOr<std::vector<TierUse>> PlanMemory(const JobSpec& spec, const Workload& work,
                                                const Hardware& hardware, const RunShape& shape,
                                                const StoragePlan& storage);

// ResourceExhausted (exit code 71) with the figures and the keys to change, if a tier does not fit.
absl::Status CheckFits(const std::vector<TierUse>& tiers);

}  // namespace eps::planner

#endif  // EPS_PLANNER_MEMORY_PLAN_H_
