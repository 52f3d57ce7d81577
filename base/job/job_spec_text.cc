// The canonical text of a job spec (docs/formats/job_spec.md). Writing and reading are one walk
// over the fields, so that they cannot disagree on the order of the lines or on a key.

#include <charconv>
#include <cmath>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/job/job_spec.h"
#include "base/job/keys.h"
#include "base/job/models/model_family.h"
#include "base/job/models/model_program.h"
#include "base/job/names.h"
#include "base/job/optimizers.h"
#include "base/job/schedule.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// Version of the text's own shape, apart from the numerics that it describes.
constexpr int kTextVersion = 1;
// Of the lines of a model program: a message shows a whole one that differs.
constexpr size_t kProgramLine = 80;
constexpr uint64_t kMaxProgramLines = kMaxProgramTextBytes / kProgramLine + 1;
constexpr size_t kShownCharacters = 80;  // a status text must stay short, a line need not be
constexpr char kFrozen[] = "frozen";

std::string Shown(absl::string_view text) {
  std::string shown;
  for (char c : text.substr(0, kShownCharacters)) shown += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > kShownCharacters) shown += "...";
  return shown;
}

// ---- values to text and back. Parse returns false for a text that is not a value; Reader checks
// the canonical spelling by formatting the value again. Splits are bounded, so that a hostile line
// costs no more than its own size.

template <class T>
std::string Format(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return NameOf(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else {
    char buffer[32];
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
  }
}

template <class T>
bool Parse(absl::string_view text, T* value) {
  if constexpr (std::is_enum_v<T>) {
    return FindName(text, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    *value = text == "true";
    return *value || text == "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    *value = std::string(text);
    return true;
  } else {
    const char* const end = text.data() + text.size();
    const std::from_chars_result result = std::from_chars(text.data(), end, *value);
    if (result.ec != std::errc() || result.ptr != end) return false;
    if constexpr (std::is_floating_point_v<T>) return std::isfinite(*value);
    return true;
  }
}

// "decay 0.01", or "head 0.01 10" with another part of the learning rate than 1, or "base 0 frozen"
template <>
std::string Format(const ParameterGroup& group) {
  std::string text = absl::StrCat(group.name, " ", Format(group.weight_decay));
  if (group.lr_multiplier != 1) absl::StrAppend(&text, " ", Format(group.lr_multiplier));
  if (group.frozen) absl::StrAppend(&text, " ", kFrozen);
  return text;
}

template <>
bool Parse(absl::string_view text, ParameterGroup* group) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::MaxSplits(' ', 3));
  group->lr_multiplier = 1;
  group->frozen = words.size() == 3 && words[2] == kFrozen;
  return (words.size() == 2 || words.size() == 3) && Parse(words[0], &group->name) &&
         Parse(words[1], &group->weight_decay) &&
         (words.size() == 2 || group->frozen || Parse(words[2], &group->lr_multiplier));
}

// "transformer.wte.weight 256x64 0 normal:0.02", "transformer.ln_f.bias 64 1 zeros",
// "lora_A 8x64 0 uniform:-0.1:0.1"
template <>
std::string Format(const TensorSpec& tensor) {
  std::string text = absl::StrCat(tensor.name, " ");
  if (tensor.rank == 2) absl::StrAppend(&text, tensor.rows, "x");
  absl::StrAppend(&text, tensor.cols, " ", tensor.group.value(), " ", Format(tensor.init));
  if (tensor.init == Initializer::kNormal) absl::StrAppend(&text, ":", Format(tensor.init_std));
  if (tensor.init == Initializer::kUniform) {
    absl::StrAppend(&text, ":", Format(tensor.init_low), ":", Format(tensor.init_high));
  }
  return text;
}

template <>
bool Parse(absl::string_view text, TensorSpec* tensor) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::MaxSplits(' ', 4));
  if (words.size() != 4) return false;
  const std::vector<absl::string_view> shape = absl::StrSplit(words[1], absl::MaxSplits('x', 2));
  const std::vector<absl::string_view> init = absl::StrSplit(words[3], absl::MaxSplits(':', 3));
  uint32_t group = 0;
  tensor->rank = static_cast<uint32_t>(shape.size());
  tensor->rows = 1;
  tensor->init_std = tensor->init_low = tensor->init_high = 0.0;
  if (shape.size() > 2 || !Parse(words[0], &tensor->name) || !Parse(words[2], &group)) return false;
  tensor->group = GroupId(group);
  if (shape.size() == 2 && !Parse(shape[0], &tensor->rows)) return false;
  if (!Parse(shape.back(), &tensor->cols) || !Parse(init[0], &tensor->init)) return false;
  if (tensor->init == Initializer::kUniform) {
    return init.size() == 3 && Parse(init[1], &tensor->init_low) &&
           Parse(init[2], &tensor->init_high);
  }
  if (tensor->init != Initializer::kNormal) return init.size() == 1;
  return init.size() == 2 && Parse(init[1], &tensor->init_std);
}

// "embedding 0:row:row 1:row:row": tensor, forward axis, backward axis
template <>
std::string Format(const StageSpec& stage) {
  std::string text = stage.name;
  for (const TensorUse& use : stage.uses) {
    absl::StrAppend(&text, " ", use.tensor.value(), ":", NameOf(use.forward_axis), ":",
                    NameOf(use.backward_axis));
  }
  return text;
}

template <>
bool Parse(absl::string_view text, StageSpec* stage) {
  bool is_name = true;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (is_name) {
      stage->name = std::string(word);
      is_name = false;
      continue;
    }
    const std::vector<absl::string_view> fields = absl::StrSplit(word, absl::MaxSplits(':', 3));
    uint32_t tensor = 0;
    TensorUse use;
    if (fields.size() != 3 || !Parse(fields[0], &tensor) || !Parse(fields[1], &use.forward_axis) ||
        !Parse(fields[2], &use.backward_axis)) {
      return false;
    }
    use.tensor = TensorId(tensor);
    stage->uses.push_back(use);
  }
  return true;
}

std::string OrDash(std::string text) { return text.empty() ? "-" : text; }

// "rmsprop 9f86d0...0f00a08 square_avg alpha=0.99,eps=1e-08", with "-" for an empty list
template <>
std::string Format(const PluginSpec& plugin) {
  const auto number = [](std::string* out, double value) { *out += Format(value); };
  const auto one = absl::PairFormatter(absl::AlphaNumFormatter(), "=", number);
  return absl::StrCat(plugin.name, " ", plugin.sha256, " ",
                      OrDash(absl::StrJoin(plugin.fields, ",")), " ",
                      OrDash(absl::StrJoin(plugin.parameters, ",", one)));
}

template <>
bool Parse(absl::string_view text, PluginSpec* plugin) {
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', 4));
  if (words.size() != 4) return false;
  *plugin = {words[0], words[1], {}, {}};
  if (words[2] != "-") plugin->fields = absl::StrSplit(words[2], ',');
  if (words[3] == "-") return true;
  for (absl::string_view word : absl::StrSplit(words[3], ',')) {
    const std::pair<absl::string_view, absl::string_view> sides = absl::StrSplit(word, '=');
    plugin->parameters.emplace_back(sides.first, 0.0);
    if (!Parse(sides.second, &plugin->parameters.back().second)) return false;
  }
  return true;
}

// "0 101 102"
template <>
std::string Format(const std::vector<uint32_t>& ids) {
  return absl::StrJoin(ids, " ");
}

template <>
bool Parse(absl::string_view text, std::vector<uint32_t>* ids) {
  for (absl::string_view word : absl::StrSplit(text, absl::MaxSplits(' ', kMaxSpecialTokens))) {
    ids->push_back(0);
    if (!Parse(word, &ids->back())) return false;
  }
  return true;
}

template <class T>
const char* Expected() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_enum_v<T>) return "a known name";
  if constexpr (std::is_floating_point_v<T>) return "a finite number in its shortest form";
  if constexpr (std::is_integral_v<T>) return "a whole number within its type's range";
  if constexpr (std::is_same_v<T, PluginSpec>) return "'name sha256 fields parameters'";
  if constexpr (std::is_same_v<T, ParameterGroup>)
    return "'name weight_decay [lr_multiplier | frozen]'";
  if constexpr (std::is_same_v<T, TensorSpec>) return "'name shape group initializer'";
  if constexpr (std::is_same_v<T, std::vector<uint32_t>>) return "ids with spaces between them";
  if constexpr (std::is_same_v<T, StageSpec>) return "'name tensor:forward_axis:backward_axis ...'";
  return "text";
}

// ---- the two ways over the lines

// The part of a visitor that Writer and Reader share: keys become lines, in the same order.
template <class Io>
class KeyLines {
 public:
  template <class T, class Rule>
  void Key(absl::string_view key, T* value, const Rule&, absl::string_view /*help*/) {
    io()->Field(key, value);
  }
  template <class T, class Usual, class Rule>
  void OptionalKey(absl::string_view key, T* value, const Usual& usual, const Rule&,
                   absl::string_view /*help*/) {
    io()->OptionalField(key, value, usual);
  }
  // Only the parameters of the optimizer that was walked before have lines.
  template <class Optimizer>
  void Parameter(const OptimizerParameter& parameter, Optimizer* optimizer) {
    if (!Has(optimizer->name, parameter)) return;
    for (const OptimizerNumber& number : parameter.numbers) Line(parameter, number, optimizer);
    if (parameter.flag_or_null != nullptr) Line(parameter, *parameter.flag_or_null, optimizer);
  }

 private:
  template <class Value, class Optimizer>
  void Line(const OptimizerParameter& parameter, const Value& value, Optimizer* optimizer) {
    if (parameter.line == OptimizerLine::kAlways) {
      io()->Field(value.line, &(optimizer->*value.value));
    } else {
      io()->OptionalField(value.line, &(optimizer->*value.value), OptimizerSettings().*value.value);
    }
  }
  Io* io() { return static_cast<Io*>(this); }
};

class Writer : public KeyLines<Writer> {
 public:
  template <class T>
  void Field(absl::string_view key, const T* value) {
    absl::StrAppend(&text_, key, " = ", Format(*value), "\n");
  }
  // A line that is left out where the value is `usual`, so that a field that came later does not
  // change the text, and the digest, of jobs that do not use it.
  template <class T>
  void OptionalField(absl::string_view key, const T* value, T usual) {
    if (*value != usual) Field(key, value);
  }
  template <class T>
  void List(absl::string_view plural, absl::string_view singular, uint64_t /*limit*/,
            const std::vector<T>* values) {
    const uint64_t count = values->size();
    Field(plural, &count);
    for (size_t i = 0; i < count; ++i) Field(absl::StrCat(singular, ".", i), &(*values)[i]);
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

// After the first error every call returns at once.
class Reader : public KeyLines<Reader> {
 public:
  explicit Reader(absl::string_view text) : rest_(text) {}

  template <class T>
  void Field(absl::string_view key, T* value) {
    if (!status_.ok()) return;
    ++line_;
    const size_t end = rest_.find('\n');
    if (end == absl::string_view::npos) {
      return Fail(absl::StrCat("expected '", key, " = ...' and a line end, found ",
                               rest_.empty() ? "the end of the text" : "none"));
    }
    const absl::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    const size_t prefix = key.size() + 3;
    if (line.substr(0, prefix) != absl::StrCat(key, " = ")) {
      return Fail(absl::StrCat("expected '", key, " = ...', found '", Shown(line), "'"));
    }
    const absl::string_view text = line.substr(prefix);
    if (!Parse(text, value)) {
      return Fail(absl::StrCat(key, ": expected ", Expected<T>(), ", found '", Shown(text), "'"));
    }
    if (const std::string canonical = Format(*value); canonical != text) {
      Fail(absl::StrCat(key, ": expected '", Shown(canonical), "' (there is one way to write a ",
                        "value), found '", Shown(text), "'"));
    }
  }

  template <class T>
  void OptionalField(absl::string_view key, T* value, T usual) {
    *value = usual;
    const std::string prefix = absl::StrCat(key, " = ");
    if (!status_.ok() || rest_.substr(0, prefix.size()) != prefix) return;
    Field(key, value);
    Require(*value != usual, absl::StrCat(key, ": the line is left out for ", Format(usual)));
  }

  template <class T>
  void List(absl::string_view plural, absl::string_view singular, uint64_t limit,
            std::vector<T>* values) {
    uint64_t count = 0;
    Field(plural, &count);
    if (!status_.ok()) return;
    if (count > limit) {
      return Fail(absl::StrCat(plural, ": expected at most ", limit, ", found ", count));
    }
    // Grows with the lines that are there: a large count costs nothing by itself.
    for (uint64_t i = 0; i < count && status_.ok(); ++i) {
      values->emplace_back();
      Field(absl::StrCat(singular, ".", i), &values->back());
    }
  }

  void Require(bool condition, absl::string_view what) {
    if (status_.ok() && !condition) Fail(what);
  }

  bool ok() const { return status_.ok(); }

  absl::Status Finish() {
    if (status_.ok() && !rest_.empty()) {
      ++line_;
      Fail(absl::StrCat("expected the end of the text, found '",
                        Shown(rest_.substr(0, rest_.find('\n'))), "'"));
    }
    return status_;
  }

 private:
  void Fail(absl::string_view what) {
    status_ = absl::InvalidArgumentError(absl::StrCat("job spec, line ", line_, ": ", what));
  }

  absl::string_view rest_;
  int line_ = 0;
  absl::Status status_;
};

// The text of a model program in lines of kProgramLine characters, the last one shorter.
std::vector<std::string> ProgramLines(absl::string_view text) {
  std::vector<std::string> lines;
  for (; !text.empty(); text.remove_prefix(lines.back().size())) {
    lines.emplace_back(text.substr(0, kProgramLine));
  }
  return lines;
}

void WalkProgram(Writer* writer, absl::string_view key,
                 std::shared_ptr<const ModelProgram>* program) {
  const std::vector<std::string> lines = ProgramLines((*program)->text);
  writer->List(absl::StrCat(key, "_lines"), key, kMaxProgramLines, &lines);
}

void WalkProgram(Reader* reader, absl::string_view key,
                 std::shared_ptr<const ModelProgram>* program) {
  std::vector<std::string> lines;
  reader->List(absl::StrCat(key, "_lines"), key, kMaxProgramLines, &lines);
  if (!reader->ok()) return;
  absl::StatusOr<ModelProgram> read = ParseModelProgram(absl::StrJoin(lines, ""));
  if (!read.ok()) return reader->Require(false, read.status().message());
  reader->Require(ProgramLines(read->text) == lines,
                  absl::StrCat(key, ": expected sorted keys without whitespace, in lines of ",
                               kProgramLine, " characters"));
  *program = std::make_shared<const ModelProgram>(*std::move(read));
}

// Turns the hyperparameters of a model into lines.
template <class Io>
class ModelLines : public ModelKeyVisitor {
 public:
  explicit ModelLines(Io* io) : io_(io) {}
  void Key(absl::string_view key, int* value, const Range&) override { io_->Field(key, value); }
  void Key(absl::string_view key, double* value, const Reals&) override { io_->Field(key, value); }
  void Key(absl::string_view key, bool* value) override { io_->Field(key, value); }
  void Key(absl::string_view key, std::shared_ptr<const ModelProgram>* value) override {
    WalkProgram(io_, key, value);
  }

 private:
  Io* const io_;
};

void WalkModel(Writer* writer, const ModelSpec* model) {
  ModelSpec copy = *model;
  writer->Field("model.type", &copy.type);
  ModelLines<Writer> lines(writer);
  FamilyOf(copy.type).Keys(&lines, &copy);
}

void WalkModel(Reader* reader, ModelSpec* model) {
  reader->Field("model.type", &model->type);
  ModelLines<Reader> lines(reader);
  FamilyOf(model->type).Keys(&lines, model);
}

// The order of the lines. `Spec` is JobSpec for a Reader and const JobSpec for a Writer.
template <class Io, class Spec>
void Walk(Io* io, Spec* spec) {
  io->Field("numerics_version", &spec->numerics_version);
  io->Field("name", &spec->name);
  WalkModel(io, &spec->model);
  OptimizerKeys(io, &spec->optimizer);
  io->OptionalField("optimizer.plugin", &spec->optimizer.plugin, PluginSpec());
  ScheduleKeys(io, &spec->schedule);
  TrainingKeys(io, &spec->training);
  ChunkKeys(io, &spec->chunk_elements);
  DataKeys(io, &spec->data);
  io->Field("data.tokens", &spec->data.tokens);
  io->Field("data.sha256", &spec->data.sha256);
  io->OptionalField("data.samples", &spec->data.samples, uint64_t{0});
  io->OptionalField("data.special_tokens", &spec->data.special_tokens, {});
  CodecKeys(io, &spec->codecs);
  StashKey(io, &spec->codecs.stash);
  io->List("groups", "group", kMaxGroups, &spec->groups);
  io->List("tensors", "tensor", kMaxTensors, &spec->tensors);
  io->List("stages", "stage", kMaxStages, &spec->stages);
}

// The next line of `*rest`, without its end; nothing if the text is over.
bool TakeLine(absl::string_view* rest, absl::string_view* line) {
  *line = rest->substr(0, rest->find('\n'));
  if (rest->empty()) return false;
  rest->remove_prefix(line->size() < rest->size() ? line->size() + 1 : line->size());
  return true;
}

}  // namespace

std::string JobSpec::ToText() const {
  Writer writer;
  writer.Field("eps_job_spec", &kTextVersion);
  Walk(&writer, this);
  return std::move(writer).text();
}

absl::StatusOr<JobSpec> JobSpec::Parse(absl::string_view text) {
  if (text.size() > kMaxSpecTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("job spec: expected at most ", kMaxSpecTextBytes,
                                                   " bytes of text, found ", text.size()));
  }
  Reader reader(text);
  int version = 0;
  reader.Field("eps_job_spec", &version);
  JobSpec spec;
  reader.Require(version == kTextVersion, absl::StrCat("eps_job_spec: expected version ",
                                                       kTextVersion, ", found ", version));
  Walk(&reader, &spec);
  EPS_RETURN_IF_ERROR(reader.Finish());
  SetBackwardNeeds(spec.model, &spec.stages);
  EPS_RETURN_IF_ERROR(spec.Validate());
  return spec;
}

std::string FirstDifference(absl::string_view theirs, absl::string_view ours) {
  absl::string_view there, here;
  for (int line = 1;; ++line) {
    const bool more_there = TakeLine(&theirs, &there);
    const bool more_here = TakeLine(&ours, &here);
    if (!more_there && !more_here) return "";
    if (more_there && more_here && there == here) continue;
    const std::pair<absl::string_view, absl::string_view> a =
        absl::StrSplit(there, absl::MaxSplits(" = ", 1));
    const std::pair<absl::string_view, absl::string_view> b =
        absl::StrSplit(here, absl::MaxSplits(" = ", 1));
    if (a.first != b.first && more_there && more_here) {
      return absl::StrCat("line ", line, ": '", Shown(there), "' there, '", Shown(here), "' here");
    }
    return absl::StrCat(Shown(more_there ? a.first : b.first), ": ",
                        more_there ? Shown(a.second) : "absent", " there, ",
                        more_here ? Shown(b.second) : "absent", " here");
  }
}

}  // namespace eps
