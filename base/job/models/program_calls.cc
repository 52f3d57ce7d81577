#include "base/job/models/program_calls.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/job/models/program_operators.h"

namespace eps {
namespace {

using nlohmann::json;
using Kind = ProgramArgument::Kind;

constexpr size_t kMaxOpName = 128;
constexpr size_t kMaxItems = size_t{1} << 16;  // of one list
constexpr size_t kMaxTextArgument = 64;

// Reads the arguments of one call.
class ArgumentReader {
 public:
  // A call may read the slots below `slots`. `where` names it in messages. `count` is that of the
  // arguments of the program.
  ArgumentReader(uint32_t slots, std::string where, size_t* count, FirstError* error)
      : slots_(slots), where_(std::move(where)), count_(count), error_(error) {}

  std::vector<ProgramArgument> ReadList(const json& items) {
    std::vector<ProgramArgument> arguments;
    if (items.size() > kMaxItems) {
      error_->Expected(where_, absl::StrCat("at most ", kMaxItems, " arguments"), items);
      return arguments;
    }
    for (const json& item : items) {
      if (++*count_ > kMaxProgramArguments) {
        error_->Set(where_,
                    absl::StrCat("the calls have more than ", kMaxProgramArguments, " arguments"));
      }
      if (!error_->ok()) break;
      arguments.push_back(Read(item));
    }
    return arguments;
  }

 private:
  ProgramArgument Read(const json& item) {
    ProgramArgument argument;
    if (item.is_boolean()) {
      argument.kind = Kind::kBool;
      argument.integer = item.get<bool>() ? 1 : 0;
    } else if (item.is_number_integer()) {
      argument.kind = Kind::kInteger;
      argument.integer = Integer(item);
    } else if (item.is_number()) {
      argument.kind = Kind::kReal;
      argument.real = item.get<double>();
    } else if (item.is_string()) {
      argument.kind = Kind::kText;
      argument.text = item.get<std::string>();
      if (argument.text.size() > kMaxTextArgument) error_->Expected(where_, "a short text", item);
    } else if (item.is_array()) {
      argument.kind = Kind::kList;
      argument.items = ReadList(item);
      CheckProduct(argument.items);
    } else if (item.is_object()) {
      ReadObject(item, &argument);
    }
    return argument;  // else null
  }

  int64_t Integer(const json& item) {
    const bool too_large = item.is_number_unsigned() &&
                           item.get<uint64_t>() > static_cast<uint64_t>(kMaxProgramInteger);
    if (!too_large && item.get<int64_t>() >= -kMaxProgramInteger) return item.get<int64_t>();
    error_->Expected(where_, absl::StrCat("whole numbers up to ", kMaxProgramInteger), item);
    return 0;
  }

  // A list of integers may be a shape.
  void CheckProduct(const std::vector<ProgramArgument>& items) {
    int64_t product = 1;
    for (const ProgramArgument& item : items) {
      if (item.kind != Kind::kInteger || item.integer < 1) continue;
      product *= item.integer;
      if (product > kMaxProgramElements) {
        return error_->Set(
            where_, absl::StrCat("a list of integers has a product above ", kMaxProgramElements));
      }
    }
  }

  // {"slot": 3}, {"dtype": "float32"}, {"device": ""}, {"memory_format": "preserve"} or
  // {"float": "-inf"}.
  void ReadObject(const json& item, ProgramArgument* argument) {
    JsonFields fields(item, where_, error_);
    if (item.contains("slot")) {
      argument->kind = Kind::kSlot;
      argument->integer = fields.Whole("slot", Range(0, UINT32_MAX));
      if (error_->ok() && argument->integer >= slots_) {
        error_->Set(where_, absl::StrCat("reads slot ", argument->integer,
                                         ", but only those below ", slots_, " are defined before"));
      }
    } else if (item.contains("dtype")) {
      argument->kind = Kind::kElementType;
      argument->type = fields.Choice<ElementType>("dtype");
    } else if (item.contains("device")) {
      argument->kind = Kind::kDevice;
      fields.Text("device", 0);
    } else if (item.contains("memory_format")) {
      argument->kind = Kind::kMemoryFormat;
      argument->text = fields.Text("memory_format", kMaxTextArgument);
      if (argument->text != "contiguous" && argument->text != "preserve") {
        error_->Expected(where_, "memory_format contiguous or preserve", item["memory_format"]);
      }
    } else if (item.contains("float")) {
      argument->kind = Kind::kReal;
      argument->real = NamedReal(fields.Text("float", kMaxTextArgument), item["float"]);
    } else {
      error_->Expected(where_, "an argument", item);
    }
    fields.Done();
  }

  double NamedReal(const std::string& name, const json& found) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (name == "inf") return kInfinity;
    if (name == "-inf") return -kInfinity;
    if (name != "nan") error_->Expected(where_, "float inf, -inf or nan", found);
    return std::numeric_limits<double>::quiet_NaN();
  }

  const int64_t slots_;
  const std::string where_;
  size_t* const count_;
  FirstError* const error_;
};

ProgramCost ReadCost(JsonFields* fields, const char* key, double max_cost, FirstError* error) {
  const json& pair = fields->List(key, 2);
  double values[2] = {};
  bool valid = pair.size() == 2;
  for (size_t i = 0; i < 2 && valid; ++i) {
    valid = pair[i].is_number();
    if (valid) values[i] = pair[i].get<double>();
    valid = valid && values[i] >= 0 && values[i] <= max_cost;
  }
  if (!valid) {
    error->Set(fields->Where(key), absl::StrCat("expected two numbers from 0 to ", max_cost));
  }
  return {values[0], values[1]};
}

size_t Count(const std::vector<ProgramArgument>& arguments) {
  size_t count = arguments.size();
  for (const ProgramArgument& argument : arguments) count += Count(argument.items);
  return count;
}

}  // namespace

CallList ReadCallList(const json& item, const std::string& where, double max_cost,
                      FirstError* error) {
  CallList list;
  JsonFields fields(item, where, error);
  list.has_activation = fields.Flag("activation");
  list.weights = static_cast<uint32_t>(fields.Whole("weights", Range(1, kMaxStageUses)));
  list.constants = static_cast<uint32_t>(fields.Whole("constants", Range(0, kMaxProgramTextBytes)));
  for (const json& name : fields.List("inputs", kNames<ProgramInput>.size())) {
    ProgramInput input{};
    if (!name.is_string() || !FindName(name.get_ref<const std::string&>(), &input)) {
      error->Expected(fields.Where("inputs"), "names of columns", name);
      return list;
    }
    list.inputs.push_back(input);
  }
  uint32_t slots = list.first_call();
  size_t count = 0;
  for (const json& call : fields.List("calls", kMaxProgramCalls)) {
    if (!error->ok()) return list;
    const std::string place = absl::StrCat(where, ", call ", list.calls.size());
    if (!call.is_array() || call.size() != 2 || !call[0].is_string() || !call[1].is_array() ||
        call[0].get_ref<const std::string&>().size() > kMaxOpName) {
      error->Expected(place, "[operator, arguments]", call);
      return list;
    }
    ProgramCall read;
    read.op = call[0].get<std::string>();
    if (!IsProgramOperator(read.op)) {
      error->Set(absl::StrCat(place, " (", ShowJson(call[0]), ")"),
                 "is not among the operators that a program may call");
      return list;
    }
    ArgumentReader reader(slots, absl::StrCat(place, " (", read.op, ")"), &count, error);
    read.arguments = reader.ReadList(call[1]);
    list.calls.push_back(std::move(read));
    ++slots;
  }
  list.output = static_cast<uint32_t>(fields.Whole("output", Range(0, slots - 1)));
  list.flops = ReadCost(&fields, "flops", max_cost, error);
  list.saved = ReadCost(&fields, "saved", max_cost, error);
  fields.Done();
  return list;
}

size_t CountArguments(const CallList& calls) {
  size_t count = calls.calls.size();
  for (const ProgramCall& call : calls.calls) count += Count(call.arguments);
  return count;
}

bool HasDropout(const CallList& calls) {
  for (const ProgramCall& call : calls.calls) {
    const size_t at = call.op == kDropoutOp ? kDropoutProbability : kAttentionProbability;
    if (call.op != kDropoutOp && call.op != kAttentionOp) continue;
    if (call.arguments.size() <= at) continue;
    const ProgramArgument& p = call.arguments[at];
    if (p.kind != Kind::kInteger && p.kind != Kind::kReal) return true;
    if (p.integer != 0 || p.real != 0) return true;
  }
  return false;
}

}  // namespace eps
