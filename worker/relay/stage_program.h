#ifndef EPS_WORKER_RELAY_STAGE_PROGRAM_H_
#define EPS_WORKER_RELAY_STAGE_PROGRAM_H_

// The interface to what the relay runs: the stages of a model on one device. It has no LibTorch
// types, so that a synthetic model without LibTorch can serve protocol tests and the simulator.
//
// Calls only enqueue work on the runtime's compute stream unless their comment says that they wait.
// On a CPU the work is done when a call returns. Use from one thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "worker/client/stages/gradient_source.h"
#include "worker/client/stages/stage_sink.h"

namespace eps {

// The tensors of one stage in host memory: one array per TensorUse of the StageSpec, in its order;
// rank-2 tensors are row-major [rows, cols]. The runtime allocates it (pinned if the device needs
// that); the client fills it with weights, or the runtime with gradients.
class HostStage {
 public:
  virtual ~HostStage() = default;
  // Null, or without values, for a frozen tensor in a gradient.
  virtual float* tensor(size_t use) = 0;
  // Returns a second array for the weights along the other axis (docs/quantization.md), or null if
  // the use has none. Only a HostStage from NewBackwardStage has them.
  virtual float* second_copy(size_t use) = 0;
  virtual uint64_t bytes() const = 0;
};

// A stage's weights in the memory that the device computes on. Destroying it frees the device's
// copy after the enqueued work.
class StageWeights {
 public:
  virtual ~StageWeights() = default;
};

// The weights of a visit on their way to the device.
class ArrivingWeights {
 public:
  virtual ~ArrivingWeights() = default;
  // Returns where the chunks arrive. It stays valid as long as this object.
  virtual std::shared_ptr<StageSink> sink() = 0;
  // Makes the weights available to the programs. Call it once, after all chunks have arrived.
  virtual std::shared_ptr<const StageWeights> Load() = 0;
};

// A stage's input or output for one micro-batch, or the gradient of either. Immutable.
class Activation {
 public:
  virtual ~Activation() = default;
  virtual uint64_t bytes() const = 0;
};
using ActivationPtr = std::shared_ptr<const Activation>;

// The gradient of one stage's tensors (by use) for one micro-batch, or a sum over several.
class StageGradient {
 public:
  virtual ~StageGradient() = default;
};
using StageGradientPtr = std::unique_ptr<StageGradient>;

// The label of a position that does not count.
inline constexpr int32_t kIgnoreLabel = -100;
// One micro-batch: `samples` rows of seq_len tokens. A column that the data does not have is empty;
// docs/formats/data.md says how the columns follow from the data.
struct MicroBatch {
  Step step;
  uint32_t index = 0;  // global: part * g + j; part of every random key
  uint32_t samples = 0;
  uint32_t seq_len = 0;         // at most that of the job: rows may end at the longest one
  std::vector<int32_t> tokens;  // padding, at the right of a row, is 0
  // Of each token the one that follows it, or kIgnoreLabel; or the class of each sample.
  std::vector<int32_t> labels;
  std::vector<float> targets;  // instead of labels: a number to predict for each sample
  // Of each token its place in its document: several documents share a row, and no token sees
  // another document. Without it, a row is one document.
  std::vector<int32_t> positions;
  std::vector<uint32_t> lengths;  // of each row its tokens without padding; without it, no padding
  std::vector<int32_t> token_types;
  std::vector<float> pixels;  // [samples, channels, height, width]
  bool held_out = false;      // for an evaluation: no dropout
};

// Returns the number of positions (or samples) that count in the loss: labels other than
// kIgnoreLabel, all targets, or every position if the batch has neither (synthetic models). A
// contribution is pushed with the sum of these over its part, so every program must count alike.
inline uint64_t CountedTokens(const MicroBatch& batch) {
  if (!batch.targets.empty()) return batch.targets.size();
  if (batch.labels.empty()) return uint64_t{batch.samples} * batch.seq_len;
  uint64_t count = 0;
  for (const int32_t label : batch.labels) count += label != kIgnoreLabel ? 1 : 0;
  return count;
}

// The sum of the loss over the counted tokens, in double.
struct LossSum {
  double sum = 0;
  uint64_t tokens = 0;
};

// The predictions of the last stage for the samples, in their order; one of the two, by the model.
struct Predictions {
  std::vector<int32_t> classes = {};  // that with the highest score; of several, the lowest
  std::vector<float> numbers = {};
};

// The loss of a micro-batch that a device is still computing.
class LateLoss {
 public:
  virtual ~LateLoss() = default;
  // Waits for the loss, at most a few minutes.
  virtual absl::StatusOr<LossSum> Wait() = 0;
};

// One stage of the model.
class StageProgram {
 public:
  virtual ~StageProgram() = default;
  virtual const StageSpec& spec() const = 0;

  // Computes the stage's output. `in` is null for the first stage, which reads the tokens. Not
  // called for the last stage. The result's values are those of worker.stash_codec, so it makes no
  // difference whether they are later read from the stash.
  virtual absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights,
                                                const MicroBatch& batch,
                                                const ActivationPtr& in) = 0;

  // The gradients and, in the last stage, the loss of a backward pass.
  struct BackwardResult {
    // Null for the first stage. The lowest stage that has something to train needs none.
    ActivationPtr grad_in;
    StageGradientPtr gradient;  // or the sum with it
    LossSum loss;               // of the last stage
    // Null, or provides loss.sum, which is not known yet; see StageRuntime::AllowLateLosses.
    std::unique_ptr<LateLoss> late_loss;
  };
  // Recomputes from `in` and propagates. Second copies of the weights, if there are any, give only
  // the gradient of the stage's input. `grad_out` is null for the last stage, which computes the
  // loss over bounded blocks of tokens and starts from d(sum of token losses) *
  // 2^-loss_scale_log2. If `sum_or_null` is a sum of earlier micro-batches, the gradient is added
  // to it, rounded once; a device may do so within a product.
  virtual absl::StatusOr<BackwardResult> Backward(const StageWeights& weights,
                                                  const MicroBatch& batch, const ActivationPtr& in,
                                                  const ActivationPtr& grad_out,
                                                  int loss_scale_log2,
                                                  StageGradientPtr sum_or_null) = 0;

  // Returns the loss that Backward would count, without a gradient, and sets *predictions_or_null.
  // Only called for the last stage, and with null for a model that predicts tokens. Waits.
  virtual absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                                       const ActivationPtr& in,
                                       Predictions* predictions_or_null) = 0;
};

// Memory that the device holds now and has held at most. Excludes a stash in host memory, which the
// account charges as kStash; includes a stash on the device.
struct DeviceMemory {
  uint64_t live_bytes = 0;
  uint64_t peak_bytes = 0;
};

// A gradient that is being copied to host memory.
class PendingCopy {
 public:
  virtual ~PendingCopy() = default;
  // Waits for the copy, at most a few minutes.
  virtual absl::Status Wait() = 0;
};

// A gradient that a device encodes and copies to host memory.
class LeavingGradient {
 public:
  virtual ~LeavingGradient() = default;
  // Waits for the copy, at most a few minutes. Call it once.
  virtual absl::StatusOr<std::shared_ptr<const GradientSource>> Wait() = 0;
};

// One device. Owns the programs; must outlive everything that it returns.
class StageRuntime {
 public:
  virtual ~StageRuntime() = default;

  virtual StageProgram& program(StageId stage) = 0;
  // Allows Backward to leave the loss to BackwardResult::late_loss from now on, so that a device
  // does not idle while the loss of each micro-batch is read.
  virtual void AllowLateLosses() {}
  // ResourceExhausted if the host has no memory of the kind that the device needs.
  virtual absl::StatusOr<std::unique_ptr<HostStage>> NewHostStage(StageId stage) = 0;
  // As NewHostStage, with a second copy for each use that HasSecondCopy
  // (worker/relay/weight_copies.h).
  virtual absl::StatusOr<std::unique_ptr<HostStage>> NewBackwardStage(StageId stage) = 0;

  // Returns a place on the device for the weights of a visit, which arrive there while earlier
  // visits compute. Null if this device receives weights that were decoded in host memory, by Load.
  virtual absl::StatusOr<std::unique_ptr<ArrivingWeights>> NewArrival(StageId /*stage*/,
                                                                      bool /*backward*/) {
    return std::unique_ptr<ArrivingWeights>();
  }

  // Makes the weights available to the programs. The runtime holds `host` as long as it needs it (a
  // CPU computes on it in place).
  virtual std::shared_ptr<const StageWeights> Load(StageId stage,
                                                   std::shared_ptr<HostStage> host) = 0;

  // Returns weights of the stage's shapes without values, for a backward pass that needs none
  // (StageSpec::backward_needs_weights).
  virtual std::shared_ptr<const StageWeights> WithoutValues(StageId stage) = 0;

  // Returns left + right by TreeAdd (base/numerics/tree_add.h, or the same bits on a device).
  virtual StageGradientPtr Add(StageGradientPtr left, StageGradientPtr right) = 0;

  // Returns whether the device's memory is host memory, as on a CPU. The relay then moves gradients
  // to the client, and copies them otherwise.
  virtual bool in_host_memory() const { return false; }
  // Returns the gradient itself as a HostStage, without a copy. It counts as kStage of the worker
  // instead of device memory until it is destroyed, which may happen on any thread. REQUIRES
  // in_host_memory().
  virtual absl::StatusOr<std::unique_ptr<HostStage>> MoveToHost(StageId /*stage*/,
                                                                StageGradientPtr /*gradient*/) {
    return absl::UnimplementedError("gradients of this device are copied");
  }
  // Copies the gradient to host memory and waits for the copy.
  virtual absl::Status ToHost(StageId stage, const StageGradient& gradient, HostStage* out) = 0;
  // As ToHost, but may return before the copy is complete; then `out` must live until Wait of the
  // result returns. Returns null if the copy is complete, as always on a CPU. The gradient may be
  // destroyed at once.
  virtual absl::StatusOr<std::unique_ptr<PendingCopy>> StartToHost(StageId stage,
                                                                   const StageGradient& gradient,
                                                                   HostStage* out) {
    const absl::Status status = ToHost(stage, gradient, out);
    if (!status.ok()) return status;
    return std::unique_ptr<PendingCopy>();
  }

  // Starts to encode the gradient and to copy it to host memory, and may return before that is
  // complete. The gradient may be destroyed at once. Null if this device does not encode the
  // gradients of `step`: copy them in FP32. At most two results, or gradients that came from them,
  // may exist at a time. The bytes go to `rooms` where the device reaches those.
  virtual absl::StatusOr<std::unique_ptr<LeavingGradient>> StartEncoding(
      StageId /*stage*/, Step /*step*/, const StageGradient& /*gradient*/,
      GradientRooms* /*rooms*/) {
    return std::unique_ptr<LeavingGradient>();
  }

  // Call this before the first Stash of activations that are stashed at the same time: `inputs`
  // results of Forward, then `gradients`, each of the latter in place of one input. The first ones
  // are expected to be read last. ResourceExhausted with the figures and keys if they do not fit
  // into the tiers of the stash.
  virtual absl::Status BeginStash(uint64_t /*inputs*/, uint64_t /*gradients*/) {
    return absl::OkStatus();
  }
  // Moves an activation to the stash and back. The stash is device memory, host memory charged to
  // kStash, and a file (worker.stash). It holds results of Forward encoded in worker.stash_codec
  // and gradients in the type of activations; both keep their values bit for bit. A stashed
  // activation may be read several times and stays charged until its handle is destroyed. Stash
  // returns ResourceExhausted with the figures beyond worker.stash_host, Unstash DataLoss if the
  // file lost bytes.
  virtual absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) = 0;
  virtual absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) = 0;
  // Unstash will be called for this activation soon. Does not wait.
  virtual void WillUnstash(const ActivationPtr& /*stashed*/) {}

  virtual DeviceMemory device_memory() const = 0;
  // Returns the properties that this runtime's bits depend on: library build, device, ISA cap and
  // intra-op threads.
  virtual std::string compute_profile() const = 0;
};

// Where a runtime computes (the worker.* keys of the configuration).
struct RuntimeOptions {
  std::string device = "auto";  // auto | cpu | cuda | cuda:N
  std::string stash = "host";   // auto | host | device
  int threads = 0;              // 0 divides all cores among the workers of the machine
  // This worker's number among the workers of this machine. A device without a number selects the
  // device of this number, modulo the number of devices.
  int local_rank = 0;
  int local_count = 1;
  uint64_t stash_host = 0;      // most bytes of the stash in host memory; 0 sets no limit
  std::string stash_path = "";  // a folder for the rest; empty: there is no other place
  uint64_t device_memory = 0;   // most bytes on the device; 0: nine tenths of what is free
  // none | auto: room on the device that nothing else needs holds what the last stages computed. A
  // CPU has such room if device_memory says so.
  std::string keep = "none";
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_STAGE_PROGRAM_H_
