#include "base/job/job_spec.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/job/legality.h"
#include "base/job/schedule.h"

namespace eps {
namespace {

constexpr size_t kMaxNameLength = 256;

template <class... Parts>
absl::Status Refuse(absl::string_view key, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", parts...));
}

absl::Status InRange(absl::string_view key, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Refuse(key, "expected ", low, " to ", high, ", found ", value);
}

absl::Status IntInRange(absl::string_view key, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Refuse(key, "expected ", low, " to ", high, ", found ", value);
}

// Denormals are refused because some threads read them as zero, -0 because it equals 0 but is
// written otherwise.
absl::Status RealInRange(absl::string_view key, double value, double low, double high) {
  if (value >= low && value <= high && !std::signbit(value) &&
      (value == 0.0 || std::isnormal(value))) {
    return absl::OkStatus();
  }
  return Refuse(key, "expected a number from ", low, " to ", high, ", found ", value);
}

absl::Status BelowOne(absl::string_view key, double value) {
  if (value != 1.0) return RealInRange(key, value, 0.0, 1.0);
  return Refuse(key, "expected a number from 0 to below 1, found 1");
}

absl::Status Positive(absl::string_view key, double value) {
  if (value != 0.0) return RealInRange(key, value, 0.0, 1e30);
  return Refuse(key, "expected a number above 0, found ", value);
}

bool IsAsciiLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Letters, digits and the characters of `others`: nothing that could break a line or a field of
// the text, a file name, or a terminal.
absl::Status WellFormedName(absl::string_view key, absl::string_view name,
                            absl::string_view others) {
  if (name.size() > kMaxNameLength) {
    return Refuse(key, "expected at most ", kMaxNameLength, " characters, found ", name.size());
  }
  for (size_t i = 0; i < name.size(); ++i) {
    if (!IsAsciiLetterOrDigit(name[i]) && others.find(name[i]) == absl::string_view::npos) {
      return Refuse(key, "expected letters, digits and ", others, ", found byte ",
                    static_cast<unsigned char>(name[i]), " at position ", i);
    }
  }
  return absl::OkStatus();
}

absl::Status NonEmptyName(absl::string_view key, absl::string_view name, absl::string_view others) {
  if (name.empty()) return Refuse(key, "expected a name, found an empty one");
  return WellFormedName(key, name, others);
}

absl::Status ValidateGpt2(const Gpt2Config& c) {
  EPS_RETURN_IF_ERROR(IntInRange("model.n_layer", c.n_layer, 1, kMaxStages - 2));
  EPS_RETURN_IF_ERROR(IntInRange("model.n_head", c.n_head, 1, 1 << 16));
  EPS_RETURN_IF_ERROR(IntInRange("model.n_embd", c.n_embd, 1, 1 << 20));
  EPS_RETURN_IF_ERROR(IntInRange("model.n_inner", c.n_inner, 0, 1 << 22));
  EPS_RETURN_IF_ERROR(IntInRange("model.n_positions", c.n_positions, 1, 1 << 24));
  EPS_RETURN_IF_ERROR(IntInRange("model.vocab_size", c.vocab_size, 1, 1 << 24));
  if (c.n_embd % c.n_head != 0) {
    return Refuse("model.n_embd", "expected a multiple of model.n_head = ", c.n_head, ", found ",
                  c.n_embd);
  }
  EPS_RETURN_IF_ERROR(BelowOne("model.resid_pdrop", c.resid_pdrop));
  EPS_RETURN_IF_ERROR(BelowOne("model.embd_pdrop", c.embd_pdrop));
  EPS_RETURN_IF_ERROR(BelowOne("model.attn_pdrop", c.attn_pdrop));
  EPS_RETURN_IF_ERROR(Positive("model.layer_norm_epsilon", c.layer_norm_epsilon));
  return RealInRange("model.initializer_range", c.initializer_range, 0.0, 1e6);
}

absl::Status ValidateGroups(const JobSpec& spec) {
  EPS_RETURN_IF_ERROR(InRange("groups", spec.groups.size(), 1, kMaxGroups));
  for (size_t i = 0; i < spec.groups.size(); ++i) {
    const std::string key = absl::StrCat("group.", i);
    EPS_RETURN_IF_ERROR(NonEmptyName(key, spec.groups[i].name, "_.-"));
    EPS_RETURN_IF_ERROR(RealInRange(absl::StrCat(key, " (optimizer.weight_decay)"),
                                    spec.groups[i].weight_decay, 0.0, 1e6));
  }
  return absl::OkStatus();
}

// Chunks that a tensor can make at most; see ChunkMap::Build.
uint64_t ChunksOf(const TensorSpec& tensor, uint64_t chunk_elements) {
  if (tensor.rank == 1) return 1;
  const uint64_t fitting = chunk_elements / tensor.cols / 32 * 32;
  const uint64_t panel_rows = fitting < 32 ? 32 : fitting;
  return (tensor.rows + panel_rows - 1) / panel_rows;
}

absl::Status ValidateTensor(const JobSpec& spec, const TensorSpec& tensor, absl::string_view key) {
  EPS_RETURN_IF_ERROR(NonEmptyName(key, tensor.name, "_.-"));
  const std::string named = absl::StrCat(key, " (", tensor.name, ")");
  EPS_RETURN_IF_ERROR(InRange(absl::StrCat(named, " rank"), tensor.rank, 1, 2));
  EPS_RETURN_IF_ERROR(
      InRange(absl::StrCat(named, " rows"), tensor.rows, 1, tensor.rank == 1 ? 1 : UINT32_MAX));
  EPS_RETURN_IF_ERROR(InRange(absl::StrCat(named, " columns"), tensor.cols, 1, kMaxTensorCols));
  EPS_RETURN_IF_ERROR(
      InRange(absl::StrCat(named, " group"), tensor.group.value(), 0, spec.groups.size() - 1));
  const double max_std = tensor.init == Initializer::kNormal ? 1e6 : 0.0;
  return RealInRange(absl::StrCat(named, " initial deviation"), tensor.init_std, 0.0, max_std);
}

absl::Status ValidateTensors(const JobSpec& spec) {
  EPS_RETURN_IF_ERROR(
      InRange("training.chunk_elements", spec.chunk_elements, 1, kMaxChunkElements));
  EPS_RETURN_IF_ERROR(InRange("tensors", spec.tensors.size(), 1, kMaxTensors));
  std::set<absl::string_view> names;
  uint64_t elements = 0;
  uint64_t chunks = 0;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    const std::string key = absl::StrCat("tensor.", i);
    EPS_RETURN_IF_ERROR(ValidateTensor(spec, tensor, key));
    if (!names.insert(tensor.name).second) {
      return Refuse(key, "the name ", tensor.name, " stands twice");
    }
    // One tensor holds less than 2^55 elements, so the sum is refused before it could overflow.
    elements += tensor.elements();
    if (elements > kMaxElements) {
      return Refuse(key, "expected at most ", kMaxElements, " elements in all tensors, found ",
                    elements, " up to ", tensor.name);
    }
    chunks += ChunksOf(tensor, spec.chunk_elements);
    if (chunks > kMaxChunks) {
      return Refuse("training.chunk_elements", spec.chunk_elements, " cuts the tensors up to ",
                    tensor.name, " into ", chunks, " chunks, expected at most ", kMaxChunks,
                    "; raise it");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateStages(const JobSpec& spec) {
  EPS_RETURN_IF_ERROR(InRange("stages", spec.stages.size(), 1, kMaxStages));
  constexpr uint32_t kUnused = UINT32_MAX;
  std::vector<uint32_t> last_stage(spec.tensors.size(), kUnused);
  uint64_t uses = 0;
  for (uint32_t i = 0; i < spec.stages.size(); ++i) {
    const StageSpec& stage = spec.stages[i];
    const std::string key = absl::StrCat("stage.", i);
    EPS_RETURN_IF_ERROR(NonEmptyName(key, stage.name, "_.-"));
    if (stage.uses.empty()) return Refuse(key, stage.name, " uses no tensor");
    uses += stage.uses.size();
    if (uses > kMaxStageUses) {
      return Refuse(key, "expected at most ", kMaxStageUses, " uses in all stages, found more");
    }
    for (const TensorUse& use : stage.uses) {
      const uint32_t tensor = use.tensor.value();
      if (tensor >= spec.tensors.size()) {
        return Refuse(key, stage.name, " uses tensor ", tensor, ", but there are only ",
                      spec.tensors.size());
      }
      if (last_stage[tensor] == i) {
        return Refuse(key, stage.name, " uses ", spec.tensors[tensor].name, " twice");
      }
      last_stage[tensor] = i;
    }
  }
  for (size_t i = 0; i < last_stage.size(); ++i) {
    if (last_stage[i] == kUnused) {
      return Refuse(absl::StrCat("tensor.", i), spec.tensors[i].name, " is used by no stage");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateOptimizer(const OptimizerSpec& optimizer) {
  EPS_RETURN_IF_ERROR(RealInRange("optimizer.lr", optimizer.lr, 0.0, 1e6));
  EPS_RETURN_IF_ERROR(BelowOne("optimizer.momentum", optimizer.momentum));
  const OptimizerSpec defaults;
  const bool is_sgd = optimizer.name == OptimizerName::kSgd;
  if (is_sgd && (optimizer.beta1 != defaults.beta1 || optimizer.beta2 != defaults.beta2 ||
                 optimizer.eps != defaults.eps)) {
    return Refuse("optimizer.beta1, optimizer.beta2, optimizer.eps", "sgd has none of them");
  }
  if (!is_sgd && optimizer.momentum != 0) {
    return Refuse("optimizer.momentum", "expected 0, ", OptimizerNameText(optimizer.name),
                  " has none, found ", optimizer.momentum);
  }
  EPS_RETURN_IF_ERROR(BelowOne("optimizer.beta1", optimizer.beta1));
  EPS_RETURN_IF_ERROR(BelowOne("optimizer.beta2", optimizer.beta2));
  // Without eps the update of a weight that never had a gradient is 0/0.
  return Positive("optimizer.eps", optimizer.eps);
}

// The bounds keep every product below in uint64: samples < 2^60 and tokens per step <= 2^48.
absl::Status ValidateTraining(const TrainingSpec& t) {
  EPS_RETURN_IF_ERROR(InRange("training.steps", t.steps, 1, uint64_t{1} << 32));
  EPS_RETURN_IF_ERROR(InRange("training.micro_batch_size", t.micro_batch_size, 1, 1u << 16));
  EPS_RETURN_IF_ERROR(InRange("training.micro_batches", t.micro_batches, 1, 1u << 16));
  EPS_RETURN_IF_ERROR(InRange("training.parts", t.parts, 1, kMaxParts));
  EPS_RETURN_IF_ERROR(InRange("training.seq_len", t.seq_len, 1, 1u << 24));
  EPS_RETURN_IF_ERROR(InRange("training.loss_block_tokens", t.loss_block_tokens, 1, 1u << 24));
  const uint64_t samples = uint64_t{t.micro_batch_size} * t.micro_batches * t.parts;
  EPS_RETURN_IF_ERROR(
      InRange("training.micro_batch_size * micro_batches * parts (samples in a step)", samples, 1,
              uint64_t{1} << 28));
  EPS_RETURN_IF_ERROR(InRange("training.seq_len * samples in a step (tokens in a step)",
                              samples * t.seq_len, 1, uint64_t{1} << 48));
  EPS_RETURN_IF_ERROR(Positive("training.max_grad_norm", t.max_grad_norm));
  return CheckLegal(t);
}

absl::Status ValidateData(const JobSpec& spec) {
  const DataSpec& data = spec.data;
  EPS_RETURN_IF_ERROR(InRange("data.tokens", data.tokens, 0, uint64_t{1} << 60));
  if (data.tokens < uint64_t{spec.training.seq_len} + 1) {
    return Refuse("data.tokens",
                  "expected at least training.seq_len + 1 = ", uint64_t{spec.training.seq_len} + 1,
                  " for one sample and its labels, found ", data.tokens);
  }
  bool is_hex = data.sha256.size() == 64;
  for (char c : data.sha256) is_hex &= (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  if (!is_hex) {
    return Refuse("data.sha256", "expected 64 digits of lower-case hexadecimal, found ",
                  data.sha256.size(), " characters");
  }
  return absl::OkStatus();
}

// That the names are known, and fit their use, is checked where the codecs are (CodecTable).
absl::Status ValidateCodecs(const CodecSpec& codecs) {
  const std::pair<const char*, const std::string*> names[] = {
      {"quantization.weights", &codecs.weights},
      {"quantization.gradients", &codecs.gradients},
      {"quantization.embedding_weights", &codecs.embedding.weights},
      {"quantization.embedding_gradients", &codecs.embedding.gradients},
      {"quantization.head_weights", &codecs.head.weights},
      {"quantization.head_gradients", &codecs.head.gradients},
      {"quantization.norm_weights", &codecs.norm.weights},
      {"quantization.norm_gradients", &codecs.norm.gradients},
      {"quantization.residual", &codecs.residual},
      {"worker.stash_codec", &codecs.stash}};
  for (const auto& [key, name] : names) EPS_RETURN_IF_ERROR(NonEmptyName(key, *name, "_:."));
  return absl::OkStatus();
}

}  // namespace

uint64_t JobSpec::total_elements() const {
  uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.elements();
  return total;
}

absl::Status ValidateModel(const ModelSpec& model) {
  if (model.type == ModelType::kGpt2) return ValidateGpt2(model.gpt2);
  EPS_RETURN_IF_ERROR(IntInRange("model.n_layer", model.synthetic.n_layer, 1, kMaxStages));
  return IntInRange("model.n_embd", model.synthetic.n_embd, 1, 1 << 20);
}

absl::Status JobSpec::Validate() const {
  EPS_RETURN_IF_ERROR(
      IntInRange("numerics_version", numerics_version, kNumericsVersion, kNumericsVersion));
  EPS_RETURN_IF_ERROR(WellFormedName("name", name, "_.-"));
  EPS_RETURN_IF_ERROR(ValidateModel(model));
  EPS_RETURN_IF_ERROR(ValidateOptimizer(optimizer));
  EPS_RETURN_IF_ERROR(ValidateSchedule(schedule));
  EPS_RETURN_IF_ERROR(ValidateTraining(training));
  if (model.type == ModelType::kGpt2 &&
      training.seq_len > static_cast<uint64_t>(model.gpt2.n_positions)) {
    return Refuse("training.seq_len",
                  "expected at most the model's n_positions = ", model.gpt2.n_positions, ", found ",
                  training.seq_len);
  }
  EPS_RETURN_IF_ERROR(ValidateData(*this));
  EPS_RETURN_IF_ERROR(ValidateCodecs(codecs));
  EPS_RETURN_IF_ERROR(ValidateGroups(*this));
  EPS_RETURN_IF_ERROR(ValidateTensors(*this));
  return ValidateStages(*this);
}

Sha256Digest JobSpec::Digest() const { return Sha256Of(ToText()); }

JobId JobSpec::id() const {
  const Sha256Digest digest = Digest();
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | digest[i];
  return JobId(value);
}

}  // namespace eps
