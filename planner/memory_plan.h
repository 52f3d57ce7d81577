#ifndef EPS_PLANNER_MEMORY_PLAN_H_
#define EPS_PLANNER_MEMORY_PLAN_H_

// Computes the bytes that a run holds on the fullest machine of each tier, by kind. The kinds are
// those of the run's own memory accounts (base/memory_account.h); LibTorch's memory on a device,
// which those accounts do not cover, is split into "weights", "gradients" and "activations". Pure
// functions.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codec_table.h"
#include "planner/hardware.h"
#include "planner/step_model.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner {

// One kind of memory in a tier.
struct MemoryUse {
  std::string kind;  // as in the accounts: "state", "contribution", "fetch", "stage", "stash"
  Bytes bytes;
  bool exact = true;  // true if the account will show exactly this; false for an upper bound
  Bytes growing;      // the share of `bytes` that grows with the number of layers
};

// Slots per chunk on disk: a new cut does not overwrite the previous one (docs/formats/extent.md).
inline constexpr double kDiskSlots = 2;

enum class Tier { kServerMemory, kServerDisk, kWorkerMemory, kDevice };
const char* TierName(Tier tier);

// The memory of one tier on its fullest machine.
struct TierUse {
  Tier tier = Tier::kServerMemory;
  std::string machine;  // the kind of machine that is fullest
  Bytes available;      // memory of one machine
  std::vector<MemoryUse> uses;
  Bytes beside;        // used by another tier in the same memory (one_machine)
  std::string remedy;  // what to do if it does not fit, with the key to change
  // Bytes that grow with the number of layers, and how many of them another tier holds first
  // (worker.stash=auto). The rest is among `uses`, where it does not count as growing.
  Bytes spilling;
  Bytes spared;

  Bytes used() const;
  Bytes growing() const;
  bool fits() const { return used() + beside <= available; }
};

// Elements of the largest stage: of its gradient, and of the weights of its backward pass, which
// hold some tensors twice with quantization.backward_weights=both_axes.
struct LargestStage {
  double gradient = 0;
  double weights = 0;
};
// `chunks` and `codecs` must be built from `spec`.
LargestStage FindLargestStage(const JobSpec& spec, const ChunkMap& chunks,
                              const CodecTable& codecs);

// The storage settings of a run, which are not part of its spec.
struct StoragePlan {
  bool durable = false;     // cuts are written to files
  Bytes staging;            // staging buffers of one durable server
  Bytes state_memory;       // of one server whose state is on disks (storage.dram)
  Bytes device_memory;      // of the emulated storage devices of one server; 0 without them
  Bytes server_limit;       // servers.memory_limit; 0 allows all of the machine's memory
  Bytes stash_device;       // room for the stash on a device (worker.stash=auto)
  Bytes kept;               // of what stages keep on a device (worker.keep)
  bool stash_file = false;  // the stash may go on in a file (worker.stash_path)
  Bytes stash_host;         // of one worker; 0 means half of its machine's memory, shared
  Bytes shared_weights;     // the most that a server shares with workers of its machine; 0: nothing
  Bytes shared_gradients;   // the same of gradients, for each of them
  // The residuals of sparse gradients are kept at the servers (quantization.residual_home).
  bool residuals_at_servers = true;
};

// Returns the tiers that the run uses. `spec` must be valid. Returns InvalidArgument if there are
// more servers than chunks, if a codec is unknown, or if the state belongs on disks that the
// hardware lacks.
absl::StatusOr<std::vector<TierUse>> PlanMemory(const JobSpec& spec, const Workload& work,
                                                const Hardware& hardware, const RunShape& shape,
                                                const StoragePlan& storage);

// Returns the room that the smallest device has for what waits there (worker.stash=auto,
// worker.keep) among
// `device_memory` bytes, of which 0 means nine tenths of its own; 0 if workers compute on their
// host.
absl::StatusOr<Bytes> StashRoomOnDevice(const JobSpec& spec, const Hardware& hardware,
                                        const RunShape& shape, Bytes device_memory);
// Returns the stash of the worker with most parts.
Bytes StashOfWorker(const Workload& work, const RunShape& shape);

// Returns ResourceExhausted (exit code 71) if a tier does not fit; the message has the figures and
// the keys to change.
absl::Status CheckFits(const std::vector<TierUse>& tiers);

}  // namespace eps::planner

#endif  // EPS_PLANNER_MEMORY_PLAN_H_
