#include "worker/models/program_ops.h"

#include <utility>

#include "ATen/ScalarOps.h"
#include "ATen/core/jit_type.h"
#include "absl/strings/str_cat.h"
#include "base/job/models/program_calls.h"
#include "base/status_macros.h"

namespace eps {
namespace {

using Kind = ProgramArgument::Kind;
using Form = OpArgument::Form;
using c10::IValue;
using c10::TypeKind;

// Operators of which only the schema is LibTorch's, and calls without one.
struct OwnOp {
  const char* name;
  OpKind kind;
};
constexpr OwnOp kSubstituted[] = {{kDropoutOp, OpKind::kDropout},
                                  {kAttentionOp, OpKind::kAttention},
                                  {"aten::embedding", OpKind::kEmbedding},
                                  {"aten::index.Tensor", OpKind::kIndex},
                                  {"aten::layer_norm", OpKind::kLayerNorm}};
constexpr OwnOp kOwn[] = {
    {"item", OpKind::kItem},
    {"int.add", OpKind::kAdd},
    {"int.sub", OpKind::kSub},
    {"int.mul", OpKind::kMul},
    {"int.floordiv", OpKind::kFloorDiv},
    {"grouped_mm", OpKind::kGroupedMm},
};

// A number where the operator takes a tensor, as LibTorch's Python passes it: it does not promote
// the type of the other operands.
at::Tensor NumberTensor(const c10::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

bool IsNumber(const ProgramArgument& a) {
  return a.kind == Kind::kInteger || a.kind == Kind::kReal || a.kind == Kind::kBool;
}
c10::Scalar NumberOf(const ProgramArgument& a) {
  if (a.kind == Kind::kReal) return a.real;
  if (a.kind == Kind::kBool) return a.integer != 0;
  return a.integer;
}

// Converts the arguments of one call.
class Converter {
 public:
  explicit Converter(const std::vector<SlotType>& slots) : slots_(slots) {}

  // `type` is the schema's; `real_type` tells element types apart from integers.
  absl::StatusOr<OpArgument> Convert(const ProgramArgument& a, c10::TypePtr type,
                                     c10::TypePtr real_type) const {
    if (const auto optional = type->cast<c10::OptionalType>()) {
      if (a.kind == Kind::kNone) return Literal(IValue());
      type = optional->getElementType();
      if (const auto real = real_type->cast<c10::OptionalType>())
        real_type = real->getElementType();
    }
    switch (real_type->kind()) {
      case TypeKind::ScalarTypeType:
        if (a.kind != Kind::kElementType) return Mismatch("an element type");
        return Literal(static_cast<int64_t>(ScalarTypeOf(a.type)));
      case TypeKind::MemoryFormatType:
        if (a.kind != Kind::kMemoryFormat) return Mismatch("a memory format");
        return Literal(static_cast<int64_t>(a.text == "contiguous" ? at::MemoryFormat::Contiguous
                                                                   : at::MemoryFormat::Preserve));
      case TypeKind::DeviceObjType:
        if (a.kind != Kind::kDevice) return Mismatch("a device");
        return Formed(Form::kDevice);
      case TypeKind::LayoutType:
      case TypeKind::GeneratorType:
        return Mismatch("null");
      default:
        break;
    }
    if (a.kind == Kind::kSlot) return Slot(static_cast<uint32_t>(a.integer), *type);
    if (a.kind == Kind::kList) return List(a, *type);
    return Plain(a, *type);
  }

 private:
  static OpArgument Literal(IValue value) {
    OpArgument argument;
    argument.value = std::move(value);
    return argument;
  }
  static OpArgument Formed(Form form, uint32_t slot = 0) {
    OpArgument argument;
    argument.form = form;
    argument.slot = slot;
    return argument;
  }
  static absl::Status Mismatch(absl::string_view expected) {
    return absl::InvalidArgumentError(absl::StrCat("expected ", expected));
  }

  absl::StatusOr<OpArgument> Slot(uint32_t slot, const c10::Type& type) const {
    const SlotType found = slots_[slot];
    const bool number = found == SlotType::kInteger || found == SlotType::kReal;
    switch (type.kind()) {
      case TypeKind::TensorType:
        if (found == SlotType::kTensor) return Formed(Form::kSlot, slot);
        if (number) return Formed(Form::kTensor, slot);
        break;
      case TypeKind::NumberType:
        if (number) return Formed(Form::kSlot, slot);
        break;
      case TypeKind::IntType:
        if (found == SlotType::kInteger) return Formed(Form::kSlot, slot);
        break;
      case TypeKind::FloatType:
        if (number) return Formed(Form::kReal, slot);
        break;
      case TypeKind::BoolType:
        if (found == SlotType::kFlag) return Formed(Form::kSlot, slot);
        break;
      case TypeKind::ListType: {
        const TypeKind element = type.containedType(0)->kind();
        if (element == TypeKind::TensorType && found == SlotType::kTensors) {
          return Formed(Form::kSlot, slot);
        }
        if (element == TypeKind::IntType && found == SlotType::kInteger) {
          return Formed(Form::kOneInteger, slot);
        }
        break;
      }
      default:
        break;
    }
    return Mismatch(absl::StrCat(type.str(), ", slot ", slot, " holds another type"));
  }

  static absl::StatusOr<OpArgument> Plain(const ProgramArgument& a, const c10::Type& type) {
    switch (type.kind()) {
      case TypeKind::TensorType:
        if (IsNumber(a)) return Literal(NumberTensor(NumberOf(a)));
        break;
      case TypeKind::NumberType:
        if (IsNumber(a)) return Literal(NumberOf(a));
        break;
      case TypeKind::IntType:
        if (a.kind == Kind::kInteger) return Literal(a.integer);
        break;
      case TypeKind::FloatType:
        if (a.kind == Kind::kInteger) return Literal(static_cast<double>(a.integer));
        if (a.kind == Kind::kReal) return Literal(a.real);
        break;
      case TypeKind::BoolType:
        if (a.kind == Kind::kBool) return Literal(a.integer != 0);
        break;
      case TypeKind::StringType:
        if (a.kind == Kind::kText) return Literal(a.text);
        break;
      case TypeKind::ListType:
        if (type.containedType(0)->kind() == TypeKind::IntType && a.kind == Kind::kInteger) {
          return Literal(c10::List<int64_t>({a.integer}));
        }
        break;
      default:
        break;
    }
    return Mismatch(type.str());
  }

  absl::StatusOr<OpArgument> List(const ProgramArgument& a, const c10::Type& type) const {
    if (type.kind() != TypeKind::ListType) return Mismatch(type.str());
    const c10::TypePtr element = type.containedType(0);
    OpArgument list;
    switch (element->kind()) {
      case TypeKind::TensorType:
        list.form = Form::kTensors;
        break;
      case TypeKind::IntType:
        list.form = Form::kIntegers;
        break;
      case TypeKind::OptionalType:
        if (element->containedType(0)->kind() != TypeKind::TensorType) return Mismatch(type.str());
        list.form = Form::kMaybeTensors;
        break;
      default:
        return Mismatch(type.str());
    }
    for (const ProgramArgument& item : a.items) {
      if (item.kind == Kind::kList) return Mismatch(type.str());
      EPS_ASSIGN_OR_RETURN(OpArgument converted, Convert(item, element, element));
      list.items.push_back(std::move(converted));
    }
    return list;
  }

  const std::vector<SlotType>& slots_;
};

absl::StatusOr<SlotType> ResultOf(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  if (returns.size() > 1) {
    for (const auto& value : returns) {
      if (value.type()->kind() != TypeKind::TensorType) {
        return absl::InvalidArgumentError("returns several values that are not all tensors");
      }
    }
    return SlotType::kTensors;
  }
  if (returns.size() == 1) {
    switch (returns[0].type()->kind()) {
      case TypeKind::TensorType:
        return SlotType::kTensor;
      case TypeKind::IntType:
        return SlotType::kInteger;
      case TypeKind::FloatType:
        return SlotType::kReal;
      case TypeKind::BoolType:
        return SlotType::kFlag;
      case TypeKind::ListType:
        return SlotType::kTensors;
      default:
        break;
    }
  }
  return absl::InvalidArgumentError("returns a type that no slot holds");
}

// The calls without a schema take slots or integers.
absl::StatusOr<Op> ConvertOwn(const ProgramCall& call, OpKind kind,
                              const std::vector<SlotType>& slots) {
  Op op;
  op.kind = kind;
  op.name = call.op;
  const bool item = kind == OpKind::kItem, grouped = kind == OpKind::kGroupedMm;
  const size_t count = grouped ? 3 : 2;
  if (call.arguments.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("expected ", count, " arguments"));
  }
  op.result = item || grouped ? SlotType::kTensor : SlotType::kInteger;
  for (size_t i = 0; i < count; ++i) {
    const ProgramArgument& a = call.arguments[i];
    SlotType expected = SlotType::kInteger;
    if (grouped) expected = SlotType::kTensor;
    if (item && i == 0) expected = SlotType::kTensors;
    OpArgument argument;
    if (a.kind == Kind::kSlot) {
      argument.form = Form::kSlot;
      argument.slot = static_cast<uint32_t>(a.integer);
      if (slots[argument.slot] != expected) {
        return absl::InvalidArgumentError(absl::StrCat("argument ", i, " has another type"));
      }
    } else if (a.kind == Kind::kInteger && expected == SlotType::kInteger) {
      argument.value = a.integer;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("argument ", i, " has another type"));
    }
    op.arguments.push_back(std::move(argument));
  }
  return op;
}

}  // namespace

at::ScalarType ScalarTypeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return at::kFloat;
    case ElementType::kBfloat16:
      return at::kBFloat16;
    case ElementType::kFloat16:
      return at::kHalf;
    case ElementType::kFloat64:
      return at::kDouble;
    case ElementType::kInt64:
      return at::kLong;
    case ElementType::kInt32:
      return at::kInt;
    case ElementType::kBool:
      break;
  }
  return at::kBool;
}

absl::StatusOr<Op> ConvertCall(const ProgramCall& call, const std::vector<SlotType>& slots) {
  for (const OwnOp& own : kOwn) {
    if (call.op == own.name) return ConvertOwn(call, own.kind, slots);
  }
  Op op;
  op.name = call.op;
  for (const OwnOp& substituted : kSubstituted) {
    if (call.op == substituted.name) op.kind = substituted.kind;
  }
  const size_t dot = call.op.find('.');
  const std::string overload = dot == std::string::npos ? "" : call.op.substr(dot + 1);
  op.handle = c10::Dispatcher::singleton().findSchema({call.op.substr(0, dot), overload});
  if (!op.handle.has_value()) {
    return absl::InvalidArgumentError("is not an operator of this LibTorch");
  }
  const c10::FunctionSchema& schema = op.handle->schema();
  if (call.arguments.size() > schema.arguments().size()) {
    return absl::InvalidArgumentError(absl::StrCat("takes at most ", schema.arguments().size(),
                                                   " arguments, found ", call.arguments.size()));
  }
  const Converter converter(slots);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& expected = schema.arguments()[i];
    if (i < call.arguments.size()) {
      absl::StatusOr<OpArgument> converted =
          converter.Convert(call.arguments[i], expected.type(), expected.real_type());
      if (!converted.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("argument ", expected.name(), ": ", converted.status().message()));
      }
      op.arguments.push_back(*std::move(converted));
    } else if (expected.default_value().has_value()) {
      op.arguments.emplace_back().value = *expected.default_value();
    } else {
      return absl::InvalidArgumentError(absl::StrCat("lacks its argument ", expected.name()));
    }
  }
  EPS_ASSIGN_OR_RETURN(op.result, ResultOf(schema));
  return op;
}

}  // namespace eps
