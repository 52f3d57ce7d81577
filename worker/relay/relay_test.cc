#include "worker/relay/relay.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/flush_denormals.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "spec/model_layout.h"
#include "spec/test_specs.h"
#include "worker/data/token_source.h"
#include "worker/relay/plain_loop.h"

namespace eps {
namespace {

using PushKey = std::tuple<uint64_t, uint32_t, uint32_t>;  // step, use, part
using Pushes = std::map<PushKey, Tensors>;

struct JobShape {
  int layers = 4;
  bool tied = true;
  uint32_t parts = 2;
  uint32_t micro_batches = 3;
  uint64_t steps = 3;
  int width = 64;
};

JobSpec SpecOf(const JobShape& shape) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = shape.layers;
  spec.model.synthetic.tied = shape.tied;
  spec.model.synthetic.n_embd = shape.width;
  spec.training.parts = shape.parts;
  spec.training.micro_batches = shape.micro_batches;
  spec.training.steps = shape.steps;
  spec.groups.clear();
  spec.tensors.clear();
  spec.stages.clear();
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  return spec;
}

// Plain gradient descent on the reduced gradients; moments would add nothing to these tests.
void Descend(const Tensors& reduced, uint64_t tokens, int loss_scale_log2, Tensors* weights) {
  const float rate = 0.5f * static_cast<float>(1 << loss_scale_log2) / static_cast<float>(tokens);
  for (size_t t = 0; t < weights->size(); ++t) {
    for (size_t i = 0; i < (*weights)[t].size(); ++i) (*weights)[t][i] -= rate * reduced[t][i];
  }
}

// What a job's pushes and losses must be, micro-batch by micro-batch.
struct Reference {
  Reference(const JobSpec& spec, int loss_scale_log2) : weights(InitialWeights(spec)) {
    const ScopedFlushDenormals flush;
    const auto runtime = NewSyntheticRuntime(spec, nullptr);
    const auto batches = NewEmptyBatchSource(spec);
    for (uint64_t step = 1; step <= spec.training.steps; ++step) {
      std::vector<PlainPart> parts;
      uint64_t tokens = 0;
      for (uint32_t p = 0; p < spec.training.parts; ++p) {
        parts.push_back(RunPartPlainly(spec, weights, Step(step), PartId(p), loss_scale_log2,
                                       runtime.get(), batches.get()));
        for (uint32_t s = 0; s < spec.stages.size(); ++s) {
          pushes[{step, s, p}] = parts.back().gradients[s];
        }
        loss_sums[{step, p}] = parts.back().loss_sum;
        tokens += parts.back().tokens;
      }
      Descend(ReducePlainly(spec, std::move(parts)), tokens, loss_scale_log2, &weights);
    }
  }

  Tensors weights;  // in the end
  Pushes pushes;
  std::map<std::pair<uint64_t, uint32_t>, double> loss_sums;  // by step, part
};

// Counts what is held at once.
struct Held {
  void Add() { most = std::max(most, ++now); }
  void Remove() { --now; }
  int now = 0;
  int most = 0;
};

// All servers of a job in memory. Weights arrive when they are waited for; before, the destination
// holds NaN, so that using it early shows.
class FakeClient final : public ParameterClient {
 public:
  FakeClient(const JobSpec& spec, int loss_scale_log2)
      : spec_(spec), weights_(InitialWeights(spec)), loss_scale_log2_(loss_scale_log2) {}
  ~FakeClient() override { StopReleasing(); }

  absl::StatusOr<JoinedJob> Join(const JoinOptions&) override {
    return absl::UnimplementedError("not used by a relay");
  }

  absl::StatusOr<StepStart> BeginStep(Step step, absl::Span<const PartLossSum> losses) override {
    log.push_back(absl::StrCat("begin ", step.value()));
    for (const PartLossSum& loss : losses) {
      reported[{step.value() - 1, loss.part.value()}] = {loss.loss_sum, loss.tokens};
    }
    if (step.value() > 1) {
      uint64_t tokens = 0;
      for (const PartLossSum& loss : losses) tokens += loss.tokens;
      Descend(ReducePlainly(spec_, PartsOf(step.value() - 1)), tokens, loss_scale_log2_, &weights_);
    }
    step_ = step;
    StepStart start;
    start.done = step.value() > spec_.training.steps;
    start.step = step;
    start.version = Version(step.value() - 1);
    start.loss_scale_log2 = loss_scale_log2_;
    return start;
  }

  absl::Status ReportEvaluation(absl::Span<const PartLossSum> losses) override {
    log.push_back(absl::StrCat("evaluation ", step_.value() - 1));
    for (const PartLossSum& loss : losses) {
      const auto [it, fresh] =
          evaluated.emplace(std::make_pair(step_.value() - 1, loss.part.value()),
                            std::make_pair(loss.loss_sum, loss.tokens));
      EXPECT_TRUE(fresh);
    }
    return absl::OkStatus();
  }

  std::unique_ptr<PendingFetch> FetchStage(StageId stage, Version version, bool backward,
                                           TensorPointers out) override {
    EXPECT_EQ(version.value(), step_.value() - 1) << "a fetch of another step's weights";
    log.push_back(absl::StrCat("fetch ", stage.value(), backward ? "b" : "f"));
    return std::make_unique<FakeFetch>(this, stage, std::move(out));
  }

  absl::Status Push(StageId use, PartId part, uint64_t tokens, TensorPointers gradient,
                    std::shared_ptr<void> keep_alive) override {
    log.push_back(absl::StrCat("push ", use.value(), " part ", part.value()));
    Tensors& tensors = pushes[{step_.value(), use.value(), part.value()}];
    EXPECT_TRUE(tensors.empty()) << "pushed twice: " << log.back();
    for (size_t u = 0; u < gradient.size(); ++u) {
      const uint64_t size =
          spec_.tensors[spec_.stages[use.value()].uses[u].tensor.value()].elements();
      tensors.emplace_back(gradient[u], gradient[u] + size);
    }
    push_tokens.insert({{step_.value(), use.value(), part.value()}, tokens});
    if (fail_push_at == log.back()) return absl::UnavailableError("scripted push failure");
    if (releaser_.joinable()) {
      MutexLock lock(&mu_);
      kept_.push_back(std::move(keep_alive));
      most_kept = std::max(most_kept, kept_.size());
      more_.NotifyAll();
    }
    return absl::OkStatus();
  }

  absl::Status Flush() override {
    log.push_back("flush");
    return absl::OkStatus();
  }
  ClientStats stats() const override { return {}; }

  // From now on gradients are given back late, by another thread, one after another.
  void ReleaseLate() {
    releaser_ = std::thread([this] {
      MutexLock lock(&mu_);
      while (!stop_ || !kept_.empty()) {
        // Full or at the end: gives back the oldest. A relay that holds more than it may shows as
        // most_kept.
        if (kept_.size() >= 2 || stop_) {
          kept_.pop_front();
        } else {
          more_.WaitFor(&mu_, std::chrono::seconds(1));
        }
      }
    });
  }
  void StopReleasing() {
    if (!releaser_.joinable()) return;
    {
      MutexLock lock(&mu_);
      stop_ = true;
      more_.NotifyAll();
    }
    releaser_.join();
  }

  const Tensors& weights() const { return weights_; }

  std::vector<std::string> log;
  Pushes pushes;
  std::map<PushKey, uint64_t> push_tokens;
  std::map<std::pair<uint64_t, uint32_t>, std::pair<double, uint64_t>> reported;
  std::map<std::pair<uint64_t, uint32_t>, std::pair<double, uint64_t>> evaluated;  // as reported
  std::string fail_push_at;
  std::string fail_fetch_at;
  size_t most_kept = 0;
  Held held;  // fetches

 private:
  class FakeFetch final : public PendingFetch {
   public:
    FakeFetch(FakeClient* client, StageId stage, TensorPointers out)
        : client_(client), stage_(stage), out_(std::move(out)), name_(client->log.back()) {
      client_->held.Add();
      for (size_t u = 0; u < out_.size(); ++u) {
        std::fill_n(out_[u], Tensor(u).size(), std::numeric_limits<float>::quiet_NaN());
      }
    }
    ~FakeFetch() override { client_->held.Remove(); }
    absl::Status Wait() override {
      if (client_->fail_fetch_at == name_) return absl::UnavailableError("scripted fetch failure");
      for (size_t u = 0; u < out_.size(); ++u) {
        std::copy(Tensor(u).begin(), Tensor(u).end(), out_[u]);
      }
      return absl::OkStatus();
    }

   private:
    const std::vector<float>& Tensor(size_t use) const {
      const JobSpec& spec = client_->spec_;
      return client_->weights_[spec.stages[stage_.value()].uses[use].tensor.value()];
    }
    FakeClient* const client_;
    const StageId stage_;
    const TensorPointers out_;
    const std::string name_;
  };

  std::vector<PlainPart> PartsOf(uint64_t step) const {
    std::vector<PlainPart> parts(spec_.training.parts);
    for (uint32_t p = 0; p < parts.size(); ++p) {
      for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
        parts[p].gradients.push_back(pushes.at({step, s, p}));
      }
    }
    return parts;
  }

  const JobSpec& spec_;
  Tensors weights_;
  const int loss_scale_log2_;
  Step step_;
  Mutex mu_;
  CondVar more_;
  std::deque<std::shared_ptr<void>> kept_;
  bool stop_ = false;
  std::thread releaser_;
};

// The synthetic runtime with a log of what it is asked to do.
class WatchedRuntime final : public StageRuntime {
 public:
  WatchedRuntime(const JobSpec& spec, MemoryAccount* account, Held* held)
      : inner_(NewSyntheticRuntime(spec, account)), held_(held) {
    for (uint32_t s = 0; s < spec.stages.size(); ++s) {
      programs_.push_back(std::make_unique<Program>(this, StageId(s)));
    }
  }

  StageProgram& program(StageId stage) override { return *programs_[stage.value()]; }
  std::unique_ptr<HostStage> NewHostStage(StageId stage) override {
    ++host_stages;
    return inner_->NewHostStage(stage);
  }
  std::shared_ptr<const StageWeights> Load(StageId stage,
                                           std::shared_ptr<HostStage> host) override {
    return std::make_shared<WatchedWeights>(inner_->Load(stage, std::move(host)), held_);
  }
  StageGradientPtr Add(StageGradientPtr left, StageGradientPtr right) override {
    return inner_->Add(std::move(left), std::move(right));
  }
  absl::Status ToHost(StageId stage, const StageGradient& gradient, HostStage* out) override {
    return inner_->ToHost(stage, gradient, out);
  }
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
  std::string fail_at;
  uint64_t extra_loss_tokens = 0;

 private:
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
                                            int loss_scale_log2) override {
      runtime_->log.push_back(absl::StrCat("backward ", stage_.value(), " ", batch.index));
      if (runtime_->log.back() == runtime_->fail_at) return absl::InternalError("scripted");
      auto result = inner_.Backward(*static_cast<const WatchedWeights&>(weights).inner, batch, in,
                                    grad_out, loss_scale_log2);
      if (result.ok()) result->loss.tokens += runtime_->extra_loss_tokens;
      return result;
    }
    absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                                 const ActivationPtr& in) override {
      runtime_->log.push_back(absl::StrCat("loss ", stage_.value(), " ", batch.index));
      if (runtime_->log.back() == runtime_->fail_at) return absl::InternalError("scripted");
      return inner_.Loss(*static_cast<const WatchedWeights&>(weights).inner, batch, in);
    }

   private:
    WatchedRuntime* const runtime_;
    const StageId stage_;
    StageProgram& inner_;
  };

  const std::unique_ptr<StageRuntime> inner_;
  Held* const held_;
  std::vector<std::unique_ptr<Program>> programs_;
};

// A relay over all parts of a job, with everything around it.
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

  // Evaluates `samples` held-out samples behind every `every`-th step. REQUIRES that Run was not
  // called.
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

void ExpectSamePushes(const Pushes& actual, const Pushes& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [key, tensors] : expected) {
    const auto& [step, use, part] = key;
    ASSERT_EQ(actual.count(key), 1u) << "step " << step << " use " << use << " part " << part;
    for (size_t t = 0; t < tensors.size(); ++t) {
      ASSERT_EQ(std::memcmp(actual.at(key)[t].data(), tensors[t].data(),
                            tensors[t].size() * sizeof(float)),
                0)
          << "step " << step << " use " << use << " part " << part << " tensor " << t;
    }
  }
}

TEST(RelayTest, PushesTheBitsOfAPlainLoop) {
  const std::vector<JobShape> shapes = {
      {/*layers=*/1, /*tied=*/false, /*parts=*/1, /*micro_batches=*/1},
      {1, false, 2, 3},
      {2, true, 1, 2},
      {2, false, 3, 1},
      {3, true, 2, 5},
      {4, true, 3, 3},
      {5, false, 2, 4},
  };
  for (const JobShape& shape : shapes) {
    const int loss_scale_log2 = shape.layers % 2 == 0 ? 10 : 0;
    const JobSpec spec = SpecOf(shape);
    const Reference reference(spec, loss_scale_log2);
    for (const int prefetch : {0, 1, 2, 20}) {
      SCOPED_TRACE(absl::StrCat("layers ", shape.layers, " parts ", shape.parts, " micro-batches ",
                                shape.micro_batches, " prefetch ", prefetch));
      Rig rig(shape, prefetch, loss_scale_log2);
      const absl::Status status = rig.Run();
      ASSERT_TRUE(status.ok()) << status;
      ExpectSamePushes(rig.client->pushes, reference.pushes);
      EXPECT_EQ(rig.client->weights(), reference.weights);
    }
  }
}

TEST(RelayTest, EveryStepAndPartHasGradientsOfItsOwn) {
  const Reference reference(SpecOf(JobShape()), 0);
  std::set<std::vector<float>> seen;
  for (const auto& [key, tensors] : reference.pushes) {
    for (const std::vector<float>& tensor : tensors) {
      EXPECT_TRUE(seen.insert(tensor).second) << "two pushes hold the same bits";
    }
  }
}

TEST(RelayTest, FetchesEveryStageUpAndDownButTheTopStageOnce) {
  JobShape shape;
  shape.steps = 1;
  Rig rig(shape, /*prefetch=*/0);
  ASSERT_TRUE(rig.Run().ok());
  const std::vector<std::string> expected = {
      "begin 1",       "fetch 0f", "fetch 1f",      "fetch 2f",      "fetch 3f", "push 3 part 1",
      "push 3 part 0", "fetch 2b", "push 2 part 0", "push 2 part 1", "fetch 1b", "push 1 part 1",
      "push 1 part 0", "fetch 0b", "push 0 part 0", "push 0 part 1", "flush",    "begin 2",
  };
  EXPECT_EQ(rig.client->log, expected);
}

TEST(RelayTest, PrefetchesAcrossTheTurnButNotAcrossSteps) {
  JobShape shape;
  shape.steps = 2;
  shape.parts = 1;
  Rig rig(shape, /*prefetch=*/2);
  ASSERT_TRUE(rig.Run().ok());
  const std::vector<std::string> step = {
      "fetch 0f",      "fetch 1f", "fetch 2f",      "fetch 3f",      "fetch 2b",      "fetch 1b",
      "push 3 part 0", "fetch 0b", "push 2 part 0", "push 1 part 0", "push 0 part 0",
  };
  std::vector<std::string> expected = {"begin 1"};
  expected.insert(expected.end(), step.begin(), step.end());
  expected.push_back("begin 2");
  expected.insert(expected.end(), step.begin(), step.end());
  expected.push_back("flush");
  expected.push_back("begin 3");
  EXPECT_EQ(rig.client->log, expected);
}

TEST(RelayTest, RunsMicroBatchesInZigZag) {
  JobShape shape;
  shape.layers = 3;
  shape.tied = false;
  shape.parts = 1;
  shape.micro_batches = 3;
  shape.steps = 1;
  Rig rig(shape);
  ASSERT_TRUE(rig.Run().ok());
  const std::vector<std::string> expected = {
      "forward 0 0",  "forward 0 1",  "forward 0 2",   //
      "forward 1 2",  "forward 1 1",  "forward 1 0",   //
      "backward 2 0", "backward 2 1", "backward 2 2",  //
      "backward 1 2", "backward 1 1", "backward 1 0",  //
      "backward 0 0", "backward 0 1", "backward 0 2",
  };
  EXPECT_EQ(rig.runtime.log, expected);
  // Inputs: 2 of 3 in stage 1 up and in stage 2, 3 in stage 1 down. Gradients: 2 of 3 in stages 1
  // and 0. The others are at hand.
  EXPECT_EQ(rig.runtime.unstashed, 2 + 2 + 3 + 2 + 2);
}

TEST(RelayTest, HoldsTheWeightsOfOneStageAndThePrefetchedOnes) {
  for (const int prefetch : {0, 1, 3}) {
    JobShape shape;
    shape.layers = 8;
    Rig rig(shape, prefetch);
    const Held& fetches = rig.client->held;
    ASSERT_TRUE(rig.Run().ok());
    EXPECT_LE(fetches.most, 1 + prefetch);
    EXPECT_EQ(rig.watched.most, 1) << "weights of more than one stage are loaded";
    EXPECT_EQ(fetches.now, 0);
    EXPECT_EQ(rig.watched.now, 0);
    // One shape (the stages are alike): weights in use and on their way, two gradients.
    EXPECT_LE(rig.runtime.host_stages, 1 + prefetch + 2);
  }
}

TEST(RelayTest, MemoryDoesNotDependOnTheNumberOfLayers) {
  uint64_t device[2];
  uint64_t host[2];
  const int layers[2] = {4, 12};
  for (int i = 0; i < 2; ++i) {
    JobShape shape;
    shape.layers = layers[i];
    Rig rig(shape);
    ASSERT_TRUE(rig.Run().ok());
    device[i] = rig.runtime.device_memory().peak_bytes;
    host[i] = rig.account.peak_bytes(MemoryKind::kStage);
    EXPECT_EQ(rig.runtime.device_memory().live_bytes, 0u);
    EXPECT_EQ(rig.account.live_bytes(MemoryKind::kStash), 0u);
    EXPECT_GT(rig.account.peak_bytes(MemoryKind::kStash), 0u);
  }
  EXPECT_EQ(device[0], device[1]);
  EXPECT_EQ(host[0], host[1]);
}

TEST(RelayTest, StashesEachStageInputOnceAndDropsItWhenItIsUsed) {
  JobShape shape;
  shape.layers = 6;
  Rig rig(shape);
  ASSERT_TRUE(rig.Run().ok());
  const uint64_t items = shape.parts * shape.micro_batches;
  const uint64_t activation = rig.spec.training.micro_batch_size * 64 * sizeof(float);
  // The inputs of all stages but the first; on the way down gradients take their places.
  EXPECT_EQ(rig.account.peak_bytes(MemoryKind::kStash), 5 * items * activation);
}

TEST(RelayTest, KeepsAtMostTwoGradientsOnTheirWay) {
  JobShape shape;
  shape.parts = 4;
  Rig rig(shape);
  rig.client->ReleaseLate();
  ASSERT_TRUE(rig.Run().ok());
  rig.client->StopReleasing();
  EXPECT_EQ(rig.client->most_kept, 2u);
  ExpectSamePushes(rig.client->pushes, Reference(rig.spec, 0).pushes);
}

TEST(RelayTest, ReportsTheLossOfEachPartAlongTheTree) {
  JobShape shape;
  shape.micro_batches = 5;
  Rig rig(shape);
  ASSERT_TRUE(rig.Run().ok());
  const Reference reference(rig.spec, 0);
  const uint64_t part_tokens =
      uint64_t{5} * rig.spec.training.micro_batch_size * rig.spec.training.seq_len;
  ASSERT_EQ(rig.client->reported.size(), reference.loss_sums.size());
  for (const auto& [key, sum] : reference.loss_sums) {
    EXPECT_EQ(rig.client->reported.at(key).first, sum);
    EXPECT_EQ(rig.client->reported.at(key).second, part_tokens);
  }
  for (const auto& [key, tokens] : rig.client->push_tokens) EXPECT_EQ(tokens, part_tokens);
  EXPECT_EQ(rig.steps, (std::vector<uint64_t>{1, 2, 3}));
  for (size_t i = 0; i < rig.losses.size(); ++i) {
    EXPECT_EQ(rig.losses[i].tokens, 2 * part_tokens);
    EXPECT_EQ(rig.losses[i].sum,
              reference.loss_sums.at({i + 1, 0}) + reference.loss_sums.at({i + 1, 1}));
  }
}

TEST(RelayTest, HostsTheSamePartsAsSeveralRelaysDo) {
  JobShape shape;
  shape.steps = 1;
  Pushes pushes;
  for (uint32_t part = 0; part < 2; ++part) {
    Rig rig(shape);
    rig.job.parts = {PartId(part)};
    int asked = 0;
    ASSERT_TRUE(rig.Run([&] { return asked++ == 1; }).ok());
    pushes.insert(rig.client->pushes.begin(), rig.client->pushes.end());
  }
  ExpectSamePushes(pushes, Reference(SpecOf(shape), 0).pushes);
}

TEST(RelayTest, StopsBetweenStepsWhenEverythingIsCounted) {
  Rig rig{JobShape()};
  int asked = 0;
  ASSERT_TRUE(rig.Run([&] { return asked++ == 2; }).ok());
  EXPECT_EQ(rig.steps, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(rig.client->log.back(), "flush");
}

TEST(RelayTest, DoesNothingForAJobThatIsDone) {
  Rig rig{JobShape()};
  rig.job.done = true;
  ASSERT_TRUE(rig.Run().ok());
  EXPECT_TRUE(rig.client->log.empty());
}

TEST(RelayTest, EndsWithTheErrorOfAPart) {
  {
    Rig rig{JobShape()};
    rig.client->fail_fetch_at = "fetch 1b";
    EXPECT_EQ(rig.Run().code(), absl::StatusCode::kUnavailable);
  }
  {
    Rig rig{JobShape()};
    rig.client->fail_push_at = "push 2 part 1";
    EXPECT_EQ(rig.Run().code(), absl::StatusCode::kUnavailable);
  }
  for (const std::string at : {"forward 1 2", "backward 3 0", "backward 0 5"}) {
    Rig rig{JobShape()};
    rig.runtime.fail_at = at;
    const absl::Status status = rig.Run();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(absl::StrContains(
        status.message(), absl::StrCat("micro-batch ", at.substr(at.size() - 1), " of step 1")))
        << status;
    EXPECT_EQ(rig.client->held.now, 0) << "an abandoned fetch is left";
  }
}

TEST(RelayTest, RefusesALossOverOtherTokensThanTheLabelsCount) {
  Rig rig{JobShape()};
  rig.runtime.extra_loss_tokens = 1;
  const absl::Status status = rig.Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "tokens")) << status;
}

// The loss of one held-out micro-batch, stage by stage in a plain loop.
LossSum LossPlainly(const JobSpec& spec, const Tensors& weights, const MicroBatch& batch) {
  const ScopedFlushDenormals flush;
  const auto runtime = NewSyntheticRuntime(spec, nullptr);
  ActivationPtr in;
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    std::shared_ptr<HostStage> host = runtime->NewHostStage(StageId(s));
    for (size_t u = 0; u < spec.stages[s].uses.size(); ++u) {
      const std::vector<float>& tensor = weights[spec.stages[s].uses[u].tensor.value()];
      std::copy(tensor.begin(), tensor.end(), host->tensor(u));
    }
    const auto loaded = runtime->Load(StageId(s), std::move(host));
    if (s + 1 == spec.stages.size()) {
      // By the way of training, which is another one than the relay's.
      return runtime->program(StageId(s)).Backward(*loaded, batch, in, nullptr, 0)->loss;
    }
    in = *runtime->program(StageId(s)).Forward(*loaded, batch, in);
  }
  return {};
}

TEST(RelayTest, EvaluatesThePlainLossesOfItsPartsAndLeavesTrainingAlone) {
  const struct {
    JobShape shape;
    uint64_t samples;
  } cases[] = {
      {{/*layers=*/1, /*tied=*/false, /*parts=*/2, /*micro_batches=*/1}, 9},
      {{3, true, 2, 2}, 23},  // in rounds, the last one smaller
      {{4, false, 3, 1}, 64},
      {{4, true, 3, 3}, 3},  // fewer than one micro-batch for each part
  };
  for (const auto& c : cases) {
    const JobSpec spec = SpecOf(c.shape);
    const auto source = NewEmptyEvaluationSource(spec, c.samples);
    const Reference reference(spec, 0);
    for (const int prefetch : {0, 1, 3}) {
      SCOPED_TRACE(absl::StrCat("layers ", c.shape.layers, " prefetch ", prefetch));
      Rig rig(c.shape, prefetch);
      rig.Evaluate(c.samples, /*every=*/1);
      ASSERT_TRUE(rig.Run().ok());
      ExpectSamePushes(rig.client->pushes, reference.pushes);
      EXPECT_EQ(rig.client->weights(), reference.weights);
      // Behind the last step the weights are those that the reference ends with.
      const uint64_t parts = spec.training.parts;
      uint64_t tokens = 0;
      for (uint32_t p = 0; p < parts; ++p) {
        LossSum expected;
        const uint64_t m = source->micro_batches();
        for (uint64_t i = p * m / parts; i < (p + 1) * m / parts; ++i) {
          const LossSum loss =
              LossPlainly(spec, reference.weights, *source->Get(static_cast<uint32_t>(i)));
          expected.sum += loss.sum;
          expected.tokens += loss.tokens;
        }
        const auto actual = rig.client->evaluated.at({spec.training.steps, p});
        EXPECT_EQ(actual.first, expected.sum) << "part " << p;
        EXPECT_EQ(actual.second, expected.tokens) << "part " << p;
        tokens += actual.second;
      }
      EXPECT_EQ(tokens, c.samples * spec.training.seq_len);
      EXPECT_EQ(rig.client->evaluated.size(), spec.training.steps * parts);
    }
  }
}

TEST(RelayTest, EvaluatesBeforeItComputesForTheStepThatNamesTheWeights) {
  JobShape shape;
  shape.layers = 2;
  shape.parts = 1;
  shape.steps = 3;
  Rig rig(shape, /*prefetch=*/0);
  rig.Evaluate(/*samples=*/1, /*every=*/2);
  ASSERT_TRUE(rig.Run().ok());
  const std::vector<std::string> step = {"fetch 0f", "fetch 1f", "push 1 part 0", "fetch 0b",
                                         "push 0 part 0"};
  const std::vector<std::string> evaluation = {"fetch 0f", "fetch 1f"};
  std::vector<std::string> expected;
  const auto add = [&](const std::vector<std::string>& more) {
    expected.insert(expected.end(), more.begin(), more.end());
  };
  add({"begin 1"});
  add(step);
  add({"begin 2"});
  add(step);
  add({"begin 3"});
  add(evaluation);
  add({"evaluation 2"});
  add(step);
  add({"flush", "begin 4"});
  add(evaluation);
  add({"evaluation 3"});
  EXPECT_EQ(rig.client->log, expected);
}

TEST(RelayTest, AReplacementEvaluatesTheBorderThatItJoinsAt) {
  JobShape shape;
  shape.steps = 4;
  Rig rig(shape);
  rig.Evaluate(/*samples=*/6, /*every=*/2);
  int asked = 0;
  ASSERT_TRUE(rig.Run([&] { return asked++ == 2; }).ok());
  EXPECT_TRUE(rig.client->evaluated.empty()) << "the border of step 2 was not begun behind";
  // Another process takes over at the next step.
  rig.job.next_step = Step(3);
  rig.Evaluate(6, 2);
  ASSERT_TRUE(rig.Run().ok());
  EXPECT_EQ(rig.client->evaluated.count({2, 0}), 1u);
  EXPECT_EQ(rig.client->evaluated.count({4, 1}), 1u);
}

TEST(RelayTest, AnEvaluationHoldsNoMoreThanATrainingStep) {
  JobShape shape;
  shape.layers = 6;
  shape.tied = false;
  shape.steps = 1;
  const auto peaks = [&](uint64_t samples) {
    Rig rig(shape);
    if (samples > 0) rig.Evaluate(samples, 1);
    EXPECT_TRUE(rig.Run().ok());
    EXPECT_EQ(rig.watched.most, 1) << "stages on the device";
    return std::make_tuple(rig.runtime.device_memory().peak_bytes, rig.account.peak_bytes(),
                           rig.account.peak_bytes(MemoryKind::kStash), rig.runtime.host_stages);
  };
  const auto without = peaks(0);
  EXPECT_EQ(peaks(5), without);
  EXPECT_EQ(peaks(500), without);
}

TEST(RelayTest, AnEvaluationThatFailsEndsTheWorkerWithItsPlace) {
  JobShape shape;
  shape.steps = 1;
  const struct {
    const char* at;
    const char* text;
  } cases[] = {{"forward 1 7", "held-out micro-batch 7"}, {"loss 3 6", "stage 3"}};
  for (const auto& c : cases) {
    Rig rig(shape);
    rig.Evaluate(/*samples=*/32, /*every=*/1);
    rig.runtime.fail_at = c.at;
    const absl::Status status = rig.Run();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "evaluation")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << status;
    EXPECT_EQ(rig.client->held.now, 0) << "an abandoned fetch is left";
  }
}

}  // namespace
}  // namespace eps
