#include "base/job/models/model_program.h"

#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/job/models/json_fields.h"
#include "base/job/models/program_calls.h"
#include "base/status_macros.h"

namespace eps {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr int kMaxDepth = 12;
constexpr size_t kMaxText = 1024;  // of a text that only people read
constexpr size_t kMaxFiles = size_t{1} << 16;
constexpr size_t kImageRank = 3;
constexpr double kMaxInitialValue = 1e6;
constexpr double kMaxCost = 1e18;

// Reads a list of whole numbers from `low` to `high`.
std::vector<int64_t> Numbers(JsonFields* fields, const char* key, size_t max_size, Range range,
                             FirstError* error) {
  std::vector<int64_t> numbers;
  for (const json& item : fields->List(key, max_size)) {
    const bool fits = item.is_number_unsigned() && item.get<uint64_t>() >= range.low &&
                      item.get<uint64_t>() <= range.high;
    if (!fits) {
      error->Expected(fields->Where(key),
                      absl::StrCat("whole numbers from ", range.low, " to ", range.high), item);
      return {};
    }
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

// Returns the product, or -1 if it is above `limit`.
int64_t ElementsOf(const std::vector<int64_t>& shape, int64_t limit) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size > 0 && elements > limit / size) return -1;
    elements *= size;
  }
  return elements;
}

// Reads the sections of a program into `out`.
class ProgramReader {
 public:
  ProgramReader(const json& root, ModelProgram* out) : fields_(root, "", &error_), out_(out) {}

  absl::Status Read() {
    if (fields_.Whole("format", Range(kFormat, kFormat)) != kFormat) return error_.status();
    out_->architecture = fields_.Text("architecture", kMaxText);
    out_->model_type = fields_.Text("model_type", kMaxText);
    out_->made_by = fields_.Text("made_by", kMaxText);
    out_->task = fields_.Choice<ProgramTask>("task");
    out_->variant = fields_.Choice<ProgramVariant>("variant");
    out_->type = fields_.Choice<ElementType>("dtype");
    ReadShape();
    ReadHead();
    ReadConstants();
    ReadTensors();
    ReadStages();
    ReadPrograms();
    if (fields_.Has("lora")) ReadLora();
    fields_.Done();
    if (error_.ok()) CheckStages();
    return error_.status();
  }

 private:
  void ReadShape() {
    JsonFields shape(fields_.Object("shape"), "shape", &error_);
    out_->vocab_size = static_cast<uint32_t>(shape.Whole("vocab_size", Range(0, 1 << 24)));
    out_->max_seq_len = static_cast<uint32_t>(shape.Whole("max_seq_len", Range(0, 1 << 24)));
    out_->width = static_cast<uint32_t>(shape.Whole("width", Range(1, kMaxTensorCols)));
    out_->classes = static_cast<uint32_t>(shape.Whole("classes", Range(0, 1 << 24)));
    out_->tokens = static_cast<uint32_t>(shape.Whole("tokens", Range(0, 1 << 24)));
    out_->image = Numbers(&shape, "image", kImageRank, Range(1, 1 << 16), &error_);
    if (!out_->image.empty() && out_->image.size() != kImageRank) {
      error_.Set("shape.image", "expected channels, height and width");
    }
    shape.Done();
  }

  void ReadHead() {
    JsonFields head(fields_.Object("head"), "head", &error_);
    out_->head = head.Choice<HeadKind>("kind");
    out_->rowwise = head.Flag("rowwise");
    head.Done();
  }

  void ReadLora() {
    JsonFields lora(fields_.Object("lora"), "lora", &error_);
    out_->lora.r = static_cast<uint32_t>(lora.Whole("r", Range(1, kMaxTensorCols)));
    out_->lora.alpha = lora.Number("alpha", 0, kMaxInitialValue);
    out_->lora.dropout = lora.Number("dropout", 0, 1);
    out_->lora.targets = Names(&lora, "targets");
    lora.Done();
  }

  void ReadConstants() {
    for (const json& item : fields_.List("constants", kMaxProgramTextBytes)) {
      const std::string where = absl::StrCat("constants[", out_->constants.size(), "]");
      JsonFields fields(item, where, &error_);
      ProgramConstant constant;
      constant.type = fields.Choice<ElementType>("dtype");
      constant.shape =
          Numbers(&fields, "shape", kMaxProgramRank, Range(0, kMaxProgramInteger), &error_);
      const std::string base64 = fields.Text("data", 2 * kMaxProgramConstantBytes);
      fields.Done();
      if (!error_.ok()) return;
      const int64_t elements = ElementsOf(constant.shape, kMaxProgramConstantBytes);
      const bool decoded = absl::Base64Unescape(base64, &constant.bytes) &&
                           absl::Base64Escape(constant.bytes) == base64;
      if (elements < 0 || !decoded || constant.bytes.size() > kMaxProgramConstantBytes ||
          constant.bytes.size() != static_cast<uint64_t>(elements) * BytesOf(constant.type)) {
        return error_.Set(where, absl::StrCat("expected the base64 of dtype x shape, at most ",
                                              kMaxProgramConstantBytes, " bytes"));
      }
      out_->constants.push_back(std::move(constant));
    }
  }

  void ReadTensors() {
    std::set<std::string> names;
    for (const json& item : fields_.List("tensors", kMaxTensors)) {
      const std::string where = absl::StrCat("tensors[", out_->tensors.size(), "]");
      JsonFields fields(item, where, &error_);
      ProgramTensor tensor;
      tensor.name = fields.Name("name");
      tensor.shape = Numbers(&fields, "shape", kMaxProgramRank, Range(1, UINT32_MAX), &error_);
      ReadInit(fields.Object("init"), where + ".init", &tensor);
      ReadFiles(fields.Object("files"), where + ".files", &tensor);
      tensor.aliases = Names(&fields, "aliases");
      tensor.frozen = fields.Mark("frozen");
      fields.Done();
      if (!error_.ok()) return;
      if (ElementsOf(tensor.shape, int64_t{1} << 48) < 0 || tensor.cols() > kMaxTensorCols ||
          tensor.rows() > UINT32_MAX) {
        return error_.Set(where + ".shape",
                          absl::StrCat(tensor.name, " is too large: expected at most ", UINT32_MAX,
                                       " rows of ", kMaxTensorCols, " and 2^48 elements"));
      }
      if (tensor.kind == TensorFiles::kStack && tensor.rows() % tensor.files.size() != 0) {
        return error_.Set(
            where + ".files",
            absl::StrCat(tensor.name, " stacks ", tensor.files.size(),
                         " matrices of equal height, but has ", tensor.rows(), " rows"));
      }
      for (const auto* const list : {&tensor.files, &tensor.aliases}) {
        for (const std::string& name : *list) {
          if (!names.insert(name).second) {
            return error_.Set(where, absl::StrCat("the name ", name, " in files stands twice"));
          }
        }
      }
      out_->tensors.push_back(std::move(tensor));
    }
  }

  void ReadInit(const json& object, const std::string& where, ProgramTensor* tensor) {
    JsonFields init(object, where, &error_);
    tensor->init = init.Choice<Initializer>("kind");
    const bool uniform = tensor->init == Initializer::kUniform;
    const double most_a = uniform || tensor->init == Initializer::kNormal ? kMaxInitialValue : 0;
    tensor->init_a = init.Number("a", uniform ? -kMaxInitialValue : 0, most_a);
    tensor->init_b = init.Number("b", uniform ? tensor->init_a : 0, uniform ? kMaxInitialValue : 0);
    init.Done();
  }

  void ReadFiles(const json& object, const std::string& where, ProgramTensor* tensor) {
    JsonFields files(object, where, &error_);
    tensor->kind = files.Choice<TensorFiles>("kind");
    tensor->files = Names(&files, "names");
    files.Done();
    const bool stack = tensor->kind == TensorFiles::kStack;
    if (error_.ok() && (stack ? tensor->files.empty() : tensor->files.size() != 1)) {
      error_.Expected(where + ".names", stack ? "names" : "one name", object["names"]);
    }
  }

  std::vector<std::string> Names(JsonFields* fields, const char* key) {
    std::vector<std::string> names;
    for (const json& item : fields->List(key, kMaxFiles)) {
      if (!item.is_string()) {
        error_.Expected(fields->Where(key), "names", item);
        return {};
      }
      names.push_back(item.get<std::string>());
      error_.Take(CheckName(fields->Where(key), names.back(), "_.-"));
    }
    return names;
  }

  void ReadStages() {
    for (const json& item : fields_.List("stages", kMaxStages)) {
      const std::string where = absl::StrCat("stages[", out_->stages.size(), "]");
      JsonFields fields(item, where, &error_);
      ProgramStageSpec stage;
      stage.name = fields.Name("name");
      stage.program = static_cast<uint32_t>(fields.Whole("program", Range(0, kMaxStages - 1)));
      for (const json& use_item : fields.List("uses", kMaxStageUses)) {
        JsonFields use(use_item, fields.Where("uses"), &error_);
        const uint64_t most = out_->tensors.empty() ? 0 : out_->tensors.size() - 1;
        stage.uses.push_back({static_cast<uint32_t>(use.Whole("tensor", Range(0, most))),
                              use.Choice<TensorRole>("role")});
        use.Done();
        if (!error_.ok()) return;
      }
      const uint64_t most = out_->constants.empty() ? 0 : out_->constants.size() - 1;
      for (const int64_t i :
           Numbers(&fields, "constants", kMaxProgramTextBytes, Range(0, most), &error_)) {
        stage.constants.push_back(static_cast<uint32_t>(i));
      }
      stage.needs_weights = fields.Flag("needs_weights");
      fields.Done();
      if (!error_.ok()) return;
      out_->stages.push_back(std::move(stage));
    }
  }

  void ReadPrograms() {
    for (const json& item : fields_.List("programs", kMaxStages)) {
      if (!error_.ok()) return;
      out_->programs.push_back(ReadCallList(item, NameOfProgram(), kMaxCost, &error_));
    }
  }

  // Returns "stage h.0": the first stage that runs the program that is read next.
  std::string NameOfProgram() const {
    for (const ProgramStageSpec& stage : out_->stages) {
      if (stage.program == out_->programs.size()) return absl::StrCat("stage ", stage.name);
    }
    return absl::StrCat("programs[", out_->programs.size(), "], which no stage runs");
  }

  void CheckStages() {
    const size_t count = out_->stages.size();
    if (count < 2) return error_.Set("stages", absl::StrCat("expected at least 2, found ", count));
    if (out_->tensors.empty() && !out_->constants.empty()) return error_.Set("tensors", "is empty");
    std::set<uint32_t> used;
    size_t arguments = 0;
    for (size_t s = 0; s < count && error_.ok(); ++s) {
      const ProgramStageSpec& stage = out_->stages[s];
      const std::string where = absl::StrCat("stage ", stage.name);
      if (stage.program >= out_->programs.size()) {
        return error_.Set(where, absl::StrCat("runs program ", stage.program, ", there are ",
                                              out_->programs.size()));
      }
      used.insert(stage.program);
      CheckStage(stage, s == 0, s + 1 == count, where);
      arguments += CountArguments(out_->calls_of(s));
      if (arguments > kMaxProgramArguments) {
        return error_.Set(where, absl::StrCat("expected at most ", kMaxProgramArguments,
                                              " arguments in the calls of all stages"));
      }
    }
    if (error_.ok() && used.size() != out_->programs.size()) {
      error_.Set("programs", "one is run by no stage");
    }
  }

  void CheckStage(const ProgramStageSpec& stage, bool first, bool last, const std::string& where) {
    const CallList& calls = out_->programs[stage.program];
    if (calls.has_activation == first) {
      return error_.Set(where, first ? "the first stage has no activation to read"
                                     : "reads no activation, which only the first stage does");
    }
    if (calls.weights != stage.uses.size() || calls.constants != stage.constants.size()) {
      return error_.Set(where, absl::StrCat("names ", stage.uses.size(), " tensors and ",
                                            stage.constants.size(), " constants, its program has ",
                                            calls.weights, " and ", calls.constants));
    }
    for (const ProgramUse& use : stage.uses) {
      const bool linear =
          use.role == TensorRole::kLinearInOut || use.role == TensorRole::kLinearOutIn;
      const ProgramTensor& tensor = out_->tensors[use.tensor];
      if (linear && tensor.rank() != 2) {
        return error_.Set(where, absl::StrCat(tensor.name, " has the role ", NameOf(use.role),
                                              ", but is not a matrix"));
      }
    }
    if (last && out_->rowwise && HasDropout(calls)) {
      error_.Set(where, "head.rowwise is true, but the stage has a dropout");
    }
  }

  FirstError error_;
  JsonFields fields_;
  ModelProgram* const out_;
};

}  // namespace

size_t BytesOf(ElementType type) {
  switch (type) {
    case ElementType::kBool:
      return 1;
    case ElementType::kBfloat16:
    case ElementType::kFloat16:
      return 2;
    case ElementType::kFloat32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kFloat64:
    case ElementType::kInt64:
      break;
  }
  return 8;
}

uint64_t ProgramTensor::rows() const {
  uint64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= static_cast<uint64_t>(shape[i]);
  return rows;
}

absl::StatusOr<ModelProgram> ParseModelProgram(absl::string_view text) {
  if (text.size() > 2 * kMaxProgramTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("model program: expected at most ",
                                                   kMaxProgramTextBytes, " bytes of text, found ",
                                                   text.size()));
  }
  absl::StatusOr<json> root = ParseJsonObject(text, kMaxDepth);
  ModelProgram program;
  absl::Status status = root.status();
  if (status.ok()) status = ProgramReader(*root, &program).Read();
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("model program: ", status.message()));
  }
  program.text = root->dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (program.text.size() > kMaxProgramTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("model program: expected at most ",
                                                   kMaxProgramTextBytes, " bytes, found ",
                                                   program.text.size()));
  }
  return program;
}

}  // namespace eps
