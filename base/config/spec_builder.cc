#include "base/config/spec_builder.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/job/chunk_map.h"
#include "base/job/legality.h"
#include "base/job/model_layout.h"
#include "base/job/unknown_name.h"

namespace eps {
namespace {

absl::StatusOr<OptimizerName> ParseOptimizerName(absl::string_view text) {
  for (OptimizerName name : {OptimizerName::kAdamW, OptimizerName::kSgd}) {
    if (text == OptimizerNameText(name)) return name;
  }
  return UnknownName("optimizer.name", text, {"adamw", "sgd"});
}

// A setting that the optimizer would not look at was meant for another one.
absl::Status OnlyOf(absl::string_view key, OptimizerName of, bool is_default) {
  if (is_default) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is a setting of optimizer.name=", OptimizerNameText(of),
                   "; leave it out, or set ", "optimizer.name=", OptimizerNameText(of)));
}

absl::StatusOr<OptimizerSpec> BuildOptimizer(const OptimizerConfig& config) {
  const OptimizerConfig defaults;
  OptimizerSpec optimizer;
  EPS_ASSIGN_OR_RETURN(optimizer.name, ParseOptimizerName(config.name));
  optimizer.lr = config.lr;
  if (optimizer.name == OptimizerName::kSgd) {
    EPS_RETURN_IF_ERROR(
        OnlyOf("optimizer.betas", OptimizerName::kAdamW, config.betas == defaults.betas));
    EPS_RETURN_IF_ERROR(OnlyOf("optimizer.eps", OptimizerName::kAdamW, config.eps == defaults.eps));
    optimizer.momentum = config.momentum;
    return optimizer;
  }
  EPS_RETURN_IF_ERROR(
      OnlyOf("optimizer.momentum", OptimizerName::kSgd, config.momentum == defaults.momentum));
  if (config.betas.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.betas: expected 2 numbers, found ", config.betas.size()));
  }
  optimizer.beta1 = config.betas[0];
  optimizer.beta2 = config.betas[1];
  optimizer.eps = config.eps;
  return optimizer;
}

ScheduleSpec BuildSchedule(const LrSchedulerConfig& config) {
  ScheduleSpec schedule;
  schedule.name = config.name;
  schedule.warmup_steps = config.warmup_steps;
  schedule.min_lr_ratio = config.min_lr_ratio;
  schedule.num_cycles = config.num_cycles;
  schedule.power = config.power;
  return schedule;
}

absl::StatusOr<Determinism> ParseDeterminism(absl::string_view text) {
  for (Determinism determinism : {Determinism::kStrict, Determinism::kRelaxed}) {
    if (text == DeterminismName(determinism)) return determinism;
  }
  return UnknownName("training.determinism", text, {"strict", "relaxed"});
}

absl::StatusOr<DataOrder> ParseDataOrder(absl::string_view text) {
  for (DataOrder order : {DataOrder::kSequential, DataOrder::kShuffled}) {
    if (text == DataOrderName(order)) return order;
  }
  return UnknownName("data.order", text, {"shuffled", "sequential"});
}

absl::Status CheckBatch(uint32_t train_batch_size, const JobSpec& spec) {
  const TrainingSpec& t = spec.training;
  if (train_batch_size == 0 || train_batch_size == spec.samples_per_step()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "training.train_batch_size = ", train_batch_size,
      " is not training.micro_batch_size * training.micro_batches * training.parts = ",
      t.micro_batch_size, " * ", t.micro_batches, " * ", t.parts, " = ", spec.samples_per_step(),
      "; change one of the four, or leave train_batch_size out"));
}

absl::StatusOr<TrainingSpec> BuildTraining(const TrainingConfig& config, const ModelSpec& model,
                                           uint32_t workers) {
  TrainingSpec t;
  t.steps = config.steps;
  t.micro_batch_size = config.micro_batch_size;
  t.micro_batches = config.micro_batches;
  t.parts = config.parts != 0 ? config.parts : workers;
  t.seq_len = config.seq_len;
  if (t.seq_len == 0 && model.type == ModelType::kGpt2) {
    t.seq_len = static_cast<uint32_t>(model.gpt2.n_positions);
  }
  t.seed = config.seed;
  EPS_ASSIGN_OR_RETURN(t.clip, ParseClip(config.clip));
  t.max_grad_norm = config.max_grad_norm;
  EPS_ASSIGN_OR_RETURN(t.nonfinite, ParseNonfinite(config.nonfinite));
  EPS_ASSIGN_OR_RETURN(t.replay, ParseReplay(config.replay));
  EPS_ASSIGN_OR_RETURN(t.mode, ResolveMode(config.mode, t.clip, t.nonfinite, t.replay));
  EPS_ASSIGN_OR_RETURN(t.determinism, ParseDeterminism(config.determinism));
  t.loss_block_tokens = config.loss_block_tokens;
  return t;
}

absl::StatusOr<BackwardWeights> ParseBackwardWeights(absl::string_view text) {
  for (BackwardWeights value : {BackwardWeights::kRecomputeAxis, BackwardWeights::kBothAxes,
                                BackwardWeights::kDecodeOnce}) {
    if (text == BackwardWeightsName(value)) return value;
  }
  return UnknownName("quantization.backward_weights", text,
                     {"recompute_axis", "both_axes", "decode_once"});
}

absl::StatusOr<ResidualHome> ParseResidualHome(absl::string_view text) {
  for (ResidualHome home : {ResidualHome::kServer, ResidualHome::kWorker}) {
    if (text == ResidualHomeName(home)) return home;
  }
  return UnknownName("quantization.residual_home", text, {"server", "worker"});
}

// Whether a key that has a usual and one other value has the other.
absl::StatusOr<bool> IsOther(absl::string_view key, absl::string_view value,
                             absl::string_view usual, absl::string_view other) {
  if (value != usual && value != other) {
    return UnknownName(key, value, {std::string(usual), std::string(other)});
  }
  return value == other;
}

absl::StatusOr<CodecSpec> BuildCodecs(const QuantizationConfig& config) {
  EPS_ASSIGN_OR_RETURN(const bool truncate,
                       IsOther("quantization.rounding", config.rounding, "nearest", "truncate"));
  EPS_ASSIGN_OR_RETURN(const bool raw32,
                       IsOther("quantization.index", config.index, "packed", "raw32"));
  EPS_ASSIGN_OR_RETURN(const bool sampled,
                       IsOther("quantization.selection", config.selection, "exact", "sampled"));
  EPS_ASSIGN_OR_RETURN(const bool tensor,
                       IsOther("quantization.scope", config.scope, "chunk", "tensor"));
  if (sampled && tensor) {
    return absl::InvalidArgumentError(
        "quantization.selection=sampled and quantization.scope=tensor exclude each other: a sample "
        "is one of a chunk; set quantization.selection=exact or quantization.scope=chunk");
  }
  // The parameters that have keys of their own become part of the name.
  const auto complete = [&](std::string name) {
    if (name == "mx9" || name == "mx6" || name == "mx4")
      return name + (truncate ? ":truncate" : "");
    if (absl::StartsWith(name, "topk:") && !absl::StrContains(name.substr(5), ":")) {
      return name + (raw32 ? ":raw32" : "") + (sampled ? ":sampled" : "") +
             (tensor ? ":tensor" : "");
    }
    return name;
  };
  const auto choose = [&](const std::string& name, const std::string& automatic) {
    return name == "auto" ? automatic : complete(name);
  };
  const auto dense = [](const std::string& name) { return name == "fp32" ? "fp32" : "bf16"; };
  CodecSpec codecs;
  codecs.weights = complete(config.weights);
  codecs.gradients = complete(config.gradients);
  codecs.embedding.weights = choose(config.embedding_weights, dense(config.weights));
  codecs.embedding.gradients = choose(config.embedding_gradients, dense(config.gradients));
  codecs.head.weights = choose(config.head_weights, dense(config.weights));
  codecs.head.gradients = choose(config.head_gradients, dense(config.gradients));
  codecs.norm.weights = choose(config.norm_weights, "fp32");
  codecs.norm.gradients = choose(config.norm_gradients, "fp32");
  EPS_ASSIGN_OR_RETURN(codecs.backward_weights, ParseBackwardWeights(config.backward_weights));
  codecs.warmup_steps = config.warmup_steps;
  codecs.error_feedback = config.error_feedback;
  EPS_ASSIGN_OR_RETURN(codecs.residual_home, ParseResidualHome(config.residual_home));
  codecs.residual = complete(config.residual);
  return codecs;
}

}  // namespace

absl::StatusOr<JobSpec> BuildJobSpec(const Config& config, const ModelSpec& model,
                                     uint64_t data_tokens, const std::string& data_sha256,
                                     uint32_t workers) {
  EPS_RETURN_IF_ERROR(ValidateModel(model));
  JobSpec spec;
  spec.model = model;
  EPS_ASSIGN_OR_RETURN(spec.optimizer, BuildOptimizer(config.optimizer));
  spec.schedule = BuildSchedule(config.lr_scheduler);
  EPS_ASSIGN_OR_RETURN(spec.training, BuildTraining(config.training, model, workers));
  EPS_RETURN_IF_ERROR(CheckBatch(config.training.train_batch_size, spec));
  EPS_ASSIGN_OR_RETURN(spec.data.order, ParseDataOrder(config.data.order));
  if (data_tokens < uint64_t{spec.training.seq_len} + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path: ", data_tokens, " tokens, a sample needs training.seq_len+1 = ",
        uint64_t{spec.training.seq_len} + 1, "; give more data or lower training.seq_len"));
  }
  spec.data.tokens = data_tokens;
  spec.data.sha256 = data_sha256;
  EPS_ASSIGN_OR_RETURN(spec.codecs, BuildCodecs(config.quantization));
  spec.codecs.stash = config.worker.stash_codec;
  EPS_RETURN_IF_ERROR(BuildLayout(config.optimizer.weight_decay, &spec));
  spec.chunk_elements = config.training.chunk_elements != 0
                            ? config.training.chunk_elements
                            : DefaultChunkElements(spec.total_elements());
  EPS_RETURN_IF_ERROR(spec.Validate());
  return spec;
}

}  // namespace eps
