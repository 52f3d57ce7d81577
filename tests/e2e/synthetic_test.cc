// Runs two real servers and real workers without LibTorch on the synthetic model. The result must
// be, bit for bit, what a plain loop in this process computes, however the parts are divided.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/job/job_spec.h"
#include "base/job/layout/model_layout.h"
#include "base/job/schedule.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "optimizer/update_rule.h"
#include "tests/e2e/loopback_cluster.h"
#include "worker/client/parameter_client.h"
#include "worker/data/batch_source.h"
#include "worker/relay/relay.h"
#include "worker/relay/stage_program.h"
#include "worker/relay/synthetic_runtime.h"
#include "worker/relay/testing/plain_loop.h"

namespace eps {
namespace {

constexpr uint64_t kSteps = 5;

JobSpec SpecOf(const std::string& name, Clip clip) {
  JobSpec spec = TinySyntheticSpec();
  spec.name = name;
  spec.model.synthetic.n_layer = 4;
  spec.chunk_elements = 2048;  // two panels per matrix, so that every stage is on both servers
  spec.groups.clear();
  spec.tensors.clear();
  spec.stages.clear();
  EXPECT_TRUE(BuildLayout(/*weight_decay=*/0.1, &spec).ok());
  spec.training.steps = kSteps;
  spec.training.micro_batches = 3;
  spec.training.parts = 3;  // with two parts the order would not show
  spec.training.clip = clip;
  spec.training.max_grad_norm = 0.01;  // below the norms that occur: clipping always takes effect
  spec.training.mode = clip == Clip::kExact ? Mode::kSealed : Mode::kEager;
  spec.schedule.name = "linear";
  spec.schedule.warmup_steps = 2;
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

// The gradient into which a worker puts a NaN. Step 0 disables that.
struct Poison {
  uint64_t step = 0;
  uint32_t part = 0;
  StageId stage;
};

// The synthetic model, with one value of the `poison` gradient replaced on its way to the servers.
class PoisonedRuntime final : public StageRuntime {
 public:
  PoisonedRuntime(const JobSpec& spec, const Poison& poison, std::unique_ptr<StageRuntime> runtime)
      : spec_(spec),
        poison_(poison),
        runtime_(std::move(runtime)),
        program_(this, &runtime_->program(poison.stage)) {}

  StageProgram& program(StageId stage) override {
    return stage == poison_.stage ? program_ : runtime_->program(stage);
  }
  absl::StatusOr<std::unique_ptr<HostStage>> NewHostStage(StageId stage) override {
    return runtime_->NewHostStage(stage);
  }
  absl::StatusOr<std::unique_ptr<HostStage>> NewBackwardStage(StageId stage) override {
    return runtime_->NewBackwardStage(stage);
  }
  std::shared_ptr<const StageWeights> Load(StageId stage,
                                           std::shared_ptr<HostStage> host) override {
    return runtime_->Load(stage, std::move(host));
  }
  std::shared_ptr<const StageWeights> WithoutValues(StageId stage) override {
    return runtime_->WithoutValues(stage);
  }
  StageGradientPtr Add(StageGradientPtr left, StageGradientPtr right) override {
    return runtime_->Add(std::move(left), std::move(right));
  }
  bool in_host_memory() const override { return true; }
  absl::StatusOr<std::unique_ptr<HostStage>> MoveToHost(StageId stage,
                                                        StageGradientPtr gradient) override {
    auto host = runtime_->MoveToHost(stage, std::move(gradient));
    if (host.ok() && stage == poison_.stage && poisoned_) (*host)->tensor(0)[5] = std::nanf("");
    return host;
  }
  absl::Status ToHost(StageId stage, const StageGradient& gradient, HostStage* out) override {
    const absl::Status status = runtime_->ToHost(stage, gradient, out);
    if (stage == poison_.stage && poisoned_) out->tensor(0)[5] = std::nanf("");
    return status;
  }
  absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) override {
    return runtime_->Stash(std::move(activation));
  }
  absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) override {
    return runtime_->Unstash(std::move(stashed));
  }
  DeviceMemory device_memory() const override { return runtime_->device_memory(); }
  std::string compute_profile() const override { return runtime_->compute_profile(); }

 private:
  // Records whose gradient it computes, for the MoveToHost call that follows.
  class Program final : public StageProgram {
   public:
    Program(PoisonedRuntime* runtime, StageProgram* program)
        : runtime_(runtime), program_(program) {}
    const StageSpec& spec() const override { return program_->spec(); }
    absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights, const MicroBatch& batch,
                                          const ActivationPtr& in) override {
      return program_->Forward(weights, batch, in);
    }
    absl::StatusOr<BackwardResult> Backward(const StageWeights& weights, const MicroBatch& batch,
                                            const ActivationPtr& in, const ActivationPtr& grad_out,
                                            int loss_scale_log2,
                                            StageGradientPtr sum_or_null) override {
      const uint32_t part = batch.index / runtime_->spec_.training.micro_batches;
      const Poison& poison = runtime_->poison_;
      runtime_->poisoned_ = batch.step == Step(poison.step) && part == poison.part;
      return program_->Backward(weights, batch, in, grad_out, loss_scale_log2,
                                std::move(sum_or_null));
    }
    absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                                 const ActivationPtr& in, Predictions* predictions) override {
      return program_->Loss(weights, batch, in, predictions);
    }

   private:
    PoisonedRuntime* const runtime_;
    StageProgram* const program_;
  };

  const JobSpec& spec_;
  const Poison poison_;
  const std::unique_ptr<StageRuntime> runtime_;
  Program program_;
  bool poisoned_ = false;
};

using Outcome = LoopbackCluster::Outcome;

// Trains the whole model with AdamW in this process, without clipping. Step `without_step` consumes
// its data but updates nothing; 0 disables that.
Outcome TrainPlainly(const JobSpec& spec, uint64_t without_step = 0) {
  Outcome outcome;
  outcome.weights = InitialWeights(spec);
  Tensors exp_avg;
  for (const auto& tensor : outcome.weights) exp_avg.emplace_back(tensor.size(), 0.0f);
  Tensors exp_avg_sq = exp_avg;
  const auto runtime = NewSyntheticRuntime(spec, nullptr);
  const auto batches = NewEmptyBatchSource(spec);
  const auto rule = *NewUpdateRule(spec.optimizer, Kernel::kReference);
  uint64_t update = 0;
  for (uint64_t t = 1; t <= spec.training.steps; ++t) {
    std::vector<PlainPart> parts;
    uint64_t tokens = 0;
    double loss = 0;
    for (uint32_t p = 0; p < spec.training.parts; ++p) {
      parts.push_back(RunPartPlainly(spec, outcome.weights, Step(t), PartId(p),
                                     /*loss_scale_log2=*/0, runtime.get(), batches.get()));
      tokens += parts.back().tokens;
      loss += parts.back().loss_sum;
    }
    outcome.losses.push_back(loss / static_cast<double>(tokens));
    outcome.tokens.push_back(tokens);
    if (t == without_step) continue;
    ++update;
    const Tensors gradient = ReducePlainly(spec, std::move(parts));
    StepScalars step;
    step.update = update;
    step.lr = LearningRate(spec.schedule, spec.optimizer.lr, update, spec.training.steps);
    step.bias_correction1 = 1.0 - IntegerPower(spec.optimizer.beta1, update);
    step.bias_correction2 = 1.0 - IntegerPower(spec.optimizer.beta2, update);
    step.grad_scale = static_cast<float>(1.0 / static_cast<double>(tokens));
    for (size_t i = 0; i < spec.tensors.size(); ++i) {
      const TensorSpec& tensor = spec.tensors[i];
      TileState state;
      state.weight = outcome.weights[i].data();
      state.field[0] = exp_avg[i].data();
      state.field[1] = exp_avg_sq[i].data();
      state.ld = tensor.cols;
      rule->Run(tensor.rows, tensor.cols, gradient[i].data(), tensor.cols, step,
                GroupScalars{spec.groups[tensor.group.value()].weight_decay}, state);
    }
  }
  return outcome;
}

// Runs one worker from joining to the end of the job.
absl::Status RunWorker(const std::vector<std::string>& addresses, uint32_t rank, uint32_t count,
                       int prefetch, const Poison& poison) {
  MemoryAccount account;
  ClientOptions options;
  options.servers = addresses;
  options.account = &account;
  options.rpc_timeout = LoopbackCluster::kTimeout;
  options.push_window_bytes = 64 << 10;
  auto client = ParameterClient::Connect(options);
  if (!client.ok()) return client.status();
  JoinOptions join;
  join.rank = rank;
  join.count = count;
  join.compute_profile = "synthetic";
  const auto job = (*client)->Join(join);
  if (!job.ok()) return job.status();
  std::unique_ptr<StageRuntime> runtime = NewSyntheticRuntime(job->spec, &account);
  if (poison.step > 0) {
    runtime = std::make_unique<PoisonedRuntime>(job->spec, poison, std::move(runtime));
  }
  const auto batches = NewEmptyBatchSource(job->spec);
  absl::Status status;
  {
    Relay relay(*job, client->get(), runtime.get(), batches.get(), RelayOptions{prefetch});
    status = relay.Run(nullptr, nullptr);
  }
  client->reset();
  return status;
}

Outcome Train(const JobSpec& spec, int servers, uint32_t workers, int prefetch = 1,
              const Poison& poison = Poison()) {
  LoopbackCluster cluster(spec, servers);
  std::vector<absl::Status> statuses(workers);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = RunWorker(cluster.addresses(), rank, workers, prefetch, poison);
    });
  }
  cluster.Initialize();  // the workers wait for the weights
  for (std::thread& thread : threads) thread.join();
  Outcome outcome = cluster.Result();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.ok(), outcome.failure.ok()) << status << "; " << outcome.failure;
  }
  return outcome;
}

void ExpectSameWeights(const JobSpec& spec, const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t t = 0; t < a.weights.size(); ++t) {
    ASSERT_EQ(a.weights[t].size(), b.weights[t].size());
    EXPECT_EQ(
        std::memcmp(a.weights[t].data(), b.weights[t].data(), a.weights[t].size() * sizeof(float)),
        0)
        << spec.tensors[t].name;
  }
}

TEST(E2eSyntheticTest, MatchesAPlainLoopBitForBit) {
  const JobSpec spec = SpecOf("plain", Clip::kNone);
  const Outcome plain = TrainPlainly(spec);
  ASSERT_NE(plain.weights, InitialWeights(spec));
  struct Division {
    int servers;
    uint32_t workers;
    int prefetch;
  };
  for (const Division d : {Division{2, 1, 1}, {2, 2, 1}, {2, 3, 1}, {1, 3, 0}, {3, 1, 4}}) {
    SCOPED_TRACE(
        absl::StrCat(d.servers, " servers, ", d.workers, " workers, prefetch ", d.prefetch));
    const Outcome outcome = Train(spec, d.servers, d.workers, d.prefetch);
    ExpectSameWeights(spec, outcome, plain);
    ASSERT_EQ(outcome.losses.size(), kSteps);
    EXPECT_EQ(outcome.tokens, plain.tokens);
    for (size_t i = 0; i < kSteps; ++i) EXPECT_DOUBLE_EQ(outcome.losses[i], plain.losses[i]);
  }
}

TEST(E2eSyntheticTest, PartsDivideBetweenWorkersWithoutChangingBits) {
  for (const Clip clip : {Clip::kLagged, Clip::kExact}) {
    const JobSpec spec = SpecOf(NameOf(clip), clip);
    const Outcome one = Train(spec, /*servers=*/2, /*workers=*/1, /*prefetch=*/2);
    const Outcome two = Train(spec, /*servers=*/2, /*workers=*/2);
    ExpectSameWeights(spec, one, two);
    EXPECT_EQ(one.losses, two.losses);
    EXPECT_EQ(one.losses.size(), kSteps);
    EXPECT_NE(one.weights, InitialWeights(spec));
  }
}

TEST(E2eSyntheticTest, ASkippedStepLeavesNoTrace) {
  JobSpec spec = SpecOf("skip", Clip::kNone);
  spec.training.mode = Mode::kSealed;
  spec.training.nonfinite = Nonfinite::kSkip;
  ASSERT_TRUE(spec.Validate().ok()) << spec.Validate();
  const Outcome plain = TrainPlainly(spec, /*without_step=*/3);
  ASSERT_NE(plain.weights, TrainPlainly(spec).weights) << "the step has no effect";
  for (const uint32_t workers : {1u, 3u}) {
    for (const Poison& poison : {Poison{3, 0, StageId(0)}, Poison{3, 2, StageId(2)}}) {
      SCOPED_TRACE(absl::StrCat(workers, " workers, part ", poison.part));
      const Outcome outcome = Train(spec, /*servers=*/2, workers, /*prefetch=*/1, poison);
      ASSERT_TRUE(outcome.failure.ok()) << outcome.failure;
      EXPECT_EQ(outcome.skipped, std::vector<uint64_t>{3});
      ExpectSameWeights(spec, outcome, plain);
      EXPECT_EQ(outcome.tokens, plain.tokens);
      for (size_t i = 0; i < kSteps; ++i) EXPECT_DOUBLE_EQ(outcome.losses[i], plain.losses[i]);
    }
  }
}

TEST(E2eSyntheticTest, ANonFiniteGradientEndsTheJob) {
  for (const Clip clip : {Clip::kLagged, Clip::kExact}) {  // eager, sealed
    const JobSpec spec = SpecOf(absl::StrCat("halt-", NameOf(clip)), clip);
    const Outcome outcome =
        Train(spec, /*servers=*/2, /*workers=*/2, /*prefetch=*/1, Poison{3, 1, StageId(2)});
    EXPECT_EQ(outcome.losses.size(), 2u) << "the earlier steps are recorded";
    EXPECT_EQ(ExitCodeOf(outcome.failure), ExitCode::kDataInvalid);
    const TensorUse& use = spec.stages[2].uses[0];
    const std::string place =
        absl::StrCat("step 3: the gradient of ", spec.tensors[use.tensor.value()].name, " (stage ",
                     spec.stages[2].name, ", part 1) is not finite");
    for (const std::string& text :
         {place, std::string("is nan"), std::string("lower optimizer.lr"),
          std::string("training.nonfinite=skip with training.mode=sealed"),
          std::string("--resume=latest")}) {
      EXPECT_NE(std::string(outcome.failure.message()).find(text), std::string::npos)
          << outcome.failure << "\nexpected " << text;
    }
  }
}

TEST(E2eSyntheticTest, Bf16WireIsIndependentOfTheWorkers) {
  JobSpec spec = SpecOf("bf16", Clip::kNone);
  spec.codecs.weights = spec.codecs.gradients = "bf16";
  const Outcome one = Train(spec, /*servers=*/2, /*workers=*/1);
  ExpectSameWeights(spec, one, Train(spec, /*servers=*/2, /*workers=*/2));
  ASSERT_NE(one.weights, TrainPlainly(spec).weights) << "the wire format made no difference";
}

}  // namespace
}  // namespace eps
