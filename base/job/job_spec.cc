#include "base/job/job_spec.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/job/key_rules.h"
#include "base/job/legality.h"
#include "base/job/optimizers.h"
#include "base/job/schedule.h"
#include "base/plugin/names.h"
#include "base/status_macros.h"

namespace eps {
namespace {

absl::Status ValidateGroups(const JobSpec& spec) {
  EPS_RETURN_IF_ERROR(CheckRule("groups", spec.groups.size(), Range(1, kMaxGroups)));
  for (size_t i = 0; i < spec.groups.size(); ++i) {
    const std::string key = absl::StrCat("group.", i);
    EPS_RETURN_IF_ERROR(CheckName(key, spec.groups[i].name, "_.-"));
    EPS_RETURN_IF_ERROR(CheckRule(absl::StrCat(key, " (optimizer.weight_decay)"),
                                  spec.groups[i].weight_decay, Reals(0.0, kMaxFactor)));
    EPS_RETURN_IF_ERROR(CheckRule(absl::StrCat(key, " (optimizer.groups, lr_multiplier)"),
                                  spec.groups[i].lr_multiplier, Reals(0.0, kMaxFactor)));
    if (spec.groups[i].frozen &&
        (spec.groups[i].weight_decay != 0 || spec.groups[i].lr_multiplier != 1)) {
      return Refuse(key, "a frozen group has the weight decay 0 and the multiplier 1");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateFrozen(const JobSpec& spec) {
  for (const TensorSpec& tensor : spec.tensors) {
    if (!spec.groups[tensor.group.value()].frozen) return absl::OkStatus();
  }
  return Refuse("optimizer.groups",
                "all tensors of the model are frozen, so nothing is left to train; let at least "
                "one rule be without frozen");
}

absl::Status ValidateTensor(const JobSpec& spec, const TensorSpec& tensor, absl::string_view key) {
  EPS_RETURN_IF_ERROR(CheckName(key, tensor.name, "_.-"));
  const std::string named = absl::StrCat(key, " (", tensor.name, ")");
  EPS_RETURN_IF_ERROR(CheckRule(absl::StrCat(named, " rank"), tensor.rank, Range(1, 2)));
  EPS_RETURN_IF_ERROR(CheckRule(absl::StrCat(named, " rows"), tensor.rows,
                                Range(1, tensor.rank == 1 ? 1 : UINT32_MAX)));
  EPS_RETURN_IF_ERROR(
      CheckRule(absl::StrCat(named, " columns"), tensor.cols, Range(1, kMaxTensorCols)));
  EPS_RETURN_IF_ERROR(CheckRule(absl::StrCat(named, " group"), tensor.group.value(),
                                Range(0, spec.groups.size() - 1)));
  constexpr double kMost = 1e6;
  const double max_std = tensor.init == Initializer::kNormal ? kMost : 0.0;
  EPS_RETURN_IF_ERROR(
      CheckRule(absl::StrCat(named, " initial deviation"), tensor.init_std, Reals(0.0, max_std)));
  const double most = tensor.init == Initializer::kUniform ? kMost : 0.0;
  const std::string low = absl::StrCat(named, " lowest initial value");
  EPS_RETURN_IF_ERROR(CheckSigned(low, tensor.init_low, -most, most));
  return CheckSigned(absl::StrCat(named, " highest initial value"), tensor.init_high,
                     tensor.init_low, most);
}

absl::Status ValidateTensors(const JobSpec& spec) {
  EPS_RETURN_IF_ERROR(CheckRule("tensors", spec.tensors.size(), Range(1, kMaxTensors)));
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
    chunks += MaxChunksOf(tensor, spec.chunk_elements);
    if (chunks > kMaxChunks) {
      return Refuse("training.chunk_elements", spec.chunk_elements, " cuts the tensors up to ",
                    tensor.name, " into ", chunks, " chunks, expected at most ", kMaxChunks,
                    "; raise it");
    }
  }
  return absl::OkStatus();
}

// Every use of a tensor is a use of each of its chunks.
absl::Status ValidateChunkUses(const JobSpec& spec) {
  uint64_t uses = 0;
  for (size_t i = 0; i < spec.stages.size(); ++i) {
    for (const TensorUse& use : spec.stages[i].uses) {
      uses += MaxChunksOf(spec.tensors[use.tensor.value()], spec.chunk_elements);
    }
    if (uses > kMaxChunkUses) {
      return Refuse("training.chunk_elements", spec.chunk_elements,
                    " cuts the tensors of the stages up to ", spec.stages[i].name,
                    " into chunks of ", uses, " uses, expected at most ", kMaxChunkUses,
                    "; raise it");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateStages(const JobSpec& spec) {
  EPS_RETURN_IF_ERROR(CheckRule("stages", spec.stages.size(), Range(1, kMaxStages)));
  constexpr uint32_t kUnused = UINT32_MAX;
  std::vector<uint32_t> last_stage(spec.tensors.size(), kUnused);
  uint64_t uses = 0;
  for (uint32_t i = 0; i < spec.stages.size(); ++i) {
    const StageSpec& stage = spec.stages[i];
    const std::string key = absl::StrCat("stage.", i);
    EPS_RETURN_IF_ERROR(CheckName(key, stage.name, "_.-"));
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
  return ValidateChunkUses(spec);
}

// The bounds of the keys keep every product below in uint64: samples < 2^60 and tokens per step <=
// 2^48.
absl::Status ValidateTraining(const JobSpec& spec) {
  const TrainingSpec& t = spec.training;
  const uint64_t samples = uint64_t{t.micro_batch_size} * t.micro_batches * t.parts;
  EPS_RETURN_IF_ERROR(
      CheckRule("training.micro_batch_size * micro_batches * parts (samples in a step)", samples,
                Range(1, uint64_t{1} << 28)));
  EPS_RETURN_IF_ERROR(CheckRule("training.seq_len * samples in a step (tokens in a step)",
                                samples * t.seq_len, Range(1, uint64_t{1} << 48)));
  const ModelFamily& family = FamilyOf(spec.model.type);
  if (t.label_smoothing > 0 && family.labels(spec.model) == LabelKind::kNumbers) {
    return Refuse("training.label_smoothing",
                  "the model predicts a number, and only classes and tokens can be smoothed; leave "
                  "it out");
  }
  return CheckLegal(t, spec.optimizer.name);
}

bool IsIncreasing(const std::vector<uint32_t>& ids) {
  return std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
}

absl::Status ValidateMasking(const JobSpec& spec) {
  const DataSpec& data = spec.data;
  const ModelFamily& family = FamilyOf(spec.model.type);
  if (family.labels(spec.model) != LabelKind::kMaskedTokens) {
    if (data.mlm_probability == kMlmProbability && data.mask_token == 0 &&
        data.special_tokens.empty()) {
      return absl::OkStatus();
    }
    return Refuse("data.mlm_probability, data.mask_token",
                  "the model does not guess masked tokens; leave them out");
  }
  const std::vector<uint32_t>& special = data.special_tokens;
  if (special.size() > kMaxSpecialTokens || !IsIncreasing(special)) {
    return Refuse("data.special_tokens", "expected at most ", kMaxSpecialTokens,
                  " ids in increasing order");
  }
  const uint32_t vocabulary = family.vocabulary(spec.model);
  for (const auto& [key, id] :
       {std::pair{"data.mask_token", data.mask_token},
        std::pair{"data.special_tokens", special.empty() ? 0 : special.back()}}) {
    if (id >= vocabulary) {
      return Refuse(key, "expected ids below the model's vocabulary of ", vocabulary, ", found ",
                    id);
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateData(const JobSpec& spec) {
  const DataSpec& data = spec.data;
  EPS_RETURN_IF_ERROR(CheckRule("data.tokens", data.tokens, Range(0, uint64_t{1} << 60)));
  EPS_RETURN_IF_ERROR(CheckRule("data.samples", data.samples, Range(0, uint64_t{1} << 36)));
  if (data.samples > 0 && data.tokens % data.samples != 0) {
    return Refuse("data.samples", "expected a divisor of data.tokens = ", data.tokens, ", found ",
                  data.samples);
  }
  if (data.samples > 0 && data.tokens == 0) return Refuse("data.tokens", "expected at least 1");
  if (data.samples == 0 && data.tokens < uint64_t{spec.training.seq_len} + 1) {
    return Refuse("data.tokens",
                  "expected at least training.seq_len + 1 = ", uint64_t{spec.training.seq_len} + 1,
                  " for one sample and its labels, found ", data.tokens);
  }
  if (!IsSha256(data.sha256)) {
    return Refuse("data.sha256", "expected 64 digits of lower-case hexadecimal, found ",
                  data.sha256.size(), " characters");
  }
  return ValidateMasking(spec);
}

// Checks each setting by itself. Whether codecs are known, and fit their use, is checked where they
// are (compression/codec_table.h).
class KeyChecker : public RuleChecker {
 public:
  // ValidateOptimizer checks them.
  void Parameter(const OptimizerParameter&, const OptimizerSpec*) {}
};

absl::Status ValidateKeys(const JobSpec& spec) {
  KeyChecker checker;
  OptimizerKeys(&checker, &spec.optimizer);
  TrainingKeys(&checker, &spec.training);
  ChunkKeys(&checker, &spec.chunk_elements);
  DataKeys(&checker, &spec.data);
  CodecKeys(&checker, &spec.codecs);
  StashKey(&checker, &spec.codecs.stash);
  return checker.status();
}

}  // namespace

uint64_t MaxChunksOf(const TensorSpec& tensor, uint64_t chunk_elements) {
  if (tensor.rank == 1) return 1;
  const uint64_t fitting = chunk_elements / tensor.cols / 32 * 32;
  const uint64_t panel_rows = fitting < 32 ? 32 : fitting;
  return (tensor.rows + panel_rows - 1) / panel_rows;
}

int LossScaleLog2(const JobSpec& spec, const std::optional<LossScale>& scale) {
  if (!scale.has_value()) return 0;
  const bool counts_tokens =
      spec.model.type != ModelType::kProgram || spec.model.program->head == HeadKind::kTokens;
  const uint64_t rows =
      uint64_t{spec.training.micro_batch_size} * (counts_tokens ? spec.training.seq_len : 1);
  int log2 = 0;
  while (uint64_t{1} << log2 < rows) ++log2;
  return log2 - scale->log2;
}

uint64_t JobSpec::total_elements() const {
  uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.elements();
  return total;
}

StageId JobSpec::LowestTrainableStage() const {
  uint32_t stage = 0;
  for (; stage + 1 < stages.size(); ++stage) {
    for (const TensorUse& use : stages[stage].uses) {
      if (!IsFrozen(use.tensor)) return StageId(stage);
    }
  }
  return StageId(stage);
}

absl::Status JobSpec::Validate() const {
  EPS_RETURN_IF_ERROR(
      CheckRule("numerics_version", numerics_version, Range(kNumericsVersion, kNumericsVersion)));
  EPS_RETURN_IF_ERROR(CheckCharacters("name", name, "_.-"));
  EPS_RETURN_IF_ERROR(ValidateModel(model));
  EPS_RETURN_IF_ERROR(ValidateKeys(*this));
  EPS_RETURN_IF_ERROR(ValidateOptimizer(optimizer));
  EPS_RETURN_IF_ERROR(ValidateSchedule(schedule));
  EPS_RETURN_IF_ERROR(ValidateTraining(*this));
  EPS_RETURN_IF_ERROR(CheckPrecision(training.precision, model));
  const uint32_t max_seq_len = FamilyOf(model.type).max_seq_len(model);
  if (max_seq_len > 0 && training.seq_len > max_seq_len) {
    return Refuse("training.seq_len", "expected at most ", max_seq_len,
                  ", the longest sequence of the model, found ", training.seq_len);
  }
  EPS_RETURN_IF_ERROR(ValidateData(*this));
  EPS_RETURN_IF_ERROR(ValidateGroups(*this));
  EPS_RETURN_IF_ERROR(ValidateTensors(*this));
  EPS_RETURN_IF_ERROR(ValidateFrozen(*this));
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
