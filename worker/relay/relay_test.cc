#include "worker/relay/relay.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/layout/model_layout.h"
#include "base/numerics/flush_denormals.h"
#include "gtest/gtest.h"
#include "worker/data/batch_source.h"
#include "worker/relay/synthetic_runtime.h"
#include "worker/relay/testing/plain_loop.h"
#include "worker/relay/testing/relay_rig.h"

namespace eps {
namespace {

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
  for (size_t i = 0; i < 2 * shapes.size(); ++i) {
    JobShape shape = shapes[i / 2];
    if (i % 2 == 1) shape.gradient_sum = GradientSum::kFused;
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

TEST(RelayTest, EveryStepAndPartHasDistinctGradients) {
  const Reference reference(SpecOf(JobShape()), 0);
  std::set<std::vector<float>> seen;
  for (const auto& [key, tensors] : reference.pushes) {
    for (const std::vector<float>& tensor : tensors) {
      EXPECT_TRUE(seen.insert(tensor).second) << "two pushes hold the same bits";
    }
  }
}

TEST(RelayTest, FetchesOnlyTheTopStageOnce) {
  JobShape shape;
  shape.steps = 1;
  Rig rig(shape, /*prefetch=*/0);
  ASSERT_TRUE(rig.Run().ok());
  const std::vector<std::string> expected = {
      "flush",         "begin 1",       "fetch 0f",      "fetch 1f",
      "fetch 2f",      "fetch 3b",      "push 3 part 1", "push 3 part 0",
      "fetch 2b",      "push 2 part 0", "push 2 part 1", "fetch 1b",
      "push 1 part 1", "push 1 part 0", "fetch 0b",      "losses of parts 0 1",
      "push 0 part 0", "push 0 part 1", "flush",         "begin 2",
  };
  EXPECT_EQ(rig.client->log, expected);
}

TEST(RelayTest, FetchesNoWeightsThatBackwardNeedsNot) {
  JobShape shape;
  shape.steps = 1;
  Rig rig(shape, /*prefetch=*/0);
  rig.job.spec.stages[0].backward_needs_weights = false;
  rig.runtime.without_values = StageId(0);
  ASSERT_TRUE(rig.Run().ok());
  const std::vector<std::string> expected = {
      "flush",         "begin 1",       "fetch 0f",      "fetch 1f",
      "fetch 2f",      "fetch 3b",      "push 3 part 1", "push 3 part 0",
      "fetch 2b",      "push 2 part 0", "push 2 part 1", "fetch 1b",
      "push 1 part 1", "push 1 part 0", "prepare 0",     "losses of parts 0 1",
      "push 0 part 0", "push 0 part 1", "flush",         "begin 2",
  };
  EXPECT_EQ(rig.client->log, expected);
  ExpectSamePushes(rig.client->pushes, Reference(rig.spec, 0).pushes);
}

TEST(RelayTest, PrefetchesAcrossPassesAndSteps) {
  JobShape shape;
  shape.steps = 2;
  shape.parts = 1;
  Rig rig(shape, /*prefetch=*/2);
  ASSERT_TRUE(rig.Run().ok());
  const std::vector<std::string> first = {"fetch 0f", "fetch 1f", "fetch 2f"};
  const std::vector<std::string> others = {
      "fetch 3b",      "fetch 2b",      "fetch 1b",          "push 3 part 0", "fetch 0b",
      "push 2 part 0", "push 1 part 0", "losses of parts 0", "push 0 part 0",
  };
  std::vector<std::string> expected;
  const auto add = [&](const std::vector<std::string>& more) {
    expected.insert(expected.end(), more.begin(), more.end());
  };
  add({"flush", "begin 1"});
  add(first);
  add(others);
  add(first);  // the servers answer them as soon as these chunks are updated
  add({"flush", "begin 2"});
  add(others);
  add({"flush", "begin 3"});
  EXPECT_EQ(rig.client->log, expected);
}

TEST(RelayTest, FetchesNothingAheadThatMayNeverBe) {
  JobShape shape;
  shape.steps = 2;
  Rig rig(shape, /*prefetch=*/0);
  rig.job.spec.training.nonfinite = Nonfinite::kSkip;
  ASSERT_TRUE(rig.Run().ok());
  const auto begin = std::find(rig.client->log.begin(), rig.client->log.end(), "begin 2");
  ASSERT_NE(begin, rig.client->log.end());
  EXPECT_EQ(*std::prev(begin), "flush") << "a skipped step makes no version";
}

// A part's last push must not be counted while its loss can still be lost with the worker.
TEST(RelayTest, ReportsEachLossBeforeTheLastPush) {
  JobShape shape;
  shape.layers = 1;
  shape.steps = 1;
  Rig rig(shape, /*prefetch=*/0);
  ASSERT_TRUE(rig.Run().ok());
  const std::vector<std::string> expected = {
      "flush",         "begin 1",           "fetch 0b",      "losses of parts 0",
      "push 0 part 0", "losses of parts 1", "push 0 part 1", "flush",
      "begin 2",
  };
  EXPECT_EQ(rig.client->log, expected);
}

TEST(RelayTest, SkipsAStepThatIsCounted) {
  JobShape shape;
  shape.steps = 1;
  Rig rig(shape, /*prefetch=*/0);
  rig.client->counted_steps = 1;
  ASSERT_TRUE(rig.Run().ok());
  EXPECT_EQ(rig.client->log, (std::vector<std::string>{"flush", "begin 1", "flush", "begin 2"}));
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
  // Inputs: 2 of 3 in stage 1 of the forward pass and in stage 2, 3 in stage 1 of the backward
  // pass. Gradients: 2 of 3 in stages 1 and 0. The others are still on the device.
  EXPECT_EQ(rig.runtime.unstashed, 2 + 2 + 3 + 2 + 2);
}

TEST(RelayTest, HoldsOneStagePlusPrefetchedWeights) {
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
    // All stages have one shape. In use: weights being used and prefetched, and two gradients.
    EXPECT_LE(rig.runtime.host_stages, 1 + prefetch + 2);
  }
}

TEST(RelayTest, MemoryIsIndependentOfTheLayerCount) {
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

TEST(RelayTest, StashesEachStageInputUntilItsUse) {
  JobShape shape;
  shape.layers = 6;
  Rig rig(shape);
  ASSERT_TRUE(rig.Run().ok());
  const uint64_t items = shape.parts * shape.micro_batches;
  const uint64_t activation = rig.spec.training.micro_batch_size * 64 * sizeof(float);
  // The inputs of all stages but the first; in the backward pass gradients replace them.
  EXPECT_EQ(rig.account.peak_bytes(MemoryKind::kStash), 5 * items * activation);
}

// One is encoded while the next is computed in host memory, or copied there by a device: a gradient
// that is not copied saves the memory of one.
TEST(RelayTest, HoldsTwoGradientsInHostMemory) {
  for (const bool copies : {false, true}) {
    JobShape shape;
    shape.parts = 4;
    shape.tied = false;  // all stages are of one size
    Rig rig(shape);
    rig.runtime.copies_gradients = copies;
    const size_t in_flight = copies ? 2 : 1;
    rig.client->ReleaseLate(in_flight);
    ASSERT_TRUE(rig.Run().ok());
    rig.client->StopReleasing();
    EXPECT_EQ(rig.client->most_kept, in_flight);
    const uint64_t stage = (64 * 64 + 64) * sizeof(float);
    EXPECT_EQ(rig.account.peak_bytes(MemoryKind::kStage), (2 + in_flight) * stage)
        << "the weights of two stages, and gradients";
    ExpectSamePushes(rig.client->pushes, Reference(rig.spec, 0).pushes);
  }
}

TEST(RelayTest, SumsEachPartsLossAlongTheTree) {
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

TEST(RelayTest, OneRelayEqualsSeveralRelays) {
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

TEST(RelayTest, DoesNothingForAFinishedJob) {
  Rig rig{JobShape()};
  rig.job.done = true;
  ASSERT_TRUE(rig.Run().ok());
  EXPECT_TRUE(rig.client->log.empty());
}

TEST(RelayTest, EndsWithTheErrorOfAPart) {
  {
    Rig rig{JobShape()};
    rig.client->fail_at = "fetch 1b";
    EXPECT_EQ(rig.Run().code(), absl::StatusCode::kUnavailable);
  }
  {
    Rig rig{JobShape()};
    rig.client->fail_at = "push 2 part 1";
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
    EXPECT_EQ(rig.client->held.now, 0) << "an abandoned fetch remains";
  }
}

TEST(RelayTest, EndsWithTheErrorOfAllocation) {
  int stages = 1;
  for (;; ++stages) {
    Rig rig(JobShape{});
    rig.runtime.failing_host_stage = stages;
    const absl::Status status = rig.Run();
    if (status.ok()) break;  // it needs no more
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(rig.watched.now, 0);
    EXPECT_EQ(rig.client->held.now, 0);
  }
  EXPECT_GE(stages, 3);  // of weights and of gradients
}

TEST(RelayTest, RefusesALossWithAnotherTokenCount) {
  Rig rig{JobShape()};
  rig.runtime.extra_loss_tokens = 1;
  const absl::Status status = rig.Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "tokens")) << status;
}

// Computes the loss of one held-out micro-batch, stage by stage in a plain loop.
LossSum LossPlainly(const JobSpec& spec, const Tensors& weights, const MicroBatch& batch) {
  const ScopedFlushDenormals flush;
  const auto runtime = NewSyntheticRuntime(spec, nullptr);
  ActivationPtr in;
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    std::shared_ptr<HostStage> host = runtime->NewHostStage(StageId(s)).value();
    for (size_t u = 0; u < spec.stages[s].uses.size(); ++u) {
      const std::vector<float>& tensor = weights[spec.stages[s].uses[u].tensor.value()];
      std::copy(tensor.begin(), tensor.end(), host->tensor(u));
    }
    const auto loaded = runtime->Load(StageId(s), std::move(host));
    if (s + 1 == spec.stages.size()) {
      // Through training's Backward, which differs from the path of the relay.
      return runtime->program(StageId(s)).Backward(*loaded, batch, in, nullptr, 0, nullptr)->loss;
    }
    in = *runtime->program(StageId(s)).Forward(*loaded, batch, in);
  }
  return {};
}

TEST(RelayTest, EvaluatesPlainLossesWithoutAffectingTraining) {
  const struct {
    JobShape shape;
    uint64_t samples;
  } cases[] = {
      {{/*layers=*/1, /*tied=*/false, /*parts=*/2, /*micro_batches=*/1}, 9},
      {{3, true, 2, 2}, 23},  // several rounds, the last one smaller
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
      // After the last step the weights are those with which the reference ends.
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

TEST(RelayTest, EvaluatesBeforeTheNextStepsWork) {
  JobShape shape;
  shape.layers = 2;
  shape.parts = 1;
  shape.steps = 3;
  Rig rig(shape, /*prefetch=*/0);
  rig.Evaluate(/*samples=*/1, /*every=*/2);
  ASSERT_TRUE(rig.Run().ok());
  const std::vector<std::string> step = {"fetch 0f", "fetch 1b",          "push 1 part 0",
                                         "fetch 0b", "losses of parts 0", "push 0 part 0"};
  const std::vector<std::string> evaluation = {"fetch 0f", "fetch 1f"};
  std::vector<std::string> expected;
  const auto add = [&](const std::vector<std::string>& more) {
    expected.insert(expected.end(), more.begin(), more.end());
  };
  add({"flush", "begin 1"});
  add(step);
  add({"fetch 0f", "flush", "begin 2"});
  add({step.begin() + 1, step.end()});
  add({"flush", "begin 3"});
  add(evaluation);
  add({"evaluation 2"});
  add(step);
  add({"flush", "begin 4"});
  add(evaluation);
  add({"evaluation 3"});
  EXPECT_EQ(rig.client->log, expected);
}

TEST(RelayTest, AReplacementEvaluatesTheBorderItJoins) {
  JobShape shape;
  shape.steps = 4;
  Rig rig(shape);
  rig.Evaluate(/*samples=*/6, /*every=*/2);
  int asked = 0;
  ASSERT_TRUE(rig.Run([&] { return asked++ == 2; }).ok());
  EXPECT_TRUE(rig.client->evaluated.empty()) << "the step after step 2 has not begun";
  // Another process takes over at the next step.
  rig.job.next_step = Step(3);
  rig.Evaluate(6, 2);
  ASSERT_TRUE(rig.Run().ok());
  EXPECT_EQ(rig.client->evaluated.count({2, 0}), 1u);
  EXPECT_EQ(rig.client->evaluated.count({4, 1}), 1u);
}

TEST(RelayTest, EvaluationHoldsNoMoreThanTraining) {
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

TEST(RelayTest, AFailedEvaluationNamesItsPlace) {
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
    EXPECT_EQ(rig.client->held.now, 0) << "an abandoned fetch remains";
  }
}

}  // namespace
}  // namespace eps
