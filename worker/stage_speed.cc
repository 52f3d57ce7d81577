#include "worker/stage_speed.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/job/initial_values.h"
#include "base/job/job_spec.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/exec/torch_runtime.h"
#include "worker/measure/gpt2_job.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kWide = 1024;  // products of matrices this large reach a processor's full speed
constexpr uint32_t kWideHead = 64;
constexpr uint32_t kVocabulary = 256;
constexpr uint32_t kBlocks = 4;
constexpr int kLeastRounds = 5;
constexpr std::chrono::milliseconds kLeastTime{3000};

absl::StatusOr<JobSpec> SpecOf(uint32_t width, uint32_t heads, uint32_t seq_len,
                               Precision precision) {
  return MeasuredJob({kBlocks, width, heads, kVocabulary, seq_len, /*samples=*/1, precision});
}

// The blocks of a model without servers. Every block has its own weights, as in a run, so that they
// are read from memory and not from a cache.
class Blocks {
 public:
  // `spec` must outlive the blocks.
  static absl::StatusOr<std::unique_ptr<Blocks>> New(const JobSpec& spec,
                                                     const RuntimeOptions& options) {
    EPS_ASSIGN_OR_RETURN(auto runtime,
                         NewTorchRuntime(spec, NewModelStage, options, /*account=*/nullptr));
    auto blocks = std::make_unique<Blocks>(spec, std::move(runtime));
    for (uint32_t s = 0; s <= kBlocks; ++s) {
      EPS_ASSIGN_OR_RETURN(blocks->weights_.emplace_back(), blocks->NewWeights(StageId(s)));
      EPS_ASSIGN_OR_RETURN(blocks->gradients_.emplace_back(),
                           blocks->runtime_->NewHostStage(StageId(s)));
    }
    return blocks;
  }
  // Only New calls it.
  Blocks(const JobSpec& spec, std::unique_ptr<StageRuntime> runtime)
      : spec_(spec), runtime_(std::move(runtime)) {}

  // Returns, for each of the batches, the median seconds of a forward and a backward pass over one
  // block together, as the relay runs them. The batches alternate, so that a change in the
  // machine's speed affects all of them.
  absl::StatusOr<std::vector<double>> Measure(const std::vector<MicroBatch>& batches) {
    const auto embedding = runtime_->Load(StageId(0), weights_[0]);
    std::vector<ActivationPtr> inputs;
    for (const MicroBatch& batch : batches) {
      EPS_ASSIGN_OR_RETURN(inputs.emplace_back(),
                           runtime_->program(StageId(0)).Forward(*embedding, batch, nullptr));
      EPS_RETURN_IF_ERROR(Pass(batch, inputs.back()));  // the first pass allocates
    }
    std::vector<std::vector<double>> seconds(batches.size());
    const auto end = Clock::now() + kLeastTime;
    while (seconds.back().size() < kLeastRounds || Clock::now() < end) {
      for (size_t i = 0; i < batches.size(); ++i) {
        const auto begin = Clock::now();
        EPS_RETURN_IF_ERROR(Pass(batches[i], inputs[i]));
        seconds[i].push_back(std::chrono::duration<double>(Clock::now() - begin).count() / kBlocks);
      }
    }
    std::vector<double> medians;
    for (std::vector<double>& of_batch : seconds) {
      std::sort(of_batch.begin(), of_batch.end());
      medians.push_back(of_batch[of_batch.size() / 2]);
    }
    return medians;
  }

  // Returns the bytes per second of each link of a device while both are busy.
  absl::StatusOr<double> MeasureLinks() {
    const auto embedding = runtime_->Load(StageId(0), weights_[0]);
    const MicroBatch batch = MeasuredBatch(spec_, 1);
    EPS_ASSIGN_OR_RETURN(const ActivationPtr x,
                         runtime_->program(StageId(0)).Forward(*embedding, batch, nullptr));
    auto block = runtime_->Load(StageId(1), weights_[1]);
    EPS_ASSIGN_OR_RETURN(const auto result,
                         runtime_->program(StageId(1)).Backward(*block, batch, x, x, 0, nullptr));
    EPS_RETURN_IF_ERROR(runtime_->ToHost(StageId(1), *result.gradient, gradients_[1].get()));
    const auto begin = Clock::now();
    double bytes = 0;
    while (Clock::now() < begin + kLeastTime) {
      EPS_ASSIGN_OR_RETURN(const auto pending, runtime_->StartToHost(StageId(1), *result.gradient,
                                                                     gradients_[1].get()));
      block = runtime_->Load(StageId(1), weights_[1]);
      if (pending != nullptr) EPS_RETURN_IF_ERROR(pending->Wait());
      bytes += static_cast<double>(weights_[1]->bytes());
    }
    return bytes / std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  absl::StatusOr<std::shared_ptr<HostStage>> NewWeights(StageId stage) const {
    EPS_ASSIGN_OR_RETURN(std::shared_ptr<HostStage> host, runtime_->NewHostStage(stage));
    const std::vector<TensorUse>& uses = spec_.stages[stage.value()].uses;
    for (size_t use = 0; use < uses.size(); ++use) {
      const TensorId id = uses[use].tensor;
      FillInitialValues(spec_, id, 0,
                        absl::MakeSpan(host->tensor(use), spec_.tensors[id.value()].elements()));
    }
    return host;
  }

  absl::Status Pass(const MicroBatch& batch, const ActivationPtr& input) {
    std::vector<ActivationPtr> stash;
    ActivationPtr x = input;
    for (uint32_t s = 1; s <= kBlocks; ++s) {
      const auto weights = runtime_->Load(StageId(s), weights_[s]);
      EPS_ASSIGN_OR_RETURN(ActivationPtr y,
                           runtime_->program(StageId(s)).Forward(*weights, batch, x));
      EPS_ASSIGN_OR_RETURN(ActivationPtr stashed, runtime_->Stash(std::move(x)));
      stash.push_back(std::move(stashed));
      x = std::move(y);
    }
    ActivationPtr gradient = x;  // any values of this shape will do
    for (uint32_t s = kBlocks; s >= 1; --s) {
      const auto weights = runtime_->Load(StageId(s), weights_[s]);
      EPS_ASSIGN_OR_RETURN(x, runtime_->Unstash(std::move(stash[s - 1])));
      EPS_ASSIGN_OR_RETURN(auto result, runtime_->program(StageId(s))
                                            .Backward(*weights, batch, x, gradient,
                                                      /*loss_scale_log2=*/0, nullptr));
      gradient = std::move(result.grad_in);
      if (runtime_->in_host_memory()) continue;  // the client reads the gradient where it is
      EPS_RETURN_IF_ERROR(runtime_->ToHost(StageId(s), *result.gradient, gradients_[s].get()));
    }
    return absl::OkStatus();
  }

  const JobSpec& spec_;
  const std::unique_ptr<StageRuntime> runtime_;
  std::vector<std::shared_ptr<HostStage>> weights_;
  std::vector<std::shared_ptr<HostStage>> gradients_;
};

// The time of a block at two sizes of the micro-batch.
struct TwoPoints {
  double once = 0;   // seconds of a micro-batch
  double twice = 0;  // seconds of one that is twice as large
};

absl::StatusOr<TwoPoints> MeasureTwice(uint32_t width, uint32_t heads, Precision precision,
                                       const CalibrateOptions& options) {
  EPS_ASSIGN_OR_RETURN(const JobSpec spec, SpecOf(width, heads, options.seq_len, precision));
  EPS_ASSIGN_OR_RETURN(const auto blocks, Blocks::New(spec, options.runtime));
  EPS_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                       blocks->Measure({MeasuredBatch(spec, options.samples),
                                        MeasuredBatch(spec, 2 * options.samples)}));
  return TwoPoints{seconds[0], seconds[1]};
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
  constexpr Precision kFp32 = Precision::kFp32;
  EPS_ASSIGN_OR_RETURN(const TwoPoints here,
                       MeasureTwice(options.width, options.heads, kFp32, options));
  // The time that does not grow with the micro-batch belongs to its two passes. Noise must neither
  // make it negative nor let it absorb the part that grows.
  const double fixed = std::clamp(2 * here.once - here.twice, 0.0, here.once / 2);
  speed.pass_seconds = fixed / 2;
  speed.block_seconds = here.once - fixed;
  speed.wide_width = options.width;
  speed.wide_heads = options.heads;
  speed.wide_samples = 2 * options.samples;
  speed.wide_block_seconds = here.twice - fixed;
  if (options.width < kWide) {
    EPS_ASSIGN_OR_RETURN(const TwoPoints wide,
                         MeasureTwice(kWide, kWide / kWideHead, kFp32, options));
    speed.wide_width = kWide;
    speed.wide_heads = kWide / kWideHead;
    speed.wide_block_seconds = wide.twice - fixed;
  }
  EPS_ASSIGN_OR_RETURN(const TwoPoints bf16,
                       MeasureTwice(speed.wide_width, speed.wide_heads, Precision::kBf16, options));
  speed.wide_block_bf16_seconds = bf16.twice - fixed;
  EPS_ASSIGN_OR_RETURN(speed.device_memory, TorchDeviceMemory(options.runtime));
  if (speed.device_memory == 0) return speed;
  EPS_ASSIGN_OR_RETURN(const JobSpec spec,
                       SpecOf(kWide, kWide / kWideHead, options.seq_len, kFp32));
  EPS_ASSIGN_OR_RETURN(const auto blocks, Blocks::New(spec, options.runtime));
  EPS_ASSIGN_OR_RETURN(speed.to_device_bytes_per_second, blocks->MeasureLinks());
  speed.from_device_bytes_per_second = speed.to_device_bytes_per_second;
  return speed;
}

std::string StageSpeedToJson(const StageSpeed& speed) {
  nlohmann::ordered_json json;
  json["profile"] = speed.profile;
  json["block_seconds"] = speed.block_seconds;
  json["pass_seconds"] = speed.pass_seconds;
  json["wide_width"] = speed.wide_width;
  json["wide_heads"] = speed.wide_heads;
  json["wide_samples"] = speed.wide_samples;
  json["wide_block_seconds"] = speed.wide_block_seconds;
  json["wide_block_bf16_seconds"] = speed.wide_block_bf16_seconds;
  json["device_memory"] = speed.device_memory;
  json["to_device_bytes_per_second"] = speed.to_device_bytes_per_second;
  json["from_device_bytes_per_second"] = speed.from_device_bytes_per_second;
  return json.dump();
}

}  // namespace eps
