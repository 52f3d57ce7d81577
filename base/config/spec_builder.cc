#include "base/config/spec_builder.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/job/legality.h"
#include "base/job/models/model_family.h"
#include "base/job/optimizers.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// Refuses a parameter of another optimizer.
absl::Status CheckParameters(const OptimizerSpec& optimizer) {
  const OptimizerSpec defaults;
  for (const OptimizerParameter* parameter : OptimizerParameters()) {
    if (Has(optimizer.name, *parameter)) continue;
    for (const OptimizerNumber& number : parameter->numbers) {
      if (optimizer.*number.value == defaults.*number.value) continue;
      const std::string owners = absl::StrJoin(OwnersOf(*parameter), " or ");
      return absl::InvalidArgumentError(
          absl::StrCat(parameter->key, " is a setting of optimizer.name=", owners,
                       "; leave it out, or set optimizer.name=", owners));
    }
  }
  return absl::OkStatus();
}

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

absl::StatusOr<TrainingSpec> Resolve(const TrainingConfig& config, const ModelSpec& model,
                                     uint32_t workers) {
  TrainingSpec t;
  static_cast<TrainingSettings&>(t) = config;
  if (t.parts == 0) t.parts = workers;
  if (t.seq_len == 0) t.seq_len = FamilyOf(model.type).default_seq_len(model);
  EPS_ASSIGN_OR_RETURN(t.mode, ResolveMode(config.mode, t.clip, t.nonfinite));
  return t;
}

// Returns the codec's name with the parameters that have their own keys.
std::string CompleteName(const QuantizationConfig& config, const std::string& name) {
  if (name == "mx9" || name == "mx6" || name == "mx4") {
    return name + (config.rounding == Rounding::kTruncate ? ":truncate" : "");
  }
  if (absl::StartsWith(name, "topk:") && !absl::StrContains(name.substr(5), ":")) {
    return name + (config.index == TopkIndex::kRaw32 ? ":raw32" : "") +
           (config.selection == TopkSelection::kSampled ? ":sampled" : "") +
           (config.scope == TopkScope::kTensor ? ":tensor" : "");
  }
  return name;
}

// Resolves the codecs of one kind of tensor; `open` replaces those whose key is auto.
TensorCodecs Resolve(const QuantizationConfig& config, const AutoCodecs& codecs,
                     const TensorCodecs& open) {
  const auto choose = [&](const Auto<std::string>& name, const std::string& otherwise) {
    return name.has_value() ? CompleteName(config, *name) : otherwise;
  };
  return {choose(codecs.weights, open.weights), choose(codecs.gradients, open.gradients)};
}

absl::StatusOr<CodecSpec> Resolve(const QuantizationConfig& config) {
  if (config.selection == TopkSelection::kSampled && config.scope == TopkScope::kTensor) {
    return absl::InvalidArgumentError(
        "quantization.selection=sampled and quantization.scope=tensor exclude each other: samples "
        "are taken per chunk; set quantization.selection=exact or quantization.scope=chunk");
  }
  CodecSpec codecs;
  static_cast<CodecSettings&>(codecs) = config;
  codecs.weights = CompleteName(config, config.weights);
  codecs.gradients = CompleteName(config, config.gradients);
  codecs.residual = CompleteName(config, config.residual);
  const auto dense = [](const std::string& name) { return name == "fp32" ? "fp32" : "bf16"; };
  const TensorCodecs as_inner = {dense(config.weights), dense(config.gradients)};
  codecs.embedding = Resolve(config, config.embedding, as_inner);
  codecs.head = Resolve(config, config.head, as_inner);
  codecs.norm = Resolve(config, config.norm, TensorCodecs());
  return codecs;
}

}  // namespace

absl::StatusOr<JobSpec> BuildJobSpec(const Config& config, const ModelSpec& model,
                                     const DataSpec& data, uint32_t workers) {
  EPS_RETURN_IF_ERROR(ValidateModel(model));
  JobSpec spec;
  spec.model = model;
  EPS_RETURN_IF_ERROR(CheckParameters(config.optimizer));
  spec.optimizer = config.optimizer;
  spec.schedule = config.lr_scheduler;
  EPS_ASSIGN_OR_RETURN(spec.training, Resolve(config.training, model, workers));
  EPS_RETURN_IF_ERROR(CheckBatch(config.training.train_batch_size, spec));
  spec.data = data;
  spec.data.order = config.data.order;
  if (data.samples == 0 && data.tokens < uint64_t{spec.training.seq_len} + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path: ", data.tokens, " tokens, a sample needs training.seq_len+1 = ",
        uint64_t{spec.training.seq_len} + 1, "; give more data or lower training.seq_len"));
  }
  EPS_ASSIGN_OR_RETURN(spec.codecs, Resolve(config.quantization));
  spec.codecs.stash = config.worker.stash_codec;
  EPS_RETURN_IF_ERROR(BuildLayout(config.optimizer.weight_decay, &spec));
  spec.chunk_elements = config.training.chunk_elements != 0
                            ? config.training.chunk_elements
                            : DefaultChunkElements(spec.total_elements());
  EPS_RETURN_IF_ERROR(spec.Validate());
  return spec;
}

}  // namespace eps
