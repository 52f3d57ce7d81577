// The relay over a device with six queues: results in every order that the device may choose, and
// the time of a step.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/job/layout/chunk_map.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "gtest/gtest.h"
#include "worker/data/batch_source.h"
#include "worker/exec/testing/queued_runtime.h"
#include "worker/exec/testing/simulated_queues.h"
#include "worker/exec/testing/timed_queues.h"
#include "worker/relay/relay.h"
#include "worker/relay/testing/fake_client.h"
#include "worker/relay/testing/relay_judge.h"

namespace eps {
namespace {

// The gradients that a relay pushed, and the weights that the servers made of them.
struct Outcome {
  Pushes pushes;
  Tensors weights;
  uint64_t most_rooms_used = 0;
};

// Runs a job over `queues`, which live as long as the call. With `on_step`, weights arrive as soon
// as they are asked for. The client has `rooms` for gradients.
Outcome Train(const JobSpec& spec, std::unique_ptr<TestQueues> queues, const QueuedOptions& options,
              int prefetch, const std::function<void(Step)>& on_step = nullptr,
              const Rooms& rooms = Rooms()) {
  QueuedRuntime runtime(spec, std::move(queues), options);
  FakeClient client(spec, /*loss_scale_log2=*/0);
  client.rooms = rooms;
  client.wire = Wire::kOfJob;
  client.arrives_at_once = on_step != nullptr;
  const auto batches = NewEmptyBatchSource(spec);
  JoinedJob job;
  job.spec = spec;
  for (uint32_t p = 0; p < spec.training.parts; ++p) job.parts.push_back(PartId(p));
  job.next_step = Step(1);
  RelayOptions relay_options;
  relay_options.prefetch = prefetch;
  Relay relay(job, &client, &runtime, batches.get(), relay_options);
  const absl::Status status = relay.Run(nullptr, [&](Step step, const LossSum&, const StepTiming&) {
    if (on_step) on_step(step);
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(client.rooms.used, 0u);
  return {client.pushes, client.weights(), client.rooms.most_used};
}

JobShape SmallShape() {
  JobShape shape;
  shape.layers = 3;
  shape.width = 8;
  shape.steps = 2;
  return shape;
}

// A device without delays: everything is done when it is enqueued.
std::unique_ptr<TestQueues> AtOnce() { return std::make_unique<TimedQueues>(DeviceRates()); }

TEST(QueuedRelayTest, EveryOrderGivesTheSameNumbers) {
  for (uint32_t variant = 0; variant < 4; ++variant) {
    JobShape shape = SmallShape();
    shape.parts = 1 + variant % 2;
    shape.tied = variant < 2;
    shape.weights = variant < 2 ? "fp32" : "mx9";
    shape.backward_weights = BackwardWeights::kBothAxes;
    JobSpec spec = SpecOf(shape);
    spec.codecs.gradients = variant < 2 ? "fp32" : "mx6:truncate";
    const Outcome expected = Train(spec, AtOnce(), {/*codecs_on_host=*/true}, 1);
    ASSERT_EQ(expected.pushes.size(), shape.steps * spec.stages.size() * shape.parts);
    for (uint32_t seed = 0; seed < 500; ++seed) {
      const Outcome found = Train(spec, std::make_unique<SimulatedQueues>(seed), QueuedOptions(),
                                  static_cast<int>(seed % 4));
      ASSERT_EQ(found.pushes, expected.pushes) << "variant " << variant << ", seed " << seed;
      ASSERT_EQ(found.weights, expected.weights) << "variant " << variant << ", seed " << seed;
    }
  }
}

TEST(QueuedRelayTest, GradientsLeaveThroughRoomsThatAreReached) {
  JobSpec spec = SpecOf(SmallShape());
  spec.codecs.gradients = "mx6:truncate";
  const Outcome expected = Train(spec, AtOnce(), {/*codecs_on_host=*/true}, 1);
  constexpr uint64_t kAll = 1 << 20;
  uint64_t of_stage = 0;
  uint64_t pinned[2] = {0, 0};  // without rooms, and with them
  for (const uint64_t room_bytes : {uint64_t{0}, kAll}) {
    auto queues = std::make_unique<SimulatedQueues>(1);
    const SimulatedQueues* const device = queues.get();
    queues->ReachEverything();
    uint64_t* const bytes = &pinned[room_bytes == 0 ? 0 : 1];
    const Outcome found = Train(
        spec, std::move(queues), QueuedOptions(), 1, [=](Step) { *bytes = device->pinned_bytes(); },
        Rooms{room_bytes});
    of_stage = found.most_rooms_used;
  }
  EXPECT_GT(of_stage, 0u);
  EXPECT_LT(pinned[1], pinned[0]) << "pinned memory that nobody needs";
  for (uint32_t seed = 0; seed < 300; ++seed) {
    auto queues = std::make_unique<SimulatedQueues>(seed);
    Rooms rooms;
    rooms.bytes = seed % 2 == 0 ? kAll : of_stage - 1;  // for all gradients, or for some of them
    rooms.is_reached = seed % 4 != 0;
    if (rooms.is_reached) queues->ReachEverything();
    const Outcome found = Train(spec, std::move(queues), QueuedOptions(), 1, nullptr, rooms);
    ASSERT_EQ(found.pushes, expected.pushes) << "seed " << seed;
    ASSERT_EQ(found.weights, expected.weights) << "seed " << seed;
  }
}

TEST(QueuedRelayTest, QueuesLeaveSpansInTraces) {
  TraceRecording recording;
  Train(SpecOf(SmallShape()), AtOnce(), QueuedOptions(), 1);
  std::set<std::string> names;
  for (const RecordedSpan& span : recording.Take().spans) {
    if (span.thread > kFirstQueue) names.insert(span.name);
  }
  // The spans of computing are those of LibTorch's programs.
  EXPECT_EQ(names,
            (std::set<std::string>{kDeviceWeightsSpan, kDeviceEncodeSpan, kDeviceGradientSpan,
                                   kDeviceStashSpan, kDeviceUnstashSpan}));
}

// A job of many stages of one size, on links of one byte a second in each direction, and what the
// formula of docs/cuda.md, "The time of a step", says about it.
struct TimedJob {
  // Computing a stage's forward pass takes `ratio` times as long as copying its weights in `codec`,
  // of which an element has `bytes`.
  TimedJob(double ratio, const std::string& codec, double bytes) {
    JobShape shape;
    shape.layers = 9;
    shape.width = kWidth;
    shape.steps = 2;
    shape.tied = false;
    shape.parts = 1;
    shape.micro_batches = kMicroBatches;
    spec = SpecOf(shape);
    spec.codecs.weights = spec.codecs.embedding.weights = spec.codecs.head.weights = codec;
    spec.codecs.gradients = spec.codecs.embedding.gradients = spec.codecs.head.gradients = codec;
    spec.chunk_elements = kPanelRows * kWidth;  // a copy of the stash does not wait for a stage
    const double stages = static_cast<double>(spec.stages.size());
    const double weights = kWidth * kWidth + kWidth;
    const double copy = weights * bytes;
    const double stash = kMicroBatches * kWidth * sizeof(float);  // of a stage, one way
    const double pass = ratio * copy;
    rates.operations = kMicroBatches * weights / pass;
    rates.coded = weights / (0.05 * std::min(pass, copy));
    const double forward = std::max(pass, copy + stash);
    const double backward = std::max(3 * pass, copy + 2 * stash);
    // The last stage has only a backward visit; the host reads the last gradient before it begins
    // the next step.
    formula = (stages - 1) * forward + stages * backward + copy;
    bound = std::max((4 * stages - 1) * pass, (2 * stages - 1) * copy);
  }

  static constexpr int kWidth = 256;
  static constexpr int kMicroBatches = 4;

  JobSpec spec;
  DeviceRates rates;
  double formula = 0;  // seconds of a step
  double bound = 0;    // below which no step can be
};

// Returns the seconds of the last step.
double StepSeconds(const TimedJob& job, int prefetch) {
  auto owned = std::make_unique<TimedQueues>(job.rates);
  const TimedQueues* const queues = owned.get();
  std::vector<double> ends;
  Train(job.spec, std::move(owned), QueuedOptions(), prefetch,
        [&](Step) { ends.push_back(queues->now()); });
  return ends[ends.size() - 1] - ends[ends.size() - 2];
}

TEST(QueuedRelayTest, AStepTakesTheFormulasTime) {
  for (const double ratio : {0.125, 0.34, 0.8, 1.25, 4.0}) {
    for (const int prefetch : {1, 2}) {
      const TimedJob job(ratio, "fp32", 4);
      const double found = StepSeconds(job, prefetch);
      EXPECT_LE(found, 1.05 * job.formula) << "ratio " << ratio << ", prefetch " << prefetch;
      EXPECT_GE(found, job.bound) << "ratio " << ratio << ": the clock is wrong";
    }
  }
}

TEST(QueuedRelayTest, DecodingOnTheDeviceDelaysNothing) {
  for (const double ratio : {0.34, 1.25, 4.0}) {
    const TimedJob job(ratio, "bf16", 2);
    const double found = StepSeconds(job, /*prefetch=*/1);
    EXPECT_LE(found, 1.05 * job.formula) << "ratio " << ratio;
    EXPECT_GE(found, job.bound) << "ratio " << ratio << ": the clock is wrong";
  }
}

TEST(QueuedRelayTest, AStepWithoutPrefetchTakesLonger) {
  const TimedJob job(/*ratio=*/1, "fp32", 4);
  EXPECT_GT(StepSeconds(job, /*prefetch=*/0), 1.05 * job.formula);
}

}  // namespace
}  // namespace eps
