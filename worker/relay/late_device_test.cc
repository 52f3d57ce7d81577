// The relay over a runtime whose gradients and losses arrive late, as those of a device do.

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/memory_account.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "worker/client/parameter_client.h"
#include "worker/data/batch_source.h"
#include "worker/relay/relay.h"
#include "worker/relay/stage_program.h"
#include "worker/relay/synthetic_runtime.h"
#include "worker/relay/testing/plain_loop.h"
#include "worker/relay/testing/send_stage.h"

namespace eps {
namespace {

JobSpec MakeSpec(uint32_t parts) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = 3;
  spec.training.parts = parts;
  spec.training.micro_batches = 3;
  spec.training.steps = 3;
  spec.groups.clear();
  spec.tensors.clear();
  spec.stages.clear();
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  return spec;
}

uint64_t ElementsOf(const JobSpec& spec, StageId stage, size_t use) {
  return spec.tensors[spec.stages[stage.value()].uses[use].tensor.value()].elements();
}

// The gradients that a relay pushed and the losses that it reported.
struct Seen {
  std::map<std::tuple<uint64_t, uint32_t, uint32_t>, std::vector<std::vector<float>>> pushes;
  std::vector<std::pair<double, uint64_t>> losses;
};

// Servers whose weights never change: each is 0.01 times one more than the stage's number.
class ConstantClient final : public ParameterClient {
 public:
  ConstantClient(const JobSpec& spec, Seen* seen)
      : spec_(spec), chunks_(ChunkMap::Build(spec)), seen_(seen) {}

  absl::StatusOr<JoinedJob> Join(const JoinOptions&) override {
    return absl::UnimplementedError("not used by a relay");
  }
  absl::StatusOr<StepStart> BeginStep(Step step) override {
    step_ = step;
    StepStart start;
    start.done = step.value() > spec_.training.steps;
    start.step = step;
    start.version = Version(step.value() - 1);
    return start;
  }
  absl::Status ReportLosses(absl::Span<const PartLossSum> losses) override {
    for (const PartLossSum& loss : losses) seen_->losses.emplace_back(loss.loss_sum, loss.tokens);
    return absl::OkStatus();
  }
  absl::Status ReportEvaluation(absl::Span<const PartLossSum>) override { return absl::OkStatus(); }
  std::unique_ptr<PendingFetch> FetchStage(StageId stage, Version, bool backward,
                                           std::shared_ptr<StageSink> sink) override {
    Tensors weights = InitialWeights(spec_);
    for (std::vector<float>& tensor : weights) {
      std::fill(tensor.begin(), tensor.end(), 0.01f * static_cast<float>(stage.value() + 1));
    }
    const absl::Status status =
        SendStage(spec_, chunks_, Wire::kFp32, {stage, backward}, weights, weights, sink.get());
    EXPECT_TRUE(status.ok()) << status;
    return std::make_unique<Fetched>();
  }
  absl::Status Push(StageId use, PartId part, uint64_t,
                    std::shared_ptr<const GradientSource> gradient) override {
    auto& tensors = seen_->pushes[{step_.value(), use.value(), part.value()}];
    EXPECT_TRUE(tensors.empty()) << "pushed twice";
    tensors = ReceiveGradient(spec_, chunks_, Wire::kFp32, use, *gradient);
    return absl::OkStatus();
  }
  absl::Status Flush() override { return absl::OkStatus(); }
  bool HandOver() override { return false; }
  absl::Status Leave() override { return absl::OkStatus(); }
  ClientStats stats() const override { return {}; }

 private:
  class Fetched final : public PendingFetch {
   public:
    absl::Status Wait() override { return absl::OkStatus(); }
  };

  const JobSpec& spec_;
  const ChunkMap chunks_;
  Seen* const seen_;
  Step step_;
};

// The synthetic runtime as a device: gradients are NaN and losses absent until waited for.
class LateRuntime final : public StageRuntime {
 public:
  explicit LateRuntime(const JobSpec& spec)
      : spec_(spec), inner_(NewSyntheticRuntime(spec, nullptr)) {
    for (uint32_t s = 0; s < spec.stages.size(); ++s) {
      programs_.push_back(std::make_unique<Program>(this, &inner_->program(StageId(s))));
    }
  }

  StageProgram& program(StageId stage) override { return *programs_[stage.value()]; }
  void AllowLateLosses() override { late_losses_ = true; }
  absl::StatusOr<std::unique_ptr<HostStage>> NewHostStage(StageId stage) override {
    return inner_->NewHostStage(stage);
  }
  absl::StatusOr<std::unique_ptr<HostStage>> NewBackwardStage(StageId stage) override {
    return inner_->NewBackwardStage(stage);
  }
  std::shared_ptr<const StageWeights> Load(StageId stage,
                                           std::shared_ptr<HostStage> host) override {
    return inner_->Load(stage, std::move(host));
  }
  std::shared_ptr<const StageWeights> WithoutValues(StageId stage) override {
    return inner_->WithoutValues(stage);
  }
  StageGradientPtr Add(StageGradientPtr left, StageGradientPtr right) override {
    return inner_->Add(std::move(left), std::move(right));
  }
  absl::Status ToHost(StageId stage, const StageGradient& gradient, HostStage* out) override {
    return inner_->ToHost(stage, gradient, out);
  }
  absl::StatusOr<std::unique_ptr<PendingCopy>> StartToHost(StageId stage,
                                                           const StageGradient& gradient,
                                                           HostStage* out) override {
    std::unique_ptr<HostStage> device = inner_->NewHostStage(stage).value();
    const absl::Status status = inner_->ToHost(stage, gradient, device.get());
    if (!status.ok()) return status;
    std::vector<uint64_t> elements;
    for (size_t use = 0; use < spec_.stages[stage.value()].uses.size(); ++use) {
      elements.push_back(ElementsOf(spec_, stage, use));
      std::fill_n(out->tensor(use), elements.back(), std::numeric_limits<float>::quiet_NaN());
    }
    most_pending = std::max(most_pending, ++pending_);
    return std::unique_ptr<PendingCopy>(
        std::make_unique<Copy>(this, std::move(device), out, std::move(elements)));
  }
  absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) override {
    return inner_->Stash(std::move(activation));
  }
  absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) override {
    return inner_->Unstash(std::move(stashed));
  }
  DeviceMemory device_memory() const override { return inner_->device_memory(); }
  std::string compute_profile() const override { return inner_->compute_profile(); }

  int most_pending = 0;
  int copies_until_failure = -1;  // never
  int losses_until_failure = -1;  // never

 private:
  class Copy final : public PendingCopy {
   public:
    Copy(LateRuntime* runtime, std::unique_ptr<HostStage> device, HostStage* out,
         std::vector<uint64_t> elements)
        : runtime_(runtime),
          device_(std::move(device)),
          out_(out),
          elements_(std::move(elements)) {}
    absl::Status Wait() override {
      --runtime_->pending_;
      if (runtime_->copies_until_failure-- == 0) return absl::InternalError("scripted copy");
      for (size_t use = 0; use < elements_.size(); ++use) {
        std::memcpy(out_->tensor(use), device_->tensor(use), elements_[use] * sizeof(float));
      }
      return absl::OkStatus();
    }

   private:
    LateRuntime* const runtime_;
    const std::unique_ptr<HostStage> device_;
    HostStage* const out_;
    const std::vector<uint64_t> elements_;
  };

  class Loss final : public LateLoss {
   public:
    Loss(LateRuntime* runtime, LossSum loss) : runtime_(runtime), loss_(loss) {}
    absl::StatusOr<LossSum> Wait() override {
      if (runtime_->losses_until_failure-- == 0) return absl::InternalError("scripted loss");
      return loss_;
    }

   private:
    LateRuntime* const runtime_;
    const LossSum loss_;
  };

  class Program final : public StageProgram {
   public:
    Program(LateRuntime* runtime, StageProgram* inner) : runtime_(runtime), inner_(inner) {}
    const StageSpec& spec() const override { return inner_->spec(); }
    absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights, const MicroBatch& batch,
                                          const ActivationPtr& in) override {
      return inner_->Forward(weights, batch, in);
    }
    absl::StatusOr<BackwardResult> Backward(const StageWeights& weights, const MicroBatch& batch,
                                            const ActivationPtr& in, const ActivationPtr& grad_out,
                                            int loss_scale_log2,
                                            StageGradientPtr sum_or_null) override {
      auto result =
          inner_->Backward(weights, batch, in, grad_out, loss_scale_log2, std::move(sum_or_null));
      if (result.ok() && grad_out == nullptr && runtime_->late_losses_) {
        result->late_loss = std::make_unique<LateRuntime::Loss>(runtime_, result->loss);
        result->loss.sum = std::numeric_limits<double>::quiet_NaN();
      }
      return result;
    }
    absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                                 const ActivationPtr& in, Predictions* predictions) override {
      return inner_->Loss(weights, batch, in, predictions);
    }

   private:
    LateRuntime* const runtime_;
    StageProgram* const inner_;
  };

  const JobSpec& spec_;
  const std::unique_ptr<StageRuntime> inner_;
  std::vector<std::unique_ptr<Program>> programs_;
  bool late_losses_ = false;
  int pending_ = 0;
};

absl::Status Train(const JobSpec& spec, StageRuntime* runtime, Seen* seen) {
  ConstantClient client(spec, seen);
  const auto batches = NewEmptyBatchSource(spec);
  JoinedJob job;
  job.spec = spec;
  for (uint32_t p = 0; p < spec.training.parts; ++p) job.parts.push_back(PartId(p));
  job.next_step = Step(1);
  Relay relay(job, &client, runtime, batches.get(), RelayOptions());
  return relay.Run(nullptr, nullptr);
}

TEST(LateDeviceTest, PushesAndReportsAsOnACpu) {
  for (const uint32_t parts : {1u, 2u}) {
    const JobSpec spec = MakeSpec(parts);
    Seen expected;
    ASSERT_TRUE(Train(spec, NewSyntheticRuntime(spec, nullptr).get(), &expected).ok());
    ASSERT_EQ(expected.pushes.size(), spec.training.steps * spec.stages.size() * parts);
    ASSERT_EQ(expected.losses.size(), spec.training.steps * parts);

    LateRuntime runtime(spec);
    Seen seen;
    const absl::Status status = Train(spec, &runtime, &seen);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(seen.pushes, expected.pushes) << "NaN: a gradient was pushed before it was copied";
    EXPECT_EQ(seen.losses, expected.losses);
  }
}

TEST(LateDeviceTest, EnqueuesNextWorkBeforeAwaitingAGradient) {
  const JobSpec spec = MakeSpec(2);
  LateRuntime runtime(spec);
  Seen seen;
  ASSERT_TRUE(Train(spec, &runtime, &seen).ok());
  EXPECT_EQ(runtime.most_pending, 2);
}

TEST(LateDeviceTest, EndsWithTheErrorOfTheDevice) {
  const JobSpec spec = MakeSpec(2);
  for (const int at : {0, 1, 9}) {
    LateRuntime runtime(spec);
    runtime.copies_until_failure = at;
    Seen seen;
    const absl::Status status = Train(spec, &runtime, &seen);
    EXPECT_TRUE(absl::StrContains(status.message(), "scripted copy")) << status;
    EXPECT_EQ(seen.pushes.size(), static_cast<size_t>(at));
  }
  LateRuntime runtime(spec);
  runtime.losses_until_failure = 4;
  Seen seen;
  const absl::Status status = Train(spec, &runtime, &seen);
  EXPECT_TRUE(absl::StrContains(status.message(), "scripted loss")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "of step 1")) << status;
}

}  // namespace
}  // namespace eps
