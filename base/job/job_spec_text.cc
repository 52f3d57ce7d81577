// The canonical text of a job spec (docs/formats/job_spec.md). Writing and reading are one walk
// over the fields, so that they cannot disagree on the order of the lines or on a key.

#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/job/job_spec.h"

namespace eps {
namespace {

// Version of the text's own shape, apart from the numerics that it describes.
constexpr int kTextVersion = 1;
constexpr size_t kShownCharacters = 80;  // a status text must stay short, a line need not be

std::string Shown(absl::string_view text) {
  std::string shown;
  for (char c : text.substr(0, kShownCharacters)) shown += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > kShownCharacters) shown += "...";
  return shown;
}

// ---- names of enumerated values, in the order of the enumerators

template <class E>
struct Names;
template <>
struct Names<ModelType> {
  static constexpr std::array<const char*, 2> kAll = {"gpt2", "synthetic"};
};
template <>
struct Names<Initializer> {
  static constexpr std::array<const char*, 3> kAll = {"zeros", "ones", "normal"};
};
template <>
struct Names<Axis> {
  static constexpr std::array<const char*, 2> kAll = {"row", "column"};
};
template <>
struct Names<OptimizerName> {
  static constexpr std::array<const char*, 2> kAll = {"adamw", "sgd"};
};
template <>
struct Names<Mode> {
  static constexpr std::array<const char*, 2> kAll = {"eager", "sealed"};
};
template <>
struct Names<Clip> {
  static constexpr std::array<const char*, 3> kAll = {"none", "lagged", "exact"};
};
template <>
struct Names<Replay> {
  static constexpr std::array<const char*, 1> kAll = {"rollback"};
};
template <>
struct Names<Nonfinite> {
  static constexpr std::array<const char*, 2> kAll = {"halt", "skip"};
};
template <>
struct Names<BackwardWeights> {
  static constexpr std::array<const char*, 3> kAll = {"recompute_axis", "both_axes", "decode_once"};
};
template <>
struct Names<ResidualHome> {
  static constexpr std::array<const char*, 2> kAll = {"server", "worker"};
};
template <>
struct Names<Determinism> {
  static constexpr std::array<const char*, 2> kAll = {"strict", "relaxed"};
};
template <>
struct Names<DataOrder> {
  static constexpr std::array<const char*, 2> kAll = {"sequential", "shuffled"};
};

template <class E>
const char* NameOf(E value) {
  return Names<E>::kAll[static_cast<size_t>(value)];
}

// ---- values to text and back. Parse returns false for what is no such value; whether it is the
// canonical spelling is checked once, by writing it again. Splits are bounded, so that a hostile
// line costs no more than its own size.

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
    for (size_t i = 0; i < Names<T>::kAll.size(); ++i) {
      if (text != Names<T>::kAll[i]) continue;
      *value = static_cast<T>(i);
      return true;
    }
    return false;
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

// "decay 0.01"
template <>
std::string Format(const ParameterGroup& group) {
  return absl::StrCat(group.name, " ", Format(group.weight_decay));
}

template <>
bool Parse(absl::string_view text, ParameterGroup* group) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  return words.size() == 2 && Parse(words[0], &group->name) &&
         Parse(words[1], &group->weight_decay);
}

// "transformer.wte.weight 256x64 0 normal:0.02", "transformer.ln_f.bias 64 1 zeros"
template <>
std::string Format(const TensorSpec& tensor) {
  std::string text = absl::StrCat(tensor.name, " ");
  if (tensor.rank == 2) absl::StrAppend(&text, tensor.rows, "x");
  absl::StrAppend(&text, tensor.cols, " ", tensor.group.value(), " ", Format(tensor.init));
  if (tensor.init == Initializer::kNormal) absl::StrAppend(&text, ":", Format(tensor.init_std));
  return text;
}

template <>
bool Parse(absl::string_view text, TensorSpec* tensor) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::MaxSplits(' ', 4));
  if (words.size() != 4) return false;
  const std::vector<absl::string_view> shape = absl::StrSplit(words[1], absl::MaxSplits('x', 2));
  const std::vector<absl::string_view> init = absl::StrSplit(words[3], absl::MaxSplits(':', 2));
  uint32_t group = 0;
  tensor->rank = static_cast<uint32_t>(shape.size());
  tensor->rows = 1;
  tensor->init_std = 0.0;
  if (shape.size() > 2 || !Parse(words[0], &tensor->name) || !Parse(words[2], &group)) return false;
  tensor->group = GroupId(group);
  if (shape.size() == 2 && !Parse(shape[0], &tensor->rows)) return false;
  if (!Parse(shape.back(), &tensor->cols) || !Parse(init[0], &tensor->init)) return false;
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

template <class T>
const char* Expected() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_enum_v<T>) return "a known name";
  if constexpr (std::is_floating_point_v<T>) return "a finite number in its shortest form";
  if constexpr (std::is_integral_v<T>) return "a whole number within its type's range";
  if constexpr (std::is_same_v<T, ParameterGroup>) return "'name weight_decay'";
  if constexpr (std::is_same_v<T, TensorSpec>) return "'name shape group initializer'";
  if constexpr (std::is_same_v<T, StageSpec>) return "'name tensor:forward_axis:backward_axis ...'";
  return "text";
}

// ---- the two ways over the lines

class Writer {
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
class Reader {
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

template <class Io, class Model>
void WalkModel(Io* io, Model* model) {
  io->Field("model.type", &model->type);
  if (model->type == ModelType::kSynthetic) {
    auto* c = &model->synthetic;
    io->Field("model.n_layer", &c->n_layer);
    io->Field("model.n_embd", &c->n_embd);
    io->Field("model.tied", &c->tied);
    return;
  }
  auto* c = &model->gpt2;
  io->Field("model.n_layer", &c->n_layer);
  io->Field("model.n_head", &c->n_head);
  io->Field("model.n_embd", &c->n_embd);
  io->Field("model.n_inner", &c->n_inner);
  io->Field("model.n_positions", &c->n_positions);
  io->Field("model.vocab_size", &c->vocab_size);
  io->Field("model.tie_word_embeddings", &c->tie_word_embeddings);
  io->Field("model.resid_pdrop", &c->resid_pdrop);
  io->Field("model.embd_pdrop", &c->embd_pdrop);
  io->Field("model.attn_pdrop", &c->attn_pdrop);
  io->Field("model.layer_norm_epsilon", &c->layer_norm_epsilon);
  io->Field("model.initializer_range", &c->initializer_range);
}

template <class Io, class Optimizer>
void WalkOptimizer(Io* io, Optimizer* o) {
  io->Field("optimizer.name", &o->name);
  io->Field("optimizer.lr", &o->lr);
  if (o->name == OptimizerName::kSgd) {
    io->Field("optimizer.momentum", &o->momentum);
    return;
  }
  io->Field("optimizer.beta1", &o->beta1);
  io->Field("optimizer.beta2", &o->beta2);
  io->Field("optimizer.eps", &o->eps);
}

template <class Io, class Training>
void WalkTraining(Io* io, Training* t) {
  io->Field("training.steps", &t->steps);
  io->Field("training.micro_batch_size", &t->micro_batch_size);
  io->Field("training.micro_batches", &t->micro_batches);
  io->Field("training.parts", &t->parts);
  io->Field("training.seq_len", &t->seq_len);
  io->Field("training.seed", &t->seed);
  io->Field("training.mode", &t->mode);
  io->Field("training.clip", &t->clip);
  io->Field("training.max_grad_norm", &t->max_grad_norm);
  io->OptionalField("training.nonfinite", &t->nonfinite, Nonfinite::kHalt);
  io->Field("training.replay", &t->replay);
  io->Field("training.determinism", &t->determinism);
  io->Field("training.loss_block_tokens", &t->loss_block_tokens);
}

template <class Io, class Codecs>
void WalkCodecs(Io* io, Codecs* c) {
  const CodecSpec usual;
  io->Field("quantization.weights", &c->weights);
  io->Field("quantization.gradients", &c->gradients);
  io->OptionalField("quantization.embedding_weights", &c->embedding.weights, usual.weights);
  io->OptionalField("quantization.embedding_gradients", &c->embedding.gradients, usual.gradients);
  io->OptionalField("quantization.head_weights", &c->head.weights, usual.weights);
  io->OptionalField("quantization.head_gradients", &c->head.gradients, usual.gradients);
  io->OptionalField("quantization.norm_weights", &c->norm.weights, usual.weights);
  io->OptionalField("quantization.norm_gradients", &c->norm.gradients, usual.gradients);
  io->OptionalField("quantization.backward_weights", &c->backward_weights, usual.backward_weights);
  io->OptionalField("quantization.warmup_steps", &c->warmup_steps, usual.warmup_steps);
  io->OptionalField("quantization.error_feedback", &c->error_feedback, usual.error_feedback);
  io->OptionalField("quantization.residual_home", &c->residual_home, usual.residual_home);
  io->OptionalField("quantization.residual", &c->residual, usual.residual);
  io->OptionalField("worker.stash_codec", &c->stash, usual.stash);
}

// The order of the lines. `Spec` is JobSpec for a Reader and const JobSpec for a Writer.
template <class Io, class Spec>
void Walk(Io* io, Spec* spec) {
  io->Field("numerics_version", &spec->numerics_version);
  io->Field("name", &spec->name);
  WalkModel(io, &spec->model);
  WalkOptimizer(io, &spec->optimizer);
  io->Field("lr_scheduler.name", &spec->schedule.name);
  io->Field("lr_scheduler.warmup_steps", &spec->schedule.warmup_steps);
  io->Field("lr_scheduler.min_lr_ratio", &spec->schedule.min_lr_ratio);
  io->Field("lr_scheduler.num_cycles", &spec->schedule.num_cycles);
  io->Field("lr_scheduler.power", &spec->schedule.power);
  WalkTraining(io, &spec->training);
  io->Field("training.chunk_elements", &spec->chunk_elements);
  io->Field("data.order", &spec->data.order);
  io->Field("data.tokens", &spec->data.tokens);
  io->Field("data.sha256", &spec->data.sha256);
  WalkCodecs(io, &spec->codecs);
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

const char* ModeName(Mode mode) { return NameOf(mode); }
const char* ClipName(Clip clip) { return NameOf(clip); }
const char* DataOrderName(DataOrder order) { return NameOf(order); }
const char* OptimizerNameText(OptimizerName name) { return NameOf(name); }
const char* ReplayName(Replay replay) { return NameOf(replay); }
const char* NonfiniteName(Nonfinite nonfinite) { return NameOf(nonfinite); }
const char* BackwardWeightsName(BackwardWeights value) { return NameOf(value); }
const char* ResidualHomeName(ResidualHome home) { return NameOf(home); }
const char* DeterminismName(Determinism determinism) { return NameOf(determinism); }
const char* ModelTypeName(ModelType type) { return NameOf(type); }

}  // namespace eps
