// Plans of jobs whose state is in memory in part (storage.dram), or is read once more for trust
// ratios (LAMB).

#include <string>
#include <utility>
#include <vector>

#include "base/config/config.h"
#include "gtest/gtest.h"
#include "planner/memory_plan.h"
#include "planner/plan.h"
#include "planner/step_model.h"
#include "planner/testing/plans.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner {
namespace {

// A small GPT-2 in mode sealed, on a machine with storage devices.
Plan PlanWith(std::vector<std::pair<std::string, std::string>> settings) {
  settings.emplace_back("training.clip", "exact");
  const Config config = ConfigWith(settings);
  return *MakePlan(config, Gpt2Spec(config, 4, 256, 1), Example("a5000_smartssd_6"));
}

// The bytes of one kind in the memory of a server.
Bytes InMemory(const Plan& plan, const std::string& kind) {
  Bytes sum;
  for (const MemoryUse& use : plan.tiers.front().uses) {
    if (use.kind == kind) sum += use.bytes;
  }
  return sum;
}

Bytes StateOf(const Plan& plan) {
  return static_cast<double>(plan.work.parameters) * plan.work.state_per_parameter;
}

const StageTimes& Stage(const Plan& plan) { return plan.estimate.stages[1]; }

TEST(StatePlace, AShareInMemoryIsPlanned) {
  const Plan none = PlanWith({{"storage.kind", "nvme"}});
  const Plan some = PlanWith({{"storage.kind", "nvme"}, {"storage.dram", "32MiB"}});
  const Plan all = PlanWith({{"storage.kind", "nvme"}, {"storage.dram", "1TiB"}});
  const Bytes share(32 << 20);
  EXPECT_EQ(InMemory(none, "state"), Bytes(0));
  EXPECT_EQ(InMemory(some, "state"), share);
  EXPECT_EQ(InMemory(all, "state"), StateOf(all));
  // Their reduced gradients, of 4 bytes for 12 of state, are there, too.
  const Bytes gradients = InMemory(some, "contribution") - InMemory(none, "contribution");
  EXPECT_NEAR(gradients.value(), share.value() / 3, 1);
}

TEST(StatePlace, DisksMoveWhatIsNotInMemory) {
  for (const std::string kind : {"nvme", "csd"}) {
    const Plan none = PlanWith({{"storage.kind", kind}});
    const Plan some = PlanWith({{"storage.kind", kind}, {"storage.dram", "32MiB"}});
    const Plan all = PlanWith({{"storage.kind", kind}, {"storage.dram", "1TiB"}});
    const Plan dram = PlanWith({{"storage.kind", "dram"}});
    const double share = 1 - Bytes(32 << 20) / StateOf(some);
    EXPECT_GT(Stage(none).disk, Seconds(0));
    EXPECT_NEAR(Stage(some).disk.value(), share * Stage(none).disk.value(), 1e-12) << kind;
    EXPECT_NEAR(Stage(some).read.value(), share * Stage(none).read.value(), 1e-12) << kind;
    EXPECT_EQ(Stage(all).disk, Seconds(0));
    EXPECT_EQ(Stage(all).update.alone(), Stage(dram).update.alone()) << "the host updates all";
  }
}

// Two of four drives are devices.
TEST(StatePlace, PlainDrivesWorkBesideDevices) {
  const std::vector<std::pair<std::string, std::string>> csd = {
      {"storage.kind", "csd"}, {"storage.path", "state"}, {"storage.drives", "a,b,c,d"}};
  std::vector<std::pair<std::string, std::string>> some = csd;
  some.emplace_back("storage.csd.devices", "2");
  const Plan near = PlanWith(csd);
  const Plan both = PlanWith(some);
  const Plan nvme = PlanWith({{"storage.kind", "nvme"}});
  EXPECT_EQ(Stage(near).update.alone(), Seconds(0));
  EXPECT_NEAR(Stage(both).update.alone().value(), Stage(nvme).update.alone().value() / 2, 1e-12);
  EXPECT_EQ(Stage(both).disk, Max(Stage(near).disk, Stage(nvme).disk));
  EXPECT_EQ(Stage(both).spill, Stage(nvme).spill);
  EXPECT_NEAR((Stage(both).reduce.alone() - Stage(nvme).reduce.alone()).value(),
              (Stage(near).reduce.alone() - Stage(nvme).reduce.alone()).value() / 2, 1e-12);
  EXPECT_EQ(InMemory(near, "state"), 2 * InMemory(both, "state")) << "the memory of the devices";
}

TEST(StatePlace, CutsWriteWhatIsInMemory) {
  const Plan none = PlanWith({{"storage.kind", "nvme"}});
  const Plan all = PlanWith({{"storage.kind", "nvme"}, {"storage.dram", "1TiB"}});
  const Plan dram = PlanWith({{"storage.kind", "dram"}, {"storage.path", "state"}});
  EXPECT_EQ(Stage(none).cut, Seconds(0));
  EXPECT_GT(Stage(dram).cut, Seconds(0));
  EXPECT_EQ(Stage(all).cut, Stage(dram).cut);
}

TEST(StatePlace, NormsReadTheStateOnceMore) {
  for (const std::string kind : {"dram", "nvme", "csd"}) {
    const Plan adam = PlanWith({{"storage.kind", kind}, {"optimizer.name", "adamw"}});
    const Plan lamb = PlanWith({{"storage.kind", kind}, {"optimizer.name", "lamb"}});
    EXPECT_TRUE(lamb.work.measures);
    const bool on_disk = kind != "dram";
    EXPECT_EQ(Stage(lamb).disk > Stage(adam).disk, on_disk) << kind;
    EXPECT_EQ(Stage(lamb).update.alone() > Stage(adam).update.alone(), kind != "csd") << kind;
    EXPECT_EQ(Stage(lamb).spill, Stage(adam).spill) << kind;
  }
}

}  // namespace
}  // namespace eps::planner
