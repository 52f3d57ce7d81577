#include "base/config/spec_builder.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config/parameter_groups.h"
#include "base/job/data_position.h"
#include "base/job/key_rules.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/job/legality.h"
#include "base/job/models/model_family.h"
#include "base/job/models/model_program.h"
#include "base/job/optimizers.h"
#include "base/plugin/names.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr uint64_t kDefaultSteps = 100;

absl::Status CheckBatch(uint32_t train_batch_size, const JobSpec& spec) {
  const TrainingSpec& t = spec.training;
  if (train_batch_size == 0 || train_batch_size == spec.samples_per_step()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("training.train_batch_size = ", train_batch_size,
                   " is not training.micro_batch_size * training.micro_batches * training.parts = ",
                   t.micro_batch_size, " * ", t.micro_batches, " * ", t.parts, " = ",
                   spec.samples_per_step(), "; change one of the four, or omit train_batch_size"));
}

absl::StatusOr<TrainingSpec> Resolve(const TrainingConfig& config, OptimizerName optimizer,
                                     const ModelSpec& model, uint32_t workers) {
  TrainingSpec t;
  static_cast<TrainingSettings&>(t) = config;
  if (t.parts == 0) t.parts = workers;
  if (t.seq_len == 0) t.seq_len = FamilyOf(model.type).default_seq_len(model);
  if (t.precision == Precision::kCmp) t.nonfinite = Nonfinite::kSkip;  // overflows are ordinary
  EPS_ASSIGN_OR_RETURN(t.mode, ResolveMode(config.mode, t, optimizer));
  return t;
}

absl::Status RefuseBoth(absl::string_view one, uint64_t steps, absl::string_view other,
                        double share) {
  return absl::InvalidArgumentError(absl::StrCat(one, " = ", steps, " and ", other, " = ", share,
                                                 " give the same setting; leave one out"));
}

// Rounds up, but not for what the binary form of a decimal adds: 0.07 * 100 gives 7.
double WholeSteps(double steps) { return std::max(1.0, std::ceil(steps * (1 - 1e-12))); }

// Returns the steps of the job. REQUIRES that the rest of `spec` has its sizes and its data.
absl::StatusOr<uint64_t> ResolveSteps(const TrainingConfig& config, const JobSpec& spec) {
  if (config.epochs == 0) return config.steps.value_or(kDefaultSteps);
  if (config.steps.has_value()) {
    return RefuseBoth("training.steps", *config.steps, "training.epochs", config.epochs);
  }
  EPS_RETURN_IF_ERROR(CheckRule("training.epochs", config.epochs, Reals(0.0, kMaxFactor)));
  const double steps =
      WholeSteps(config.epochs * static_cast<double>(WholeSamples(spec)) /
                 static_cast<double>(std::max<uint64_t>(1, spec.samples_per_step())));
  if (steps <= static_cast<double>(kMaxSteps)) return static_cast<uint64_t>(steps);
  return absl::InvalidArgumentError(absl::StrCat("training.epochs = ", config.epochs, " takes ",
                                                 steps, " steps, at most ", kMaxSteps,
                                                 " are possible; lower it"));
}

absl::StatusOr<ScheduleSpec> Resolve(const ScheduleConfig& config, uint64_t steps) {
  ScheduleSpec schedule = config;
  if (config.warmup_ratio == 0) return schedule;
  if (config.warmup_steps > 0) {
    return RefuseBoth("lr_scheduler.warmup_steps", config.warmup_steps, "lr_scheduler.warmup_ratio",
                      config.warmup_ratio);
  }
  EPS_RETURN_IF_ERROR(CheckRule("lr_scheduler.warmup_ratio", config.warmup_ratio, Reals(0.0, 1.0)));
  if (config.name == "constant") {
    return absl::InvalidArgumentError(
        "lr_scheduler.warmup_ratio: lr_scheduler.name=constant has no warm-up; use "
        "constant_with_warmup, or leave the ratio out");
  }
  schedule.warmup_steps =
      static_cast<uint64_t>(WholeSteps(config.warmup_ratio * static_cast<double>(steps)));
  return schedule;
}

// Returns the codec's name with the parameters that have their own keys, or that of the plug-in.
std::string CompleteName(const QuantizationConfig& config, const std::string& name,
                         const std::string& plugin) {
  if (name == kPluginCodec) return plugin.empty() ? name : plugin;
  if (name == "mx9" || name == "mx6" || name == "mx4") {
    return name + (config.rounding == Rounding::kTruncate ? ":truncate" : "");
  }
  if (absl::StartsWith(name, "topk:") && !absl::StrContains(name.substr(5), ":")) {
    return name + (config.index == TopkIndex::kRaw32 ? ":raw32" : "") +
           (config.values == TopkValues::kFp32 ? ":fp32" : "") +
           (config.selection == TopkSelection::kSampled ? ":sampled" : "") +
           (config.scope == TopkScope::kTensor ? ":tensor" : "");
  }
  return name;
}

// Resolves the codecs of one kind of tensor; `open` replaces those whose key is auto.
TensorCodecs Resolve(const QuantizationConfig& config, const AutoCodecs& codecs,
                     const TensorCodecs& open, const std::string& plugin) {
  const auto choose = [&](const Auto<std::string>& name, const std::string& otherwise) {
    return name.has_value() ? CompleteName(config, *name, plugin) : otherwise;
  };
  return {choose(codecs.weights, open.weights), choose(codecs.gradients, open.gradients)};
}

absl::StatusOr<CodecSpec> Resolve(const QuantizationConfig& config, const std::string& plugin) {
  if (config.selection == TopkSelection::kSampled && config.scope == TopkScope::kTensor) {
    return absl::InvalidArgumentError(
        "quantization.selection=sampled and quantization.scope=tensor exclude each other: samples "
        "are taken per chunk; set quantization.selection=exact or quantization.scope=chunk");
  }
  CodecSpec codecs;
  static_cast<CodecSettings&>(codecs) = config;
  codecs.weights = CompleteName(config, config.weights, plugin);
  codecs.gradients = CompleteName(config, config.gradients, plugin);
  codecs.residual = CompleteName(config, config.residual, plugin);
  const auto dense = [](const std::string& name) { return name == "fp32" ? "fp32" : "bf16"; };
  const TensorCodecs as_inner = {dense(config.weights), dense(config.gradients)};
  codecs.embedding = Resolve(config, config.embedding, as_inner, plugin);
  codecs.head = Resolve(config, config.head, as_inner, plugin);
  codecs.norm = Resolve(config, config.norm, TensorCodecs(), plugin);
  return codecs;
}

// Refuses a model without the adapters that the configuration asks for.
absl::Status CheckLora(const LoraConfig& wanted, const ModelSpec& model) {
  if (wanted.r == 0) return absl::OkStatus();
  const ProgramLora has = model.program == nullptr ? ProgramLora() : model.program->lora;
  const double alpha = wanted.alpha == 0 ? 2.0 * wanted.r : wanted.alpha;
  if (has.r == wanted.r && has.alpha == alpha && has.dropout == wanted.dropout) {
    return absl::OkStatus();
  }
  const std::string found =
      has.r == 0 ? std::string("none")
                 : absl::StrCat("r ", has.r, ", alpha ", has.alpha, ", dropout ", has.dropout);
  return absl::InvalidArgumentError(absl::StrCat(
      "lora.r: expected a model with adapters of r ", wanted.r, ", alpha ", alpha, ", dropout ",
      wanted.dropout, ", found ", found,
      "; eps train exports a model with them if model.path is a folder without a program and "
      "checkpoint.dir (--out) is set; or call eps model export --lora-r=",
      wanted.r));
}

}  // namespace

bool UsesPluginCodec(const QuantizationConfig& config) {
  const Auto<std::string>* const others[] = {&config.embedding.gradients, &config.head.gradients,
                                             &config.norm.gradients};
  return config.gradients == kPluginCodec ||
         std::any_of(std::begin(others), std::end(others),
                     [](const auto* name) { return name->value_or("") == kPluginCodec; });
}

absl::StatusOr<JobSpec> BuildJobSpec(const Config& config, const ModelSpec& model,
                                     const DataSpec& data, uint32_t workers, StartWeights weights,
                                     const JobPlugins& plugins) {
  EPS_RETURN_IF_ERROR(ValidateModel(model));
  EPS_RETURN_IF_ERROR(CheckLora(config.lora, model));
  JobSpec spec;
  spec.model = model;
  EPS_ASSIGN_OR_RETURN(static_cast<OptimizerSettings&>(spec.optimizer),
                       ResolveOptimizer(config.optimizer));
  spec.optimizer.lr = config.optimizer.lr.value_or(
      weights == StartWeights::kGiven ? kLrOfGivenWeights : kLrOfNewWeights);
  spec.optimizer.plugin = plugins.updater;
  EPS_ASSIGN_OR_RETURN(spec.training,
                       Resolve(config.training, config.optimizer.name, model, workers));
  EPS_RETURN_IF_ERROR(CheckBatch(config.training.train_batch_size, spec));
  spec.data = data;
  spec.data.order = config.data.order;
  spec.data.mlm_probability = config.data.mlm_probability;
  spec.data.mask_token = config.data.mask_token.value_or(0);
  if (data.samples == 0 && data.tokens < uint64_t{spec.training.seq_len} + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path: ", data.tokens, " tokens, a sample needs training.seq_len+1 = ",
        uint64_t{spec.training.seq_len} + 1, "; give more data or lower training.seq_len"));
  }
  EPS_ASSIGN_OR_RETURN(spec.training.steps, ResolveSteps(config.training, spec));
  EPS_ASSIGN_OR_RETURN(spec.schedule, Resolve(config.lr_scheduler, spec.training.steps));
  EPS_ASSIGN_OR_RETURN(spec.codecs, Resolve(config.quantization, plugins.codec));
  spec.codecs.stash = config.worker.stash_codec;
  EPS_RETURN_IF_ERROR(BuildLayout(config.optimizer.weight_decay, &spec));
  EPS_RETURN_IF_ERROR(ApplyGroupRules(config.optimizer.groups, &spec));
  spec.chunk_elements = config.training.chunk_elements != 0
                            ? config.training.chunk_elements
                            : DefaultChunkElements(spec.total_elements());
  EPS_RETURN_IF_ERROR(spec.Validate());
  return spec;
}

void KeepResolved(const JobSpec& spec, Config* config) {
  config->training.parts = spec.training.parts;
  config->training.steps = spec.training.steps;
  config->training.epochs = 0;
  config->optimizer.lr = spec.optimizer.lr;
  KeepSettings(spec.optimizer, &config->optimizer);
  config->lr_scheduler.warmup_steps = spec.schedule.warmup_steps;
  config->lr_scheduler.warmup_ratio = 0;
}

}  // namespace eps
