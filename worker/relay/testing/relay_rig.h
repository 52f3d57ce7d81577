#ifndef EPS_WORKER_RELAY_TESTING_RELAY_RIG_H_
#define EPS_WORKER_RELAY_TESTING_RELAY_RIG_H_

// For tests only: a relay whose client, runtime and batches are in memory and observed.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/data/batch_source.h"
#include "worker/relay/relay.h"
#include "worker/relay/synthetic_runtime.h"
#include "worker/relay/testing/fake_client.h"
#include "worker/relay/testing/relay_judge.h"

namespace eps {

// The synthetic runtime with a log of its calls.
class WatchedRuntime final : public StageRuntime {
 public:
  WatchedRuntime(const JobSpec& spec, MemoryAccount* account, Held* held)
      : inner_(NewSyntheticRuntime(spec, account)), held_(held) {
    for (uint32_t s = 0; s < spec.stages.size(); ++s) {
      programs_.push_back(std::make_unique<Program>(this, StageId(s)));
    }
  }

  StageProgram& program(StageId stage) override { return *programs_[stage.value()]; }
  absl::StatusOr<std::unique_ptr<HostStage>> NewHostStage(StageId stage) override {
    if (++host_stages == failing_host_stage) return absl::ResourceExhaustedError("no memory");
    return inner_->NewHostStage(stage);
  }
  absl::StatusOr<std::unique_ptr<HostStage>> NewBackwardStage(StageId stage) override {
    if (++host_stages == failing_host_stage) return absl::ResourceExhaustedError("no memory");
    return inner_->NewBackwardStage(stage);
  }
  std::shared_ptr<const StageWeights> Load(StageId stage,
                                           std::shared_ptr<HostStage> host) override {
    const auto weights = inner_->Load(stage, std::move(host));
    if (stage == without_values) kept_ = weights;
    return std::make_shared<WatchedWeights>(weights, held_);
  }
  // The synthetic model computes with all weights, so it gets those of its last forward pass.
  std::shared_ptr<const StageWeights> WithoutValues(StageId stage) override {
    EXPECT_EQ(stage, without_values);
    return std::make_shared<WatchedWeights>(std::exchange(kept_, nullptr), held_);
  }
  StageGradientPtr Add(StageGradientPtr left, StageGradientPtr right) override {
    return inner_->Add(std::move(left), std::move(right));
  }
  bool in_host_memory() const override { return !copies_gradients; }
  absl::StatusOr<std::unique_ptr<HostStage>> MoveToHost(StageId stage,
                                                        StageGradientPtr gradient) override {
    return inner_->MoveToHost(stage, std::move(gradient));
  }
  absl::Status ToHost(StageId stage, const StageGradient& gradient, HostStage* out) override {
    return inner_->ToHost(stage, gradient, out);
  }
  absl::Status BeginStash(uint64_t inputs, uint64_t gradients) override {
    return inner_->BeginStash(inputs, gradients);
  }
  void WillUnstash(const ActivationPtr& stashed) override { inner_->WillUnstash(stashed); }
  absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) override {
    return inner_->Stash(std::move(activation));
  }
  absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) override {
    ++unstashed;
    return inner_->Unstash(std::move(stashed));
  }
  DeviceMemory device_memory() const override { return inner_->device_memory(); }
  std::string compute_profile() const override { return inner_->compute_profile(); }

  std::vector<std::string> log;
  int unstashed = 0;
  int host_stages = 0;
  int failing_host_stage = 0;  // counted from 1
  std::string fail_at;
  uint64_t extra_loss_tokens = 0;
  bool copies_gradients = false;       // as a device with memory of its own
  StageId without_values{UINT32_MAX};  // the stage for which WithoutValues is expected

 private:
  // Weights that count as held while they exist.
  class WatchedWeights final : public StageWeights {
   public:
    WatchedWeights(std::shared_ptr<const StageWeights> weights, Held* held)
        : inner(std::move(weights)), held_(held) {
      if (held_ != nullptr) held_->Add();
    }
    ~WatchedWeights() override {
      if (held_ != nullptr) held_->Remove();
    }
    const std::shared_ptr<const StageWeights> inner;

   private:
    Held* const held_;
  };

  // A program that logs its calls and fails as a test demands.
  class Program final : public StageProgram {
   public:
    Program(WatchedRuntime* runtime, StageId stage)
        : runtime_(runtime), stage_(stage), inner_(runtime->inner_->program(stage)) {}
    const StageSpec& spec() const override { return inner_.spec(); }
    absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights, const MicroBatch& batch,
                                          const ActivationPtr& in) override {
      runtime_->log.push_back(absl::StrCat("forward ", stage_.value(), " ", batch.index));
      if (runtime_->log.back() == runtime_->fail_at) return absl::InternalError("scripted");
      return inner_.Forward(*static_cast<const WatchedWeights&>(weights).inner, batch, in);
    }
    absl::StatusOr<BackwardResult> Backward(const StageWeights& weights, const MicroBatch& batch,
                                            const ActivationPtr& in, const ActivationPtr& grad_out,
                                            int loss_scale_log2,
                                            StageGradientPtr sum_or_null) override {
      runtime_->log.push_back(absl::StrCat("backward ", stage_.value(), " ", batch.index));
      if (runtime_->log.back() == runtime_->fail_at) return absl::InternalError("scripted");
      auto result = inner_.Backward(*static_cast<const WatchedWeights&>(weights).inner, batch, in,
                                    grad_out, loss_scale_log2, std::move(sum_or_null));
      if (result.ok()) result->loss.tokens += runtime_->extra_loss_tokens;
      return result;
    }
    absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                                 const ActivationPtr& in, Predictions* predictions) override {
      runtime_->log.push_back(absl::StrCat("loss ", stage_.value(), " ", batch.index));
      if (runtime_->log.back() == runtime_->fail_at) return absl::InternalError("scripted");
      return inner_.Loss(*static_cast<const WatchedWeights&>(weights).inner, batch, in,
                         predictions);
    }

   private:
    WatchedRuntime* const runtime_;
    const StageId stage_;
    StageProgram& inner_;
  };

  const std::unique_ptr<StageRuntime> inner_;
  Held* const held_;
  std::shared_ptr<const StageWeights> kept_;  // of `without_values`
  std::vector<std::unique_ptr<Program>> programs_;
};

// A relay for all parts of a job, with everything that it uses.
struct Rig {
  explicit Rig(const JobShape& shape, int prefetch = 1, int loss_scale_log2 = 0)
      : spec(SpecOf(shape)),
        runtime(spec, &account, &watched),
        client(std::make_unique<FakeClient>(spec, loss_scale_log2)),
        batches(NewEmptyBatchSource(spec)) {
    job.spec = spec;
    for (uint32_t p = 0; p < shape.parts; ++p) job.parts.push_back(PartId(p));
    job.next_step = Step(1);
    options.prefetch = prefetch;
    relay = std::make_unique<Relay>(job, client.get(), &runtime, batches.get(), options);
  }

  // Evaluates `samples` held-out samples after every `every`-th step. Call it before Run.
  void Evaluate(uint64_t samples, uint64_t every) {
    evaluation = NewEmptyEvaluationSource(spec, samples);
    options.evaluation_or_null = evaluation.get();
    options.eval_steps = every;
    relay = std::make_unique<Relay>(job, client.get(), &runtime, batches.get(), options);
  }

  absl::Status Run(const std::function<bool()>& stop = nullptr) {
    return relay->Run(stop, [this](Step step, const LossSum& loss, const StepTiming& timing) {
      steps.push_back(step.value());
      losses.push_back(loss);
      EXPECT_GE(timing.forward_seconds, 0);
      EXPECT_GE(timing.backward_seconds, 0);
    });
  }

  JobSpec spec;
  MemoryAccount account;
  Held watched;  // loaded weights
  WatchedRuntime runtime;
  std::unique_ptr<FakeClient> client;
  std::unique_ptr<BatchSource> batches;
  std::unique_ptr<EvaluationSource> evaluation;
  JoinedJob job;
  RelayOptions options;
  std::unique_ptr<Relay> relay;
  std::vector<uint64_t> steps;
  std::vector<LossSum> losses;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_TESTING_RELAY_RIG_H_
