#ifndef EPS_BASE_JOB_LAYOUT_H_
#define EPS_BASE_JOB_LAYOUT_H_

// Tensors, the stages that use them and the groups that they belong to: the part of a job's spec
// that its model determines (base/job/models).

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/job/names.h"

namespace eps {

inline constexpr uint32_t kMaxTensors = 1u << 20;
inline constexpr uint32_t kMaxStages = 4096;
inline constexpr uint32_t kMaxStageUses = 1u << 20;  // over all stages
inline constexpr uint32_t kMaxGroups = 256;
inline constexpr uint32_t kMaxTensorCols = 1u << 23;

enum class Initializer { kZeros, kOnes, kNormal, kUniform };
template <>
inline constexpr std::array<const char*, 4> kNames<Initializer> = {"zeros", "ones", "normal",
                                                                   "uniform"};

// One stored matrix or vector of the model, and how it is initialized.
struct TensorSpec {
  std::string name;   // the Hugging Face name, e.g. "transformer.h.0.attn.c_attn.weight"
  uint32_t rank = 2;  // 1 or 2
  uint32_t rows = 0;  // 1 for rank 1
  uint32_t cols = 0;
  GroupId group;
  Initializer init = Initializer::kNormal;
  double init_std = 0.0;  // of kNormal
  double init_low = 0.0;  // of kUniform
  double init_high = 0.0;

  uint64_t elements() const { return uint64_t{rows} * cols; }
};

// Which axis of the stored tensor a pass contracts (blocks of block codecs run along it).
enum class Axis { kRow, kColumn };  // kRow: blocks run along a row (the last dimension)
template <>
inline constexpr std::array<const char*, 2> kNames<Axis> = {"row", "column"};

// A tensor of a stage, with the axes that the two passes of the stage contract.
struct TensorUse {
  TensorId tensor;
  Axis forward_axis = Axis::kColumn;
  Axis backward_axis = Axis::kRow;
};

// One position of the relay: embedding, block 0 … n-1, head.
struct StageSpec {
  std::string name;
  std::vector<TensorUse> uses;  // each tensor at most once
  // False if no gradient of the stage depends on the value of a weight. Follows from the model, so
  // the text of the job spec does not have it; see SetBackwardNeeds (base/job/models).
  bool backward_needs_weights = true;
};

// The name of the group whose tensors have weight decay.
inline constexpr char kDecayGroup[] = "decay";

// A set of tensors that share their weight decay and their part of the learning rate; or tensors
// that keep their initial values.
struct ParameterGroup {
  std::string name;
  double weight_decay = 0.0;   // 0 if frozen
  double lr_multiplier = 1.0;  // of the step's learning rate; 1 if frozen
  bool frozen = false;
};

}  // namespace eps

#endif  // EPS_BASE_JOB_LAYOUT_H_
