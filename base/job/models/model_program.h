#ifndef EPS_BASE_JOB_MODELS_MODEL_PROGRAM_H_
#define EPS_BASE_JOB_MODELS_MODEL_PROGRAM_H_

// A model as data: for each stage a list of LibTorch calls (docs/formats/model_program.md). This
// file reads and bounds the text and knows nothing of LibTorch; worker/models runs the calls.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/layout.h"
#include "base/job/names.h"

namespace eps {

// With it, the text of a job spec still fits into one message (4 MiB).
inline constexpr size_t kMaxProgramTextBytes = size_t{3} << 20;
inline constexpr size_t kMaxProgramCalls = 10'000;  // of one program
// Over all stages, counted once for each stage that runs a program, lists and their items included.
inline constexpr size_t kMaxProgramArguments = size_t{1} << 19;
inline constexpr size_t kMaxProgramConstantBytes = size_t{64} << 10;  // of one constant
inline constexpr size_t kMaxProgramRank = 16;
inline constexpr int64_t kMaxProgramInteger = int64_t{1} << 28;   // magnitude of an argument
inline constexpr int64_t kMaxProgramElements = int64_t{1} << 31;  // product of a list of integers

enum class ElementType { kFloat32, kBfloat16, kFloat16, kFloat64, kInt64, kInt32, kBool };
template <>
inline constexpr std::array<const char*, 7> kNames<ElementType> = {
    "float32", "bfloat16", "float16", "float64", "int64", "int32", "bool"};
size_t BytesOf(ElementType type);

enum class ProgramTask { kCausalLm, kMlm, kClassify, kRegress, kImage };
template <>
inline constexpr std::array<const char*, 5> kNames<ProgramTask> = {"causal_lm", "mlm", "classify",
                                                                   "regress", "image"};

// Which documents a row holds, and so which masks the calls build.
enum class ProgramVariant { kCausal, kPacked, kEncoder };
template <>
inline constexpr std::array<const char*, 3> kNames<ProgramVariant> = {"causal", "packed",
                                                                      "encoder"};

// How a stage reads a tensor. Axes of quantization and weight decay follow from it.
enum class TensorRole { kEmbedding, kLinearInOut, kLinearOutIn, kNorm, kBias, kOther };
template <>
inline constexpr std::array<const char*, 6> kNames<TensorRole> = {
    "embedding", "linear_in_out", "linear_out_in", "norm", "bias", "other"};

enum class HeadKind { kTokens, kClasses, kMse };
template <>
inline constexpr std::array<const char*, 3> kNames<HeadKind> = {"tokens", "classes", "mse"};

// A column of a micro-batch that a program reads.
enum class ProgramInput { kInputIds, kPositionIds, kAttentionMask, kTokenTypeIds, kPixelValues };
template <>
inline constexpr std::array<const char*, 5> kNames<ProgramInput> = {
    "input_ids", "position_ids", "attention_mask", "token_type_ids", "pixel_values"};

// One argument of a call.
struct ProgramArgument {
  enum class Kind {
    kNone,
    kBool,
    kInteger,
    kReal,
    kText,
    kSlot,
    kElementType,
    kDevice,
    kMemoryFormat,
    kList
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;  // of kInteger; the flag of kBool; the number of kSlot
  double real = 0;
  std::string text;  // of kText and kMemoryFormat ("contiguous" or "preserve")
  ElementType type = ElementType::kFloat32;
  std::vector<ProgramArgument> items;  // of kList
};

// One call; it defines the next slot.
struct ProgramCall {
  std::string op;  // "aten::add.Tensor", "item", "int.mul"
  std::vector<ProgramArgument> arguments;
};

// a * B * T + b * B * T^2 for B samples of T tokens.
struct ProgramCost {
  double linear = 0;
  double quadratic = 0;
};

// The calls of a stage. Slots are numbered: the activation, the weights, the constants, the inputs,
// then the result of each call.
struct CallList {
  bool has_activation = false;
  uint32_t weights = 0;
  uint32_t constants = 0;
  std::vector<ProgramInput> inputs;
  std::vector<ProgramCall> calls;
  uint32_t output = 0;  // a slot
  ProgramCost flops;
  ProgramCost saved;  // bytes

  uint32_t first_weight() const { return has_activation ? 1 : 0; }
  uint32_t first_constant() const { return first_weight() + weights; }
  uint32_t first_input() const { return first_constant() + constants; }
  uint32_t first_call() const { return first_input() + static_cast<uint32_t>(inputs.size()); }
};

// A value that is the same for every job, such as the frequencies of rotary embeddings.
struct ProgramConstant {
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;
  std::string bytes;  // little-endian, row-major
};

// How files hold a tensor: under one name; as matrices of equal height, one below the other; or not
// at all, because it is new.
enum class TensorFiles { kName, kStack, kNew };
template <>
inline constexpr std::array<const char*, 3> kNames<TensorFiles> = {"name", "stack", "new"};

// A weight of the model.
struct ProgramTensor {
  std::string name;
  std::vector<int64_t> shape;  // as the calls see it
  Initializer init = Initializer::kZeros;
  double init_a = 0, init_b = 0;   // deviation; or lowest and highest value
  std::vector<std::string> files;  // its name in files, or those of its panels of rows
  TensorFiles kind = TensorFiles::kName;
  std::vector<std::string> aliases;  // further names in files
  bool frozen = false;               // keeps its values (LoRA's base)

  uint32_t rank() const { return shape.size() <= 1 ? 1 : 2; }  // as it is stored
  uint64_t cols() const { return shape.empty() ? 1 : static_cast<uint64_t>(shape.back()); }
  uint64_t rows() const;
};

// A tensor of a stage.
struct ProgramUse {
  uint32_t tensor = 0;
  TensorRole role = TensorRole::kOther;
};

// One stage: a call list, and the tensors and constants with which it runs.
struct ProgramStageSpec {
  std::string name;
  uint32_t program = 0;
  std::vector<ProgramUse> uses;     // the weights of the program
  std::vector<uint32_t> constants;  // those of the program
  bool needs_weights = true;        // for its backward pass
};

// The LoRA adapters of a model: a layer N with them has N.lora_A.default.weight [r, in] and
// N.lora_B.default.weight [out, r] beside the frozen N.weight, and adds B(A(x)) * alpha / r.
struct ProgramLora {
  uint32_t r = 0;  // 0: none
  double alpha = 0;
  double dropout = 0;
  std::vector<std::string> targets;  // names of layers
};
inline constexpr char kLoraA[] = ".lora_A.default.weight";
inline constexpr char kLoraB[] = ".lora_B.default.weight";

// Immutable; every number in it is in range.
struct ModelProgram {
  std::string text;  // canonical
  std::string architecture, model_type, made_by;
  ProgramTask task = ProgramTask::kCausalLm;
  ProgramVariant variant = ProgramVariant::kCausal;
  ElementType type = ElementType::kFloat32;
  uint32_t vocab_size = 0;   // 0: reads no token ids
  uint32_t max_seq_len = 0;  // 0: no bound
  uint32_t width = 0;        // of an activation, for one token
  uint32_t classes = 0;
  uint32_t tokens = 0;         // positions of a sample without token ids
  std::vector<int64_t> image;  // channels, height and width; empty without images
  std::vector<ProgramConstant> constants;
  std::vector<ProgramTensor> tensors;
  std::vector<CallList> programs;
  std::vector<ProgramStageSpec> stages;  // at least two
  HeadKind head = HeadKind::kTokens;
  bool rowwise = false;
  ProgramLora lora;

  const CallList& calls_of(size_t stage) const { return programs[stages[stage].program]; }
};

// Reads a program. `text` may hold whitespace and keys in any order; ModelProgram::text does not.
// InvalidArgument names the stage and the call, or the field.
absl::StatusOr<ModelProgram> ParseModelProgram(absl::string_view text);

}  // namespace eps

#endif  // EPS_BASE_JOB_MODELS_MODEL_PROGRAM_H_
