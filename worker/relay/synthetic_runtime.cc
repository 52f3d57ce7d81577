// A small model in plain loops: stage i computes softsign((x W_i) / 8 + b_i), the last stage half
// the squared distance to a random target. Inputs and targets are drawn by (seed, step,
// micro-batch), so a stale weight, a wrong part or a wrong step changes every gradient. No libm.
//
// The device is the host. Everything that a device would hold (weights in use, activations,
// gradients) counts as device memory, so that tests can measure how much a relay keeps there.

#include "worker/relay/synthetic_runtime.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/numerics/flush_denormals.h"
#include "base/numerics/rng.h"
#include "base/numerics/tree_add.h"
#include "worker/relay/stage_program.h"
#include "worker/relay/stash_codec.h"
#include "worker/relay/weight_copies.h"

namespace eps {
namespace {

constexpr float kInputScale = 0.125f;
constexpr uint16_t kInputSite = 100;
constexpr uint16_t kTargetSite = 101;
// The recomputed forward pass, plus twice its number of operations (planner/workload.h).
constexpr int kBackwardPasses = 3;

// A stage's arrays in plain memory.
class HostArrays final : public HostStage {
 public:
  HostArrays(const JobSpec& spec, StageId stage, bool backward, MemoryAccount* account) {
    for (const TensorUse& use : spec.stages[stage.value()].uses) {
      const uint64_t bytes = spec.tensors[use.tensor.value()].elements() * sizeof(float);
      arrays_.emplace_back(bytes, MemoryKind::kStage, account);
      second_copies_.emplace_back();
      bytes_ += bytes;
      if (!backward || !HasSecondCopy(spec, use)) continue;
      second_copies_.back() = Buffer(bytes, MemoryKind::kStage, account);
      bytes_ += bytes;
    }
  }
  float* tensor(size_t use) override { return arrays_[use].floats(); }
  float* second_copy(size_t use) override { return second_copies_[use].floats(); }
  uint64_t bytes() const override { return bytes_; }

 private:
  std::vector<Buffer> arrays_;
  std::vector<Buffer> second_copies_;  // empty if the use has none
  uint64_t bytes_ = 0;
};

// Charges an account during its lifetime.
class Charge {
 public:
  Charge(MemoryKind kind, uint64_t bytes, MemoryAccount* account_or_null)
      : kind_(kind), bytes_(bytes), account_(account_or_null) {
    if (account_ != nullptr) account_->Charge(kind_, bytes_);
  }
  ~Charge() {
    if (account_ != nullptr) account_->Release(kind_, bytes_);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  const MemoryKind kind_;
  const uint64_t bytes_;
  MemoryAccount* const account_;
};

// Weights that stay where the client decoded them.
class InPlaceWeights final : public StageWeights {
 public:
  InPlaceWeights(std::shared_ptr<HostStage> host, MemoryAccount* device)
      : host_(std::move(host)), charge_(MemoryKind::kStage, host_->bytes(), device) {}
  const float* tensor(size_t use) const { return host_->tensor(use); }
  // The weights with which the gradient of the stage's input is computed.
  const float* for_input_gradient(size_t use) const {
    const float* const second = host_->second_copy(use);
    return second == nullptr ? host_->tensor(use) : second;
  }

 private:
  const std::shared_ptr<HostStage> host_;
  const Charge charge_;
};

using Values = std::shared_ptr<const std::vector<float>>;
using Codes = std::shared_ptr<const std::vector<uint8_t>>;  // encoded by the stash codec

// An activation on the device or in the stash; the two charge different accounts, and the stash
// holds only the codes of what one stage passes to the next.
class Vector final : public Activation {
 public:
  Vector(Values values, Codes codes, MemoryKind kind, MemoryAccount* account)
      : values(std::move(values)), codes(std::move(codes)), charge_(kind, bytes(), account) {}
  uint64_t bytes() const override {
    return values == nullptr ? codes->size() : values->size() * sizeof(float);
  }
  const Values values;  // null in the stash if there are codes
  const Codes codes;    // null for gradients, and if the stash codec is exact

 private:
  const Charge charge_;
};

ActivationPtr OnDevice(std::vector<float> values, Codes codes, MemoryAccount* device) {
  return std::make_shared<Vector>(std::make_shared<const std::vector<float>>(std::move(values)),
                                  std::move(codes), MemoryKind::kStage, device);
}

const std::vector<float>& ValuesOf(const ActivationPtr& activation) {
  return *static_cast<const Vector&>(*activation).values;
}

// A gradient in plain arrays.
class Arrays final : public StageGradient {
 public:
  Arrays(size_t width, MemoryAccount* device)
      : tensors{std::vector<float>(width * width, 0.0f), std::vector<float>(width, 0.0f)},
        charge_(MemoryKind::kStage, (width * width + width) * sizeof(float), device) {}
  std::vector<std::vector<float>> tensors;  // by use

 private:
  const Charge charge_;
};

// Returns left + right by TreeAdd. The caller must hold ScopedFlushDenormals.
StageGradientPtr AddArrays(StageGradientPtr left, const StageGradient& right) {
  auto& a = static_cast<Arrays&>(*left).tensors;
  const auto& b = static_cast<const Arrays&>(right).tensors;
  for (size_t t = 0; t < a.size(); ++t) {
    TreeAdd(a[t].data(), b[t].data(), a[t].size(), a[t].data());
  }
  return left;
}

// A gradient where it was computed, on its way to the servers.
class MovedArrays final : public HostStage {
 public:
  MovedArrays(std::vector<std::vector<float>> tensors, MemoryAccount* account)
      : tensors_(std::move(tensors)), charge_(MemoryKind::kStage, bytes(), account) {}
  float* tensor(size_t use) override { return tensors_[use].data(); }
  float* second_copy(size_t /*use*/) override { return nullptr; }
  uint64_t bytes() const override {
    uint64_t bytes = 0;
    for (const std::vector<float>& tensor : tensors_) bytes += tensor.size() * sizeof(float);
    return bytes;
  }

 private:
  std::vector<std::vector<float>> tensors_;  // by use
  const Charge charge_;
};

// Returns 2^-k without libm; exact while the result is normal.
float InversePowerOfTwo(int k) {
  float scale = 1.0f;
  for (; k > 0; --k) scale *= 0.5f;
  for (; k < 0; ++k) scale *= 2.0f;
  return scale;
}

// Draws uniformly from [-1, 1) by the key.
std::vector<float> Draw(const RngKey& key, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const PhiloxBlock block =
        Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(key.step), key.micro_batch,
                    uint32_t{key.stage} << 16 | key.site},
                   {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
    values[i] = static_cast<float>(static_cast<int32_t>(block[0])) * (1.0f / 2147483648.0f);
  }
  return values;
}

// Makes a pass last at least the given time.
class TimedPass {
 public:
  explicit TimedPass(std::chrono::milliseconds least) : least_(least) {
    if (least_.count() > 0) end_ = std::chrono::steady_clock::now() + least_;
  }
  ~TimedPass() {
    if (least_.count() > 0) std::this_thread::sleep_until(end_);
  }
  TimedPass(const TimedPass&) = delete;
  TimedPass& operator=(const TimedPass&) = delete;

 private:
  const std::chrono::milliseconds least_;
  std::chrono::steady_clock::time_point end_;
};

// One stage of the synthetic model.
class SyntheticStage final : public StageProgram {
 public:
  SyntheticStage(const JobSpec& spec, StageId stage, const StashCodec& stash, MemoryAccount* device,
                 std::chrono::milliseconds pass_time)
      : spec_(spec),
        stage_(spec.stages[stage.value()]),
        first_(stage.value() == 0),
        last_(stage.value() + 1 == spec.stages.size()),
        width_(static_cast<size_t>(spec.model.synthetic.n_embd)),
        stash_(stash),
        device_(device),
        pass_time_(pass_time) {}

  const StageSpec& spec() const override { return stage_; }

  absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights, const MicroBatch& batch,
                                        const ActivationPtr& in) override {
    const TimedPass pass(pass_time_);
    const ScopedFlushDenormals flush;
    std::vector<float> y = Linear(weights, Input(batch, in));
    for (float& v : y) v = v / (1.0f + std::fabs(v));
    if (stash_.exact()) return OnDevice(std::move(y), nullptr, device_);
    std::vector<uint8_t> codes(y.size() * stash_.bytes_per_element());
    stash_.Encode(y.data(), y.size(), codes.data());
    stash_.Decode(codes.data(), y.size(), y.data());
    return OnDevice(std::move(y), std::make_shared<const std::vector<uint8_t>>(std::move(codes)),
                    device_);
  }

  absl::StatusOr<BackwardResult> Backward(const StageWeights& weights, const MicroBatch& batch,
                                          const ActivationPtr& in, const ActivationPtr& grad_out,
                                          int loss_scale_log2,
                                          StageGradientPtr sum_or_null) override {
    const TimedPass pass(kBackwardPasses * pass_time_);
    const ScopedFlushDenormals flush;
    const std::vector<float> x = Input(batch, in);
    std::vector<float> dy = Linear(weights, x);
    BackwardResult result;
    if (last_) {
      const float scale = InversePowerOfTwo(loss_scale_log2);
      const std::vector<float> errors = Errors(batch, dy, &result.loss);
      for (size_t i = 0; i < dy.size(); ++i) {
        const float d = 1.0f + std::fabs(dy[i]);
        dy[i] = errors[i] * scale / (d * d);
      }
    } else {
      const std::vector<float>& g = ValuesOf(grad_out);
      for (size_t i = 0; i < dy.size(); ++i) {
        const float d = 1.0f + std::fabs(dy[i]);
        dy[i] = g[i] / (d * d);
      }
    }
    result.gradient = WeightGradient(x, dy);
    if (sum_or_null != nullptr) {
      result.gradient = AddArrays(std::move(sum_or_null), *result.gradient);
    }
    if (!first_) result.grad_in = InputGradient(weights, dy);
    return result;
  }

  absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                               const ActivationPtr& in, Predictions* /*none*/) override {
    const TimedPass pass(pass_time_);
    const ScopedFlushDenormals flush;
    LossSum loss;
    Errors(batch, Linear(weights, Input(batch, in)), &loss);
    return loss;
  }

 private:
  // Returns the distance of softsign(y) to the target and adds half its square to the loss.
  std::vector<float> Errors(const MicroBatch& batch, const std::vector<float>& y,
                            LossSum* loss) const {
    std::vector<float> errors = Draw(Key(batch, kTargetSite), y.size());
    for (size_t i = 0; i < y.size(); ++i) {
      errors[i] = y[i] / (1.0f + std::fabs(y[i])) - errors[i];
      loss->sum += 0.5 * static_cast<double>(errors[i]) * static_cast<double>(errors[i]);
    }
    loss->tokens = CountedTokens(batch);
    return errors;
  }

  RngKey Key(const MicroBatch& batch, uint16_t site) const {
    return RngKey{spec_.training.seed, batch.step.value(), batch.index, 0, site};
  }

  std::vector<float> Input(const MicroBatch& batch, const ActivationPtr& in) const {
    if (!first_) return ValuesOf(in);
    return Draw(Key(batch, kInputSite), batch.samples * width_);
  }

  std::vector<float> Linear(const StageWeights& weights, const std::vector<float>& x) const {
    const float* w = static_cast<const InPlaceWeights&>(weights).tensor(0);
    const float* b = static_cast<const InPlaceWeights&>(weights).tensor(1);
    std::vector<float> y(x.size());
    for (size_t n = 0; n < x.size() / width_; ++n) {
      float* row = &y[n * width_];
      for (size_t j = 0; j < width_; ++j) row[j] = b[j];
      for (size_t k = 0; k < width_; ++k) {
        const float xk = x[n * width_ + k] * kInputScale;
        for (size_t j = 0; j < width_; ++j) row[j] = row[j] + xk * w[k * width_ + j];
      }
    }
    return y;
  }

  StageGradientPtr WeightGradient(const std::vector<float>& x, const std::vector<float>& dy) const {
    auto gradient = std::make_unique<Arrays>(width_, device_);
    for (size_t n = 0; n < x.size() / width_; ++n) {
      const float* d = &dy[n * width_];
      for (size_t k = 0; k < width_; ++k) {
        const float xk = x[n * width_ + k] * kInputScale;
        float* row = &gradient->tensors[0][k * width_];
        for (size_t j = 0; j < width_; ++j) row[j] = row[j] + xk * d[j];
      }
      for (size_t j = 0; j < width_; ++j) gradient->tensors[1][j] += d[j];
    }
    return gradient;
  }

  ActivationPtr InputGradient(const StageWeights& weights, const std::vector<float>& dy) const {
    const float* w = static_cast<const InPlaceWeights&>(weights).for_input_gradient(0);
    std::vector<float> dx(dy.size());
    for (size_t n = 0; n < dy.size() / width_; ++n) {
      for (size_t k = 0; k < width_; ++k) {
        float sum = 0.0f;
        for (size_t j = 0; j < width_; ++j) sum += dy[n * width_ + j] * w[k * width_ + j];
        dx[n * width_ + k] = sum * kInputScale;
      }
    }
    return OnDevice(std::move(dx), nullptr, device_);
  }

  const JobSpec& spec_;
  const StageSpec& stage_;
  const bool first_;
  const bool last_;
  const size_t width_;
  const StashCodec& stash_;
  MemoryAccount* const device_;
  const std::chrono::milliseconds pass_time_;
};

// The synthetic model on the host.
class SyntheticRuntime final : public StageRuntime {
 public:
  SyntheticRuntime(const JobSpec& spec, const StashCodec& stash, MemoryAccount* account,
                   std::chrono::milliseconds pass_time)
      : spec_(spec), stash_(stash), account_(account) {
    for (uint32_t s = 0; s < spec.stages.size(); ++s) {
      stages_.push_back(
          std::make_unique<SyntheticStage>(spec, StageId(s), stash, &device_, pass_time));
    }
  }

  StageProgram& program(StageId stage) override { return *stages_[stage.value()]; }
  absl::StatusOr<std::unique_ptr<HostStage>> NewHostStage(StageId stage) override {
    return std::make_unique<HostArrays>(spec_, stage, /*backward=*/false, account_);
  }
  absl::StatusOr<std::unique_ptr<HostStage>> NewBackwardStage(StageId stage) override {
    return std::make_unique<HostArrays>(spec_, stage, /*backward=*/true, account_);
  }
  std::shared_ptr<const StageWeights> Load(StageId, std::shared_ptr<HostStage> host) override {
    return std::make_shared<InPlaceWeights>(std::move(host), &device_);
  }
  std::shared_ptr<const StageWeights> WithoutValues(StageId stage) override {
    EPS_CHECK_MSG(false, "stage " << stage << " of the synthetic model reads its weights");
    return nullptr;
  }
  StageGradientPtr Add(StageGradientPtr left, StageGradientPtr right) override {
    const ScopedFlushDenormals flush;
    return AddArrays(std::move(left), *right);
  }
  bool in_host_memory() const override { return true; }
  absl::StatusOr<std::unique_ptr<HostStage>> MoveToHost(StageId,
                                                        StageGradientPtr gradient) override {
    auto tensors = std::move(static_cast<Arrays&>(*gradient).tensors);
    gradient = nullptr;  // no longer counts as device memory
    return std::unique_ptr<HostStage>(std::make_unique<MovedArrays>(std::move(tensors), account_));
  }
  absl::Status ToHost(StageId, const StageGradient& gradient, HostStage* out) override {
    const auto& tensors = static_cast<const Arrays&>(gradient).tensors;
    for (size_t t = 0; t < tensors.size(); ++t) {
      std::copy(tensors[t].begin(), tensors[t].end(), out->tensor(t));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) override {
    const auto& vector = static_cast<const Vector&>(*activation);
    return ActivationPtr(std::make_shared<Vector>(vector.codes == nullptr ? vector.values : nullptr,
                                                  vector.codes, MemoryKind::kStash, account_));
  }
  absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) override {
    const auto& vector = static_cast<const Vector&>(*stashed);
    if (vector.codes == nullptr) {
      return ActivationPtr(
          std::make_shared<Vector>(vector.values, nullptr, MemoryKind::kStage, &device_));
    }
    std::vector<float> values(vector.codes->size() / stash_.bytes_per_element());
    stash_.Decode(vector.codes->data(), values.size(), values.data());
    return OnDevice(std::move(values), vector.codes, &device_);
  }
  DeviceMemory device_memory() const override {
    return {device_.live_bytes(), device_.peak_bytes()};
  }
  std::string compute_profile() const override { return "synthetic"; }

 private:
  const JobSpec& spec_;
  const StashCodec& stash_;
  MemoryAccount* const account_;
  MemoryAccount device_;
  std::vector<std::unique_ptr<SyntheticStage>> stages_;
};

}  // namespace

std::unique_ptr<StageRuntime> NewSyntheticRuntime(const JobSpec& spec, MemoryAccount* account,
                                                  std::chrono::milliseconds pass_time) {
  EPS_CHECK(spec.model.type == ModelType::kSynthetic);
  const auto stash = StashCodec::Find(spec.codecs.stash);
  EPS_CHECK_MSG(stash.ok(), stash.status());
  return std::make_unique<SyntheticRuntime>(spec, **stash, account, pass_time);
}

}  // namespace eps
