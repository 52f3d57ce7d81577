#include "worker/stage_speed.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "spec/job_spec.h"
#include "spec/model_layout.h"
#include "spec/rng.h"
#include "worker/exec/torch_runtime.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kWide = 1024;  // products of matrices this large reach what a processor can
constexpr uint32_t kVocabulary = 256;
constexpr int kLeastRounds = 5;
constexpr std::chrono::milliseconds kLeastTime{1500};
constexpr StageId kBlock(1);

absl::StatusOr<JobSpec> SpecOf(uint32_t width, uint32_t heads, uint32_t seq_len) {
  JobSpec spec;
  Gpt2Config& model = spec.model.gpt2;
  model.n_layer = 1;
  model.n_embd = static_cast<int>(width);
  model.n_head = static_cast<int>(heads);
  model.n_positions = static_cast<int>(seq_len);
  model.vocab_size = kVocabulary;
  spec.training.seq_len = seq_len;
  EPS_RETURN_IF_ERROR(BuildLayout(/*weight_decay=*/0.01, &spec));
  return spec;
}

MicroBatch BatchOf(uint32_t samples, uint32_t seq_len) {
  MicroBatch batch;
  batch.step = Step(1);
  batch.samples = samples;
  batch.seq_len = seq_len;
  for (uint32_t i = 0; i < samples * seq_len; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(i * 7919 % kVocabulary));
    batch.labels.push_back(static_cast<int32_t>(i * 104729 % kVocabulary));
  }
  return batch;
}

// One block of a model, and what its passes need.
class Block {
 public:
  // `spec` outlives it.
  static absl::StatusOr<std::unique_ptr<Block>> New(const JobSpec& spec,
                                                    const RuntimeOptions& options) {
    EPS_ASSIGN_OR_RETURN(auto runtime, NewTorchRuntime(spec, options, /*account=*/nullptr));
    return std::make_unique<Block>(spec, std::move(runtime));
  }
  Block(const JobSpec& spec, std::unique_ptr<StageRuntime> runtime)
      : spec_(spec),
        runtime_(std::move(runtime)),
        weights_(NewWeights(kBlock)),
        gradient_(runtime_->NewHostStage(kBlock)) {}

  // Median seconds of a forward and a backward pass together, as the relay runs them.
  absl::StatusOr<double> Measure(const MicroBatch& batch) {
    const auto embedding = runtime_->Load(StageId(0), NewWeights(StageId(0)));
    EPS_ASSIGN_OR_RETURN(const ActivationPtr input,
                         runtime_->program(StageId(0)).Forward(*embedding, batch, nullptr));
    std::vector<double> seconds;
    const auto end = Clock::now() + kLeastTime;
    EPS_RETURN_IF_ERROR(Pass(batch, input));  // the first one allocates
    while (seconds.size() < kLeastRounds || Clock::now() < end) {
      const auto begin = Clock::now();
      EPS_RETURN_IF_ERROR(Pass(batch, input));
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

 private:
  std::shared_ptr<HostStage> NewWeights(StageId stage) const {
    std::shared_ptr<HostStage> host = runtime_->NewHostStage(stage);
    const StageSpec& uses = spec_.stages[stage.value()];
    for (size_t use = 0; use < uses.uses.size(); ++use) {
      const TensorId id = uses.uses[use].tensor;
      FillInitialValues(spec_, id, 0,
                        absl::MakeSpan(host->tensor(use), spec_.tensors[id.value()].elements()));
    }
    return host;
  }

  absl::Status Pass(const MicroBatch& batch, const ActivationPtr& input) {
    const auto weights = runtime_->Load(kBlock, weights_);
    StageProgram& program = runtime_->program(kBlock);
    EPS_ASSIGN_OR_RETURN(const ActivationPtr output, program.Forward(*weights, batch, input));
    // Any values of the output's shape do for its gradient.
    EPS_ASSIGN_OR_RETURN(const auto result,
                         program.Backward(*weights, batch, input, output, /*loss_scale_log2=*/0));
    return runtime_->ToHost(kBlock, *result.gradient, gradient_.get());
  }

  const JobSpec& spec_;
  const std::unique_ptr<StageRuntime> runtime_;
  const std::shared_ptr<HostStage> weights_;
  const std::shared_ptr<HostStage> gradient_;
};

// Of a forward, a recomputing and a backward pass of one sequence: planner/workload.h.
double FlopsOf(uint32_t width, uint32_t seq_len) {
  const double e = width;
  const double s = seq_len;
  const double forward = 4 * s * e * (4 * e) + 8 * s * e * e + 4 * s * s * e;
  return 4 * forward;
}

struct TwoPoints {
  double once = 0;   // seconds of a micro-batch
  double twice = 0;  // of one that is twice as large
};

absl::StatusOr<TwoPoints> MeasureTwice(uint32_t width, uint32_t heads,
                                       const CalibrateOptions& options) {
  EPS_ASSIGN_OR_RETURN(const JobSpec spec, SpecOf(width, heads, options.seq_len));
  EPS_ASSIGN_OR_RETURN(const auto block, Block::New(spec, options.runtime));
  TwoPoints points;
  EPS_ASSIGN_OR_RETURN(points.once, block->Measure(BatchOf(options.samples, options.seq_len)));
  EPS_ASSIGN_OR_RETURN(points.twice, block->Measure(BatchOf(2 * options.samples, options.seq_len)));
  return points;
}

}  // namespace

absl::StatusOr<StageSpeed> MeasureStageSpeed(const CalibrateOptions& options) {
  if (options.width == 0 || options.heads == 0 || options.width % options.heads != 0 ||
      options.samples == 0 || options.seq_len == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "calibrate: expected a width that is a multiple of heads, and at least one sample and "
        "token, found width ",
        options.width, ", heads ", options.heads, ", samples ", options.samples, ", seq_len ",
        options.seq_len));
  }
  StageSpeed speed;
  EPS_ASSIGN_OR_RETURN(speed.profile, TorchComputeProfile(options.runtime));
  EPS_ASSIGN_OR_RETURN(const TwoPoints here, MeasureTwice(options.width, options.heads, options));
  const double flops = options.samples * FlopsOf(options.width, options.seq_len);
  // What does not grow with the micro-batch belongs to its two passes; noise must not make it
  // negative, nor eat up what grows.
  const double fixed = std::clamp(2 * here.once - here.twice, 0.0, here.once / 2);
  speed.pass_seconds = fixed / 2;
  speed.flops_per_second = flops / (here.once - fixed);
  speed.wide_flops_per_second = speed.flops_per_second;
  if (options.width < kWide) {
    EPS_ASSIGN_OR_RETURN(const TwoPoints wide, MeasureTwice(kWide, kWide / 64, options));
    const double wide_flops = 2 * options.samples * FlopsOf(kWide, options.seq_len);
    speed.wide_flops_per_second = std::max(speed.flops_per_second, wide_flops / wide.twice);
  }
  return speed;
}

std::string StageSpeedToJson(const StageSpeed& speed) {
  nlohmann::ordered_json json;
  json["profile"] = speed.profile;
  json["flops_per_second"] = speed.flops_per_second;
  json["pass_seconds"] = speed.pass_seconds;
  json["wide_flops_per_second"] = speed.wide_flops_per_second;
  return json.dump();
}

}  // namespace eps
