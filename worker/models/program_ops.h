#ifndef EPS_WORKER_MODELS_PROGRAM_OPS_H_
#define EPS_WORKER_MODELS_PROGRAM_OPS_H_

// The calls that a model program may make, and the conversion of their arguments, which is done
// once for each stage, by the schema of the operator. A converted call cannot pass a value of
// another type than the operator expects.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/models/model_program.h"
#include "c10/core/ScalarType.h"

namespace eps {

// The kinds of calls; all but kOperator are computed by the evaluator itself.
enum class OpKind {
  kOperator,   // of LibTorch
  kDropout,    // aten::dropout
  kAttention,  // aten::scaled_dot_product_attention
  kEmbedding,  // aten::embedding and the next two: in 16 bits, gradients are summed in FP32
  kIndex,
  kLayerNorm,
  kItem,  // of a list or tuple
  kAdd,
  kSub,
  kMul,
  kFloorDiv,
  kGroupedMm
};

// The type of a slot's value.
enum class SlotType { kTensor, kTensors, kInteger, kReal, kFlag };

// One argument, converted as far as that is possible before a run.
struct OpArgument {
  // How the value of a slot, or of items, becomes the argument.
  enum class Form {
    kLiteral,     // `value`
    kDevice,      // the device of the run
    kSlot,        // the value of the slot as it is
    kReal,        // an integer as a double
    kTensor,      // a number as a tensor
    kOneInteger,  // an integer as a list of one
    kIntegers,    // lists of `items`
    kTensors,
    kMaybeTensors
  };
  Form form = Form::kLiteral;
  c10::IValue value;
  uint32_t slot = 0;
  std::vector<OpArgument> items;
};

// One call, ready to be run.
struct Op {
  OpKind kind = OpKind::kOperator;
  std::string name;
  std::optional<c10::OperatorHandle> handle;  // of the operators of LibTorch
  std::vector<OpArgument> arguments;          // all of the schema
  SlotType result = SlotType::kTensor;
};

at::ScalarType ScalarTypeOf(ElementType type);

// Converts a call of an operator of ProgramOperators (base/job/models/program_operators.h). `slots`
// are the types of the slots that are defined before it. InvalidArgument names the argument that
// does not fit the operator's schema.
absl::StatusOr<Op> ConvertCall(const ProgramCall& call, const std::vector<SlotType>& slots);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_PROGRAM_OPS_H_
