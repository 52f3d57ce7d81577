#include "worker/models/program_evaluator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ATen/ScalarOps.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/job/models/program_calls.h"
#include "base/status_macros.h"
#include "c10/util/Exception.h"
#include "worker/models/program_substitutions.h"

namespace eps {
namespace {

using at::Tensor;
using c10::IValue;
using Form = OpArgument::Form;
using Kind = ProgramArgument::Kind;

// Operators that multiply by a weight, and the places of the weight and the bias among their
// arguments.
struct Product {
  const char* op;
  size_t input, weight;
  std::optional<size_t> bias;
  bool out_in;
  size_t arguments;  // at most: with others the result is not a plain product
};
constexpr Product kProducts[] = {
    {"aten::linear", 0, 1, 2, true, 3},
    {"aten::addmm", 1, 2, 0, false, 3},
    {"aten::mm", 0, 1, std::nullopt, false, 2},
    {"aten::matmul", 0, 1, std::nullopt, false, 2},
};

const Product* FindProduct(absl::string_view op) {
  for (const Product& product : kProducts) {
    if (op == product.op) return &product;
  }
  return nullptr;
}

// Operators whose backward pass reads their inputs at most.
bool LeavesOutputFree(absl::string_view op) {
  return FindProduct(op) != nullptr || op == "aten::add.Tensor" || op == "aten::sub.Tensor" ||
         op == "aten::mul.Tensor" || op == "aten::div.Tensor";
}

// Calls `visit(slot)` for each slot that the arguments read.
template <class Visitor>
void ForEachSlot(const std::vector<ProgramArgument>& arguments, const Visitor& visit) {
  for (const ProgramArgument& argument : arguments) {
    if (argument.kind == Kind::kSlot) visit(static_cast<uint32_t>(argument.integer));
    ForEachSlot(argument.items, visit);
  }
}

// Returns one argument for a run.
IValue Made(const OpArgument& a, const std::vector<IValue>& slots, c10::Device device) {
  switch (a.form) {
    case Form::kLiteral:
      return a.value;
    case Form::kDevice:
      return device;
    case Form::kSlot:
      return slots[a.slot];
    case Form::kReal:
      return slots[a.slot].toScalar().toDouble();
    case Form::kTensor: {
      Tensor number = c10::scalar_to_tensor(slots[a.slot].toScalar());
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      return number;
    }
    case Form::kOneInteger:
      return c10::List<int64_t>({slots[a.slot].toInt()});
    case Form::kIntegers: {
      c10::List<int64_t> list;
      list.reserve(a.items.size());
      for (const OpArgument& item : a.items) list.push_back(Made(item, slots, device).toInt());
      return list;
    }
    case Form::kTensors: {
      c10::List<Tensor> list;
      for (const OpArgument& item : a.items) list.push_back(Made(item, slots, device).toTensor());
      return list;
    }
    case Form::kMaybeTensors:
      break;
  }
  c10::List<std::optional<Tensor>> list;
  for (const OpArgument& item : a.items) {
    const IValue value = Made(item, slots, device);
    list.push_back(value.isNone() ? std::optional<Tensor>() : value.toTensor());
  }
  return list;
}

int64_t Integer(OpKind kind, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (kind == OpKind::kAdd) overflows = __builtin_add_overflow(a, b, &result);
  if (kind == OpKind::kSub) overflows = __builtin_sub_overflow(a, b, &result);
  if (kind == OpKind::kMul) overflows = __builtin_mul_overflow(a, b, &result);
  if (kind == OpKind::kFloorDiv) {
    TORCH_CHECK(b != 0, "division by 0");
    overflows = b == -1 && a == INT64_MIN;
    if (!overflows) result = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  }
  TORCH_CHECK(!overflows, "an integer overflows");
  return result;
}

IValue ItemOf(const IValue& list, int64_t index) {
  if (list.isTuple()) {
    const auto& elements = list.toTupleRef().elements();
    TORCH_CHECK(index >= 0 && index < static_cast<int64_t>(elements.size()), "item ", index, " of ",
                elements.size());
    return elements[static_cast<size_t>(index)];
  }
  const auto elements = list.toListRef();
  TORCH_CHECK(index >= 0 && index < static_cast<int64_t>(elements.size()), "item ", index, " of ",
              elements.size());
  return elements[static_cast<size_t>(index)];
}

// Computes a lookup or a norm of x. `argument(i)` returns an argument.
template <class Argument>
Tensor WithWideSums(OpKind kind, const Tensor& x, const Argument& argument) {
  switch (kind) {
    case OpKind::kEmbedding:
      return EmbeddingWithWideSums(x, argument(1).toTensor(), argument(2).toInt(),
                                   argument(3).toBool());
    case OpKind::kIndex:
      return IndexWithWideSums(x, argument(1).template to<c10::List<std::optional<Tensor>>>());
    default:
      return LayerNormWithWideSums(
          x, argument(1).toIntVector(), argument(2).template toOptional<Tensor>(),
          argument(3).template toOptional<Tensor>(), argument(4).toDouble());
  }
}

// Returns the dropout probability of a call; it must be a number, because it is a setting.
absl::StatusOr<double> ProbabilityOf(const Op& op) {
  const size_t at = op.kind == OpKind::kDropout ? kDropoutProbability : kAttentionProbability;
  const OpArgument& p = op.arguments[at];
  if (p.form != Form::kLiteral || !p.value.isDouble()) {
    return absl::InvalidArgumentError("the dropout probability is not a number");
  }
  if (p.value.toDouble() >= 0 && p.value.toDouble() < 1) return p.value.toDouble();
  return absl::InvalidArgumentError(
      absl::StrCat("expected a dropout probability from 0 to below 1, found ", p.value.toDouble()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ProgramEvaluator>> ProgramEvaluator::Create(
    const CallList& calls, const std::string& stage) {
  std::unique_ptr<ProgramEvaluator> evaluator(new ProgramEvaluator());
  evaluator->first_weight_ = calls.first_weight();
  evaluator->first_call_ = calls.first_call();
  evaluator->output_ = calls.output;
  std::vector<SlotType> slots(calls.first_call(), SlotType::kTensor);
  uint32_t sites = 0;
  for (const ProgramCall& call : calls.calls) {
    const auto named = [&](const absl::Status& status) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", stage, ", call ",
                                                     evaluator->calls_.size(), " (", call.op,
                                                     "): ", status.message()));
    };
    Call made;
    absl::StatusOr<Op> op = ConvertCall(call, slots);
    if (!op.ok()) return named(op.status());
    made.op = *std::move(op);
    if (made.op.kind == OpKind::kDropout || made.op.kind == OpKind::kAttention) {
      const absl::StatusOr<double> p = ProbabilityOf(made.op);
      if (!p.ok()) return named(p.status());
      made.site = static_cast<uint16_t>(sites++);
    }
    slots.push_back(made.op.result);
    evaluator->calls_.push_back(std::move(made));
  }
  if (slots[calls.output] != SlotType::kTensor) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", stage, ": its output is no tensor"));
  }
  evaluator->FindProducts(calls);
  evaluator->FindLastUses(calls);
  return std::unique_ptr<const ProgramEvaluator>(std::move(evaluator));
}

void ProgramEvaluator::FindProducts(const CallList& calls) {
  multiplied_only_.assign(calls.weights, true);
  const auto weight_of = [&](uint32_t slot) {
    const bool is_weight = slot >= calls.first_weight() && slot < calls.first_constant();
    return is_weight ? static_cast<int>(slot - calls.first_weight()) : -1;
  };
  for (size_t k = 0; k < calls.calls.size(); ++k) {
    const ProgramCall& call = calls.calls[k];
    const Product* const product = FindProduct(call.op);
    if (product != nullptr && call.arguments.size() > product->weight &&
        call.arguments.size() <= product->arguments &&
        call.arguments[product->weight].kind == Kind::kSlot) {
      calls_[k].weight = weight_of(static_cast<uint32_t>(call.arguments[product->weight].integer));
      calls_[k].out_in = product->out_in;
    }
    int reads = 0;  // of the weight by which this call multiplies
    ForEachSlot(call.arguments, [&](uint32_t slot) {
      const int weight = weight_of(slot);
      if (weight < 0 || call.op == "aten::sym_size.int") return;
      if (weight == calls_[k].weight && ++reads == 1) return;
      multiplied_only_[static_cast<size_t>(weight)] = false;
    });
  }
  const int output_weight = weight_of(calls.output);
  if (output_weight >= 0) multiplied_only_[static_cast<size_t>(output_weight)] = false;
  output_is_free_ = calls.output >= calls.first_call() &&
                    LeavesOutputFree(calls.calls[calls.output - calls.first_call()].op);
}

void ProgramEvaluator::FindLastUses(const CallList& calls) {
  std::vector<size_t> last(calls.first_call() + calls.calls.size(), 0);
  for (size_t k = 0; k < calls.calls.size(); ++k) {
    last[calls.first_call() + k] = k;  // of a result that nobody reads
    ForEachSlot(calls.calls[k].arguments, [&](uint32_t slot) { last[slot] = k; });
  }
  for (uint32_t slot = 0; slot < last.size(); ++slot) {
    if (slot != output_ && !calls_.empty()) calls_[last[slot]].last_uses.push_back(slot);
  }
}

void ProgramEvaluator::Fill(const ProgramInputs& inputs, Slots* slots) const {
  if (inputs.activation.defined()) slots->emplace_back(inputs.activation);
  for (size_t w = 0; w < inputs.weights.size(); ++w) {
    const ProgramWeight& weight = inputs.weights[w];
    TORCH_CHECK(IsMultipliedOnly(w) || !weight.for_input_gradient.defined(), "weight ", w,
                " has a copy along the other axis, but the calls do not only multiply by it");
    slots->emplace_back(weight.value);
  }
  for (const Tensor& constant : inputs.constants) slots->emplace_back(constant);
  for (const Tensor& column : inputs.columns) slots->emplace_back(column);
  TORCH_CHECK(slots->size() == first_call_, "a stage of ", first_call_, " inputs got ",
              slots->size());
}

std::string ProgramEvaluator::InCall(size_t k) const {
  return absl::StrCat(" (in call ", k, ", ", calls_[k].op.name, ")");
}

Tensor ProgramEvaluator::Run(const ProgramInputs& inputs) const {
  Slots slots;
  slots.reserve(first_call_ + calls_.size());
  Fill(inputs, &slots);
  std::vector<IValue> stack;
  for (size_t k = 0; k < calls_.size(); ++k) {
    const Call& call = calls_[k];
    try {
      slots.push_back(Compute(call, inputs, slots, &stack));
    } catch (const c10::OutOfMemoryError& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.what_without_backtrace(), InCall(k));
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, error.what_without_backtrace(), InCall(k));
    }
    for (const uint32_t slot : call.last_uses) slots[slot] = IValue();
  }
  return slots[output_].toTensor();
}

IValue ProgramEvaluator::Compute(const Call& call, const ProgramInputs& inputs, const Slots& slots,
                                 std::vector<IValue>* stack) const {
  const Op& op = call.op;
  const auto argument = [&](size_t i) { return Made(op.arguments[i], slots, inputs.device); };
  switch (op.kind) {
    case OpKind::kItem:
      return ItemOf(argument(0), argument(1).toInt());
    case OpKind::kAdd:
    case OpKind::kSub:
    case OpKind::kMul:
    case OpKind::kFloorDiv:
      return Integer(op.kind, argument(0).toInt(), argument(1).toInt());
    case OpKind::kGroupedMm:
      return GroupedProduct(argument(0).toTensor(), argument(1).toTensor(), argument(2).toTensor());
    case OpKind::kDropout: {
      const Tensor x = argument(0).toTensor();
      const double p = argument(kDropoutProbability).toDouble();
      const bool drops = p > 0 && argument(kDropoutProbability + 1).toBool() && inputs.drop;
      return drops ? inputs.drop(call.site, p, x) : x;
    }
    case OpKind::kAttention: {
      const double p = argument(kAttentionProbability).toDouble();
      if (p == 0 || !inputs.drop) break;
      AttentionArguments attention = {argument(0).toTensor(), argument(1).toTensor(),
                                      argument(2).toTensor(), argument(3).toOptional<Tensor>(),
                                      argument(5).toBool(),   argument(6).toOptional<double>(),
                                      argument(7).toBool()};
      return AttentionWithDropout(attention,
                                  [&](const Tensor& x) { return inputs.drop(call.site, p, x); });
    }
    case OpKind::kEmbedding:
    case OpKind::kIndex:
    case OpKind::kLayerNorm: {
      const Tensor x = argument(0).toTensor();
      if (!at::GradMode::is_enabled() || !HasNarrowSums(x)) break;
      return WithWideSums(op.kind, x, argument);
    }
    case OpKind::kOperator:
      break;
  }
  if (call.weight >= 0) {
    const ProgramWeight& weight = inputs.weights[static_cast<size_t>(call.weight)];
    const bool sums = weight.gradient_sum != nullptr;
    if (at::GradMode::is_enabled() && (sums || weight.for_input_gradient.defined())) {
      const Product& product = *FindProduct(op.name);
      const ProductWeight of_call = {weight.value,
                                     sums && !weight.for_input_gradient.defined()
                                         ? weight.value.detach()
                                         : weight.for_input_gradient,
                                     weight.gradient_sum, call.out_in};
      std::optional<Tensor> bias;
      if (product.bias.has_value()) bias = argument(*product.bias).toOptional<Tensor>();
      return ProductWithWeight(argument(product.input).toTensor(), of_call, bias);
    }
  }
  stack->clear();
  for (const OpArgument& a : op.arguments) stack->push_back(Made(a, slots, inputs.device));
  if (op.kind == OpKind::kAttention) (*stack)[kAttentionProbability] = 0.0;
  op.handle->callBoxed(stack);
  if (stack->size() == 1) return std::move((*stack)[0]);
  return c10::ivalue::Tuple::create(std::vector<IValue>(stack->begin(), stack->end()));
}

}  // namespace eps
