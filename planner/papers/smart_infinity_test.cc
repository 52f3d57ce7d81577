#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "planner/papers/papers.h"
#include "planner/papers/row.h"
#include "planner/papers/smart_infinity_model.h"
#include "planner/units.h"

namespace eps::planner::smart_infinity {
namespace {

constexpr double kRounding = 1e-12;
constexpr double kMilli = 1e-3;  // seconds

Method MethodOf(Variant variant, const Optimizer& optimizer = kAdam, double c = 0.02) {
  Method method;
  method.variant = variant;
  method.optimizer = optimizer;
  method.c = c;
  return method;
}

// A machine whose times can be computed by hand: one parameter per subgroup, and rates that make
// each step a whole number of seconds.
Machine SimpleMachine() {
  Machine m;
  m.host_link = BytesPerSecond(4);  // 4 bytes in 1 s
  m.internal_link = kNoLimit;
  m.host_read = BytesPerSecond(4);     // 1 s
  m.host_write = BytesPerSecond(1);    // 4 s
  m.device_read = BytesPerSecond(4);   // 1 s a field
  m.device_write = BytesPerSecond(2);  // 2 s a field
  m.update = BytesPerSecond(4);        // 4 s for the 16 bytes of Adam
  m.decompress_update = BytesPerSecond(4);
  m.subgroup = 1;
  m.base_buffers = 1;
  m.base_software = BytesPerSecond(7);  // 4 s for the 28 bytes of Adam
  m.take_over = BytesPerSecond(4);      // 1 s
  return m;
}
const Gpu kSimpleGpu{"simple", Seconds(1), Seconds(3), Dollars(0)};

// The judged rows that miss their tolerance, with the reasons.
const std::set<std::string>& KnownMisses() {
  static const auto* misses = new std::set<std::string>{
      // In figure 11 two SSDs are 1.54 times as fast as one, in figure 3(b) 1.71 times. The
      // simulation, whose RAID0 has no overhead, gives 1.83.
      "smart.fig11.a100.base2",
      // The gain of compression in the update: the paper's 2.2 ns per parameter of a device exceed
      // the 1.35 ns that reading its dense gradient takes at figure 14's rates, at which
      // decompression adds 2.1 ns to the updater.
      "smart.gain.gpt2_4.0b.update6",
      "smart.gain.gpt2_4.0b.update6.faster",
      "smart.gain.gpt2_4.0b.update10",
      "smart.gain.gpt2_4.0b.update10.faster",
      "smart.gain.fig11.a5000.iteration2.faster",
      // In the paper, compression slows one and two devices with an A100, but not with an A5000.
      "smart.gain.fig11.a100.iteration1.faster",
      "smart.gain.fig11.a100.iteration2.faster",
  };
  return *misses;
}

TEST(SmartInfinityRowsTest, OnlyTheKnownMissesMiss) {
  std::set<std::string> missed;
  for (const Row& row : SmartInfinityRows()) {
    if (KnownMisses().count(row.id) != 0) {
      if (!row.ok()) missed.insert(row.id);
      continue;
    }
    EXPECT_TRUE(row.ok()) << row.id << ": paper " << row.paper << ", ours " << row.ours;
  }
  EXPECT_EQ(missed, KnownMisses()) << "a known miss is none any more, or has another name";
}

TEST(SmartInfinityRowsTest, IdsAreUniqueAndShownRowsExplained) {
  std::set<std::string> ids;
  size_t judged = 0;
  for (const Row& row : SmartInfinityRows()) {
    EXPECT_TRUE(ids.insert(row.id).second) << row.id;
    if (row.judged()) ++judged;
    EXPECT_TRUE(row.judged() || !row.note.empty()) << row.id;
  }
  EXPECT_GT(judged, 150u);
}

TEST(TrafficTest, TheBaselineMovesEverythingBothWays) {
  const Traffic t = TrafficOf(MethodOf(Variant::kBase));
  EXPECT_EQ(t.host_states_read, Bytes(12));
  EXPECT_EQ(t.host_gradients_read, Bytes(4));
  EXPECT_EQ(t.host_read(), Bytes(16));
  EXPECT_EQ(t.host_written(), Bytes(16));
  EXPECT_EQ(t.media_read, Bytes(16));
  EXPECT_EQ(t.internal_read, Bytes(0));
}

TEST(TrafficTest, UpdatingDevicesRelieveTheHost) {
  const Traffic t = TrafficOf(MethodOf(Variant::kHandover));
  EXPECT_EQ(t.host_read(), Bytes(4));
  EXPECT_EQ(t.host_written(), Bytes(4));
  EXPECT_EQ(t.internal_read, Bytes(16));
  EXPECT_EQ(t.internal_written, Bytes(12));
  EXPECT_EQ(t.media_read, Bytes(20));
  EXPECT_EQ(t.media_written, Bytes(16));
  const Traffic sgd = TrafficOf(MethodOf(Variant::kHandover, kSgdMomentum));
  EXPECT_EQ(sgd.internal_read, Bytes(12));
  EXPECT_EQ(sgd.internal_written, Bytes(8));
}

TEST(TrafficTest, CompressionAffectsOnlyGradients) {
  const Traffic t = TrafficOf(MethodOf(Variant::kTopK));
  EXPECT_NEAR(t.host_written().value(), 0.08, kRounding);
  EXPECT_NEAR(t.internal_read.value(), 12.08, kRounding);
  EXPECT_NEAR(t.media_read.value(), 16.08, kRounding);
  EXPECT_NEAR(t.media_written.value(), 12.08, kRounding);
  EXPECT_EQ(t.host_read(), Bytes(4));
}

TEST(TrafficTest, NarrowParametersSkipTheMedium) {
  Method method = MethodOf(Variant::kHandover);
  method.widths.up = Bytes(2);
  const Traffic t = TrafficOf(method);
  EXPECT_EQ(t.host_read(), Bytes(2));
  EXPECT_EQ(t.media_read, t.internal_read);
}

TEST(TopKTest, TheRatioCountsIndicesAndValues) {
  const Method method = MethodOf(Variant::kTopK);
  EXPECT_EQ(TopKEntries(method, 40000000), 400000u);
  EXPECT_EQ(TopKBytes(method, 40000000), Bytes(3.2e6));
}

TEST(DeviceMemoryTest, HoldsAllFieldsAndTheVariantsBuffers) {
  EXPECT_EQ(DeviceMemory(MethodOf(Variant::kHandover), 40000000, 1), Bytes(0.64e9));
  EXPECT_EQ(DeviceMemory(MethodOf(Variant::kHandover), 40000000, 3), Bytes(1.92e9));
  EXPECT_EQ(DeviceMemory(MethodOf(Variant::kTopK), 40000000, 1), Bytes(0.6432e9));
  EXPECT_EQ(DeviceMemory(MethodOf(Variant::kHandover, kAdaGrad), 40000000, 1), Bytes(0.48e9));
  Method fp16 = MethodOf(Variant::kHandover);
  fp16.widths.up = Bytes(2);
  EXPECT_EQ(DeviceMemory(fp16, 40000000, 1), Bytes(0.72e9));
}

TEST(UnscaleTest, ClipsOnlyAboveTheThreshold) {
  EXPECT_NEAR(UnscaleFactor(1024, 4096, 1), 2.4414e-4, 1e-8);
  EXPECT_EQ(UnscaleFactor(1024, 512, 1), 1.0 / 1024);
}

TEST(ClosedFormTest, TheBaselineHasAFloor) {
  EXPECT_EQ(ClosedForm(Variant::kBase, 1), Seconds(9.9 + 46.25));
  EXPECT_EQ(ClosedForm(Variant::kBase, 10), Seconds(23.8));
  EXPECT_EQ(ClosedForm(Variant::kHandover, 1), Seconds(8.8 + 53.75));
  EXPECT_EQ(ClosedForm(Variant::kTopK, 2), Seconds(7.3 + 25.625));
}

// Two subgroups: weights take 0.5 s each, the GPU 1 s: 0.5 + 2.
TEST(SimulateTest, ForwardHidesTheNextWeights) {
  const StepTime time = Simulate(SimpleMachine(), kSimpleGpu, MethodOf(Variant::kHandover), 2, 1);
  EXPECT_NEAR(time.forward.value(), 2.5, kMilli);
}

// 0.5 s of weights, then 3 s per block and 1 s to send its gradients. Writes take 4 s each: the
// first from 4.5 to 8.5, when the second block has just been sent.
TEST(SimulateTest, BackwardWritesGradientsWhileItComputes) {
  const StepTime time = Simulate(SimpleMachine(), kSimpleGpu, MethodOf(Variant::kHandover), 2, 1);
  EXPECT_NEAR(time.backward.value(), 12.5, kMilli);
}

// Per subgroup: 16 bytes up in 4 s, 4 s of software, 12 bytes down in 12 s. With one buffer they
// run in sequence. With two, the second subgroup's read overlaps the first's software, and its
// software overlaps the first's write: 4 + 4 + 12 + 12.
TEST(SimulateTest, TheBaselineTakesTurnsInItsBuffers) {
  Machine machine = SimpleMachine();
  machine.host_link = kNoLimit;
  EXPECT_NEAR(Simulate(machine, kSimpleGpu, MethodOf(Variant::kBase), 2, 1).update.value(), 40,
              kMilli);
  machine.base_buffers = 2;
  EXPECT_NEAR(Simulate(machine, kSimpleGpu, MethodOf(Variant::kBase), 2, 1).update.value(), 32,
              kMilli);
}

// Per subgroup: g, p, m and v are read in 4 s, the update takes 4 s, p, m and v are written in 6 s,
// 1 s goes up, and the host copies for 1 s. kNaive runs all in sequence; the handler copies while m
// and v are written, so the medium is idle only during the updates: 2 * (4 + 4 + 6 + 1).
TEST(SimulateTest, OnlyTheHandlerWritesLazily) {
  const Machine machine = SimpleMachine();
  EXPECT_NEAR(Simulate(machine, kSimpleGpu, MethodOf(Variant::kNaive), 2, 1).update.value(), 32,
              kMilli);
  EXPECT_NEAR(Simulate(machine, kSimpleGpu, MethodOf(Variant::kHandover), 2, 1).update.value(), 30,
              kMilli);
}

// Lists of half the bytes: 0.5 s to read them and 3 s for p, m and v; 3 s to decompress and 4 s to
// update, 14 bytes at 2 B/s; 2 s to write p, 1 s up, 4 s for m and v. If decompression overlaps the
// reads of the states, it adds no time; a slower one, 10 s, adds the part that the reads do not
// cover.
TEST(SimulateTest, DecompressionComesBeforeTheUpdate) {
  Machine machine = SimpleMachine();
  const auto update = [&machine] {
    return Simulate(machine, kSimpleGpu, MethodOf(Variant::kTopK, kAdam, 0.5), 1, 1).update.value();
  };
  machine.decompress_update = BytesPerSecond(2);
  EXPECT_NEAR(update(), 3.5 + 3 + 4 + 7, kMilli);
  machine.decompress_beside_reads = true;
  EXPECT_NEAR(update(), 3.5 + 4 + 7, kMilli);
  machine.decompress_update = BytesPerSecond(1);
  EXPECT_NEAR(update(), 0.5 + 10 + 4 + 7, kMilli);
}

// Two subgroups on two devices are one round: each device takes 4 + 4 + 6. Then the parameters of
// both go up over the host's link of 4 B/s in 2 s, and one thread copies them in 2 s.
TEST(SimulateTest, ParallelDevicesShareTheHost) {
  EXPECT_NEAR(Simulate(SimpleMachine(), kSimpleGpu, MethodOf(Variant::kNaive), 2, 2).update.value(),
              18, kMilli);
}

TEST(SimulateTest, ASmallerLastSubgroupCounts) {
  const auto update = [](double parameters) {
    return Simulate(SimpleMachine(), kSimpleGpu, MethodOf(Variant::kNaive), parameters, 1)
        .update.value();
  };
  EXPECT_NEAR(update(1), 16, kMilli);
  Machine machine = SimpleMachine();
  machine.subgroup = 4;
  EXPECT_NEAR(Simulate(machine, kSimpleGpu, MethodOf(Variant::kNaive), 6, 1).update.value(), 6 * 16,
              kMilli);
}

TEST(PriceTest, DevicesThatUpdateCostMore) {
  EXPECT_EQ(Price(kA5000, Variant::kBase, 10), Dollars(51000));
  EXPECT_EQ(Price(kA100, Variant::kTopK, 10), Dollars(76000));
}

}  // namespace
}  // namespace eps::planner::smart_infinity
