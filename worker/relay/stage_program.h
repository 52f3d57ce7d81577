#ifndef EPS_WORKER_RELAY_STAGE_PROGRAM_H_
#define EPS_WORKER_RELAY_STAGE_PROGRAM_H_

// What the relay runs: the stages of a model on one device. No LibTorch type appears here, so that
// a synthetic model without LibTorch serves protocol tests and the simulator.
//
// Calls only enqueue work on the runtime's compute stream; the few that wait say so. On a CPU
// everything has happened when a call returns. Used by one thread.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/memory_account.h"
#include "base/job/job_spec.h"

namespace eps {

// The tensors of one stage in host memory, one array per TensorUse of the StageSpec, in its order;
// rank-2 tensors row-major [rows, cols]. Allocated by the runtime (pinned if the device wants
// that), filled by the client (weights) or by the runtime (gradients).
class HostStage {
 public:
  virtual ~HostStage() = default;
  virtual float* tensor(size_t use) = 0;
  // A second array for the weights along the other axis (docs/quantization.md). Null if the use has
  // none: it is there only in what NewBackwardStage made.
  virtual float* second_copy(size_t use) = 0;
  virtual uint64_t bytes() const = 0;
};

// A stage's weights where the device computes. Dropping it frees the device's copy once enqueued
// work is done.
class StageWeights {
 public:
  virtual ~StageWeights() = default;
};

// The input or output of a stage for one micro-batch, or the gradient of one. Immutable.
class Activation {
 public:
  virtual ~Activation() = default;
  virtual uint64_t bytes() const = 0;
};
using ActivationPtr = std::shared_ptr<const Activation>;

// The gradient of one stage's tensors (by use), of a micro-batch or a sum of some. Movable handle.
class StageGradient {
 public:
  virtual ~StageGradient() = default;
};
using StageGradientPtr = std::unique_ptr<StageGradient>;

// One micro-batch: `samples` rows of seq_len tokens; labels[i] is the token that follows tokens[i],
// or kIgnoreLabel for a position that does not count.
inline constexpr int32_t kIgnoreLabel = -100;
struct MicroBatch {
  Step step;
  uint32_t index = 0;  // global: part * g + j; part of every random key
  uint32_t samples = 0;
  uint32_t seq_len = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;
  bool held_out = false;  // for an evaluation: nothing is dropped at random
};

// The positions that count in the loss: labels other than kIgnoreLabel, or every position of a
// batch that carries no labels (synthetic models). A contribution is pushed with the sum of these
// over its part, so every program must count the same.
inline uint64_t CountedTokens(const MicroBatch& batch) {
  if (batch.labels.empty()) return uint64_t{batch.samples} * batch.seq_len;
  uint64_t count = 0;
  for (const int32_t label : batch.labels) count += label != kIgnoreLabel ? 1 : 0;
  return count;
}

// Sum over counted tokens of the loss, in double.
struct LossSum {
  double sum = 0;
  uint64_t tokens = 0;
};

// The loss of a micro-batch that a device still computes.
class LateLoss {
 public:
  virtual ~LateLoss() = default;
  // Waits until it is there, at most a few minutes.
  virtual absl::StatusOr<LossSum> Wait() = 0;
};

class StageProgram {
 public:
  virtual ~StageProgram() = default;
  virtual const StageSpec& spec() const = 0;

  // `in` is null for the first stage, which reads the tokens. Not called for the last stage. The
  // values of the result are those of worker.stash_codec, so that it makes no difference whether
  // they come from the stash later.
  virtual absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights,
                                                const MicroBatch& batch,
                                                const ActivationPtr& in) = 0;

  struct BackwardResult {
    ActivationPtr grad_in;  // null for the first stage
    StageGradientPtr gradient;
    LossSum loss;  // of the last stage
    // Null, or what has loss.sum, which is not there yet; see StageRuntime::AllowLateLosses.
    std::unique_ptr<LateLoss> late_loss;
  };
  // Recomputes from `in` and propagates; the second copies of the weights, where there are any,
  // give the gradient of the stage's input and nothing else. `grad_out` is null for the last stage,
  // which computes the loss over bounded blocks of tokens and starts from d(sum of token losses) *
  // 2^-loss_scale_log2.
  virtual absl::StatusOr<BackwardResult> Backward(const StageWeights& weights,
                                                  const MicroBatch& batch, const ActivationPtr& in,
                                                  const ActivationPtr& grad_out,
                                                  int loss_scale_log2) = 0;

  // The loss that Backward would count, without a gradient. Only called for the last stage.
  virtual absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                                       const ActivationPtr& in) = 0;
};

// Memory that the device holds now and held at most, stash apart (DECISIONS.md 27).
struct DeviceMemory {
  uint64_t live_bytes = 0;
  uint64_t peak_bytes = 0;
};

// A gradient on its way to host memory.
class PendingCopy {
 public:
  virtual ~PendingCopy() = default;
  // Waits until it is there, at most a few minutes.
  virtual absl::Status Wait() = 0;
};

// One device. Owns the programs; outlives everything it hands out.
class StageRuntime {
 public:
  virtual ~StageRuntime() = default;

  virtual StageProgram& program(StageId stage) = 0;
  // From now on Backward may leave the loss to BackwardResult::late_loss, so that a device does not
  // stand still for every micro-batch while its loss is read.
  virtual void AllowLateLosses() {}
  virtual std::unique_ptr<HostStage> NewHostStage(StageId stage) = 0;
  // The same with a second copy for each use of which HasSecondCopy (worker/relay/weight_copies.h).
  virtual std::unique_ptr<HostStage> NewBackwardStage(StageId stage) = 0;

  // Makes the weights available to the programs. The runtime keeps `host` until it needs it no
  // longer (a CPU computes on it in place).
  virtual std::shared_ptr<const StageWeights> Load(StageId stage,
                                                   std::shared_ptr<HostStage> host) = 0;

  // left + right by the one TreeAdd (base/tree_add.h, or the same bits on a device).
  virtual StageGradientPtr Add(StageGradientPtr left, StageGradientPtr right) = 0;
  // Copies the gradient to host memory; waits until it is there.
  virtual absl::Status ToHost(StageId stage, const StageGradient& gradient, HostStage* out) = 0;
  // As ToHost, but may return before the gradient is there: it is when Wait of the result returns,
  // until then `out` must live. Null if it is there already, as always on a CPU. The gradient may
  // be dropped at once.
  virtual absl::StatusOr<std::unique_ptr<PendingCopy>> StartToHost(StageId stage,
                                                                   const StageGradient& gradient,
                                                                   HostStage* out) {
    const absl::Status status = ToHost(stage, gradient, out);
    if (!status.ok()) return status;
    return std::unique_ptr<PendingCopy>();
  }

  // Moves an activation to the stash (host memory if worker.stash is host; charged to kStash) and
  // back. What Forward gave lies there encoded in worker.stash_codec, gradients in FP32; either way
  // values are kept bit for bit. What is stashed may be read several times and stays charged until
  // its handle goes away.
  virtual absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) = 0;
  virtual absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) = 0;

  virtual DeviceMemory device_memory() const = 0;
  // Library build, device, ISA cap, intra-op threads: what this runtime's bits depend on.
  virtual std::string compute_profile() const = 0;
};

struct RuntimeOptions {
  std::string device = "auto";  // auto | cpu | cuda | cuda:N
  std::string stash = "host";   // host | device
  int threads = 0;              // 0: all cores, shared by the workers of the machine
  // Which of the workers of this machine this one is, of how many: auto takes the device of that
  // number, as far as there are so many.
  int local_rank = 0;
  int local_count = 1;
};

// The synthetic model (spec.model.type synthetic), on the CPU without LibTorch. `spec` and
// `account` (may be null) outlive the runtime. For measurements a forward pass of a micro-batch
// over a stage takes at least `pass_time`, a backward pass, which computes the forward one again,
// three times that; the rest is slept. REQUIRES StashCodec::Find(spec.codecs.stash).ok().
std::unique_ptr<StageRuntime> NewSyntheticRuntime(
    const JobSpec& spec, MemoryAccount* account,
    std::chrono::milliseconds pass_time = std::chrono::milliseconds(0));

}  // namespace eps

#endif  // EPS_WORKER_RELAY_STAGE_PROGRAM_H_
