// A bit of a kept cut flips. If the state exists elsewhere, the job continues and the next cut, or
// an older one, takes the place of the damaged cut.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/extents/extents.h"
#include "storage/testing/durable_world.h"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ScrubHeal : public testing::TestWithParam<DurableKind> {
 protected:
  ScrubHeal() : world_(GetParam()) { Restart(); }

  void Restart() {
    process_.reset();
    process_ = std::make_unique<DurableProcess>(&world_);
    ASSERT_TRUE(process_->status().ok()) << process_->status();
  }
  // Brings all chunks to the version and cuts.
  void WriteAndCut(uint64_t version) {
    process_->WriteAll(Version(version));
    Cut(version, version);
  }
  void Cut(uint64_t step, uint64_t version) {
    const absl::Status cut = process_->Cut(CutAt(step, 1, version));
    ASSERT_TRUE(cut.ok()) << cut;
  }
  void Recycle(uint64_t step) {
    process_->backend().Recycle({Step(step), Term(1)});
    world_.executor.RunAll();
  }
  // Damages the first chunk of the n-th kept cut: its footer, or its first array.
  void Damage(size_t cut, bool footer) {
    const CatalogueCut record = process_->catalogue().Cuts(world_.spec.id())->at(cut);
    const ExtentLayout layout(world_.chunks, world_.owned, /*arrays=*/3, 0, 1);
    const uint64_t at = layout.area(0).offset + (footer ? layout.area(0).data_bytes : 100);
    world_.disk.FlipBit(world_.folder + (record.slot[0] ? "/slot-1.eps" : "/slot-0.eps"), at, 3);
  }
  // Scrubs once through all kept cuts. Returns the errors or, if there are none, the damage.
  std::vector<absl::Status> Scrub() {
    std::vector<absl::Status> damage;
    for (bool ends = false; !ends;) {
      const OpId op = process_->Next();
      process_->backend().Submit(op, ScrubRequest());
      const BackendDone done = process_->Await(op);
      if (!done.status.ok()) return {done.status};
      const ScrubResult& result = std::get<ScrubResult>(done.value);
      if (!result.damage.ok()) damage.push_back(result.damage);
      ends = result.ends_pass;
    }
    return damage;
  }
  std::vector<uint64_t> Recovered() {
    const absl::StatusOr<RecoveredState> state = process_->Recover();
    EXPECT_TRUE(state.ok()) << state.status();
    std::vector<uint64_t> steps;
    for (const CutBorder& cut : state->cuts) steps.push_back(cut.id.step.value());
    return steps;
  }
  void ExpectRestored(uint64_t step, uint64_t version) {
    const auto content = process_->Restore({Step(step), Term(1)}, Term(9));
    ASSERT_TRUE(content.ok()) << content.status();
    process_->ExpectAll(Version(version));
  }

  DurableWorld world_;
  std::unique_ptr<DurableProcess> process_;
};

TEST_P(ScrubHeal, TheNextCutReplacesADamagedOne) {
  WriteAndCut(1);
  // A tier in slots has the state of the cut nowhere else until an update has written it again.
  if (!world_.kind.in_dram) process_->WriteAll(Version(2));
  const uint64_t version = world_.kind.in_dram ? 1 : 2;
  Damage(0, /*footer=*/false);
  const std::vector<absl::Status> damage = Scrub();
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].code(), absl::StatusCode::kDataLoss) << damage[0];
  EXPECT_THAT(std::string(damage[0].message()),
              AllOf(HasSubstr(world_.folder + "/slot-"), HasSubstr("at offset 4096")));
  Cut(2, version);
  Recycle(2);
  EXPECT_TRUE(Scrub().empty());
  Restart();
  EXPECT_EQ(Recovered(), std::vector<uint64_t>{2});
  ExpectRestored(2, version);
}

TEST_P(ScrubHeal, DamagedOnlyCopyEndsTheJob) {
  WriteAndCut(1);
  Damage(0, /*footer=*/false);
  const std::vector<absl::Status> damage = Scrub();
  ASSERT_EQ(damage.size(), 1u);
  const OpId op = process_->Next();
  process_->backend().Submit(op, ScrubRequest());
  EXPECT_EQ(process_->Await(op).status.ok(), world_.kind.in_dram);
}

// With a tier in slots, the slot of the newest cut holds the state itself.
class ScrubHealInMemory : public ScrubHeal {};

TEST_P(ScrubHealInMemory, OlderCutStaysUntilTheNextOne) {
  WriteAndCut(1);
  WriteAndCut(2);
  Damage(1, /*footer=*/false);
  EXPECT_EQ(Scrub().size(), 1u);
  Recycle(2);
  EXPECT_EQ(Recovered(), std::vector<uint64_t>{1});
  Cut(3, 2);
  Recycle(3);
  Restart();
  EXPECT_EQ(Recovered(), std::vector<uint64_t>{3});
  ExpectRestored(3, 2);
}

TEST_P(ScrubHeal, RecoveryPassesOverADamagedFooter) {
  WriteAndCut(1);
  WriteAndCut(2);
  for (const bool newest : {true, false}) {
    Damage(newest ? 1 : 0, /*footer=*/true);
    Restart();
    EXPECT_EQ(Recovered(), std::vector<uint64_t>{newest ? 1u : 2u});
    if (!newest) ExpectRestored(2, 2);
    Damage(newest ? 1 : 0, /*footer=*/true);  // repairs it
    Restart();
  }
  Damage(0, /*footer=*/true);
  Damage(1, /*footer=*/true);
  Restart();
  const absl::Status none = process_->Recover().status();
  EXPECT_EQ(none.code(), absl::StatusCode::kDataLoss) << none;
}

TEST_P(ScrubHeal, ARestoreForgetsADamagedCut) {
  WriteAndCut(1);
  WriteAndCut(2);
  Damage(1, /*footer=*/false);
  Restart();
  EXPECT_EQ(Recovered(), (std::vector<uint64_t>{1, 2}));
  const absl::Status damaged = process_->Restore({Step(2), Term(1)}, Term(8)).status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
  EXPECT_THAT(std::string(damaged.message()),
              HasSubstr("start it again to continue from the cut of step 1, term 1"));
  Restart();
  EXPECT_EQ(Recovered(), std::vector<uint64_t>{1});
  ExpectRestored(1, 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ScrubHealInMemory, testing::Values(kInDram));
INSTANTIATE_TEST_SUITE_P(Kinds, ScrubHeal, testing::Values(kInDram, kOnNvme),
                         [](const testing::TestParamInfo<DurableKind>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace eps
