#ifndef EPS_CHECKPOINT_WEIGHTS_LORA_WEIGHTS_H_
#define EPS_CHECKPOINT_WEIGHTS_LORA_WEIGHTS_H_

// The weights of a checkpoint of a model with LoRA adapters, as other libraries want them: merged
// into the matrices, or the adapters alone, as peft stores them.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "checkpoint/checkpoint.h"

namespace eps {

// Returns whether the job's model has adapters.
bool HasLora(const JobSpec& spec);

// The adapters of one checkpoint. Thread-compatible.
class LoraWeights {
 public:
  // `checkpoint` must outlive the result. DataLoss if a matrix of an adapter, or the one that it
  // belongs to, is missing. REQUIRES HasLora(checkpoint.spec()).
  static absl::StatusOr<LoraWeights> Open(const CheckpointReader& checkpoint);

  bool IsAdapter(TensorId tensor) const { return names_.count(tensor) > 0; }
  // Returns the name of an adapter's matrix in peft's files. REQUIRES IsAdapter(tensor).
  const std::string& PeftName(TensorId tensor) const { return names_.at(tensor); }
  // Returns the name of a tensor that is trained and belongs to no adapter; empty if there is none.
  std::string OtherTrained() const;
  // Whether the matrices with adapters are [in, out], as GPT-2's.
  bool in_out() const { return in_out_; }

  // As CheckpointReader::Read of the weights. A matrix W with an adapter becomes
  // W + B A * alpha / r, computed in double and rounded once.
  absl::Status ReadMerged(TensorId tensor, uint64_t first, size_t count, float* out);

 private:
  // The matrices of one adapter.
  struct Adapter {
    std::optional<TensorId> a;  // [r, in]
    std::optional<TensorId> b;  // [out, r]
    bool in_out = false;        // W is [in, out] instead of [out, in]
  };

  explicit LoraWeights(const CheckpointReader& checkpoint) : checkpoint_(&checkpoint) {}
  absl::StatusOr<std::vector<float>> ReadAll(TensorId tensor) const;

  const CheckpointReader* checkpoint_;
  std::map<TensorId, std::string> names_;  // of the adapters' matrices
  std::map<TensorId, Adapter> adapters_;   // by W
  bool in_out_ = false;
  std::optional<TensorId> loaded_;  // the W whose adapter is in memory
  std::vector<float> a_, b_;
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_WEIGHTS_LORA_WEIGHTS_H_
