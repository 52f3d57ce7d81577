// Cuts and scrubs, with the desk alone: the test changes the facts and answers for the backend.

#include "eps_server/core/cuts/cut_desk.h"

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/cut.h"
#include "storage/state_backend.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr StreamId kStream(7);

// On the lead of a durable job of two shards, unless the test asks for another desk.
class CutDeskTest : public testing::Test {
 protected:
  CutDeskTest() { Make(ShardId(0)); }

  void Make(ShardId shard, uint64_t scrub_bytes_per_second = 0, bool durable = true) {
    job_.shard = shard;
    job_.caps.durable = durable;
    job_.limits.scrub_bytes_per_second = scrub_bytes_per_second;
    facts_ = std::make_unique<ShardFacts>(job_.MakeFacts());
    desk_ = std::make_unique<CutDesk>(facts_.get(), &queries_, &outbox_);
    // As the router does.
    outbox_.on_raise = [this](const InternalEvent& event) {
      if (std::holds_alternative<internal_event::CutStarted>(event)) facts_->cuts.pending.reset();
    };
  }

  // Makes the border after `step` one that has to be cut.
  void ReachBorder(uint64_t step) {
    CutBorder border;
    border.id = CutId{Step(step), Term(1)};
    border.version = Version(step);
    border.update = step;
    border.opened = true;
    facts_->cuts.pending = border;
    desk_->On(internal_event::BorderReached());
  }
  void Record(uint64_t step) {
    internal_event::Recorded e;
    e.record.set_step(step);
    desk_->On(e);
  }
  internal_event::ImportComplete ImportOf(uint64_t step) {
    internal_event::ImportComplete e{kStream, {}};
    e.border.set_step(step);
    e.border.set_version(step + 1);
    e.border.set_update(step + 2);
    e.border.set_lagged_norm(0.5);
    return e;
  }
  bool Complete(uint64_t op, absl::Status status = absl::OkStatus()) {
    BackendDone done;
    done.op = OpId(op);
    done.status = std::move(status);
    return desk_->On(event::OpDone{done});
  }
  bool CompleteScrub(uint64_t op, uint64_t bytes, bool ends_pass = false) {
    BackendDone done;
    done.op = OpId(op);
    done.value = ScrubResult{bytes, ends_pass, absl::OkStatus()};
    return desk_->On(event::OpDone{done});
  }

  SmallJob job_{2};
  FakeOutbox outbox_;
  FakeQueries queries_;
  std::unique_ptr<ShardFacts> facts_;
  std::unique_ptr<CutDesk> desk_;
};

// ---------------------------------------------------------------- cuts

TEST_F(CutDeskTest, LeadsCutWaitsForItsRecords) {
  queries_.recorded_step = 1;
  queries_.norm = 2;
  ReachBorder(2);
  desk_->On(internal_event::RecordsUpToDate());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_THAT(outbox_.TakeRaised<internal_event::CutStarted>(), IsEmpty());
  queries_.recorded_step = 2;
  desk_->On(internal_event::RecordsUpToDate());
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre("Start 1 Cut cut 2/1 version 2 update 2 norm 0x1p+1 opened"));
  EXPECT_EQ(outbox_.TakeRaised<internal_event::CutStarted>().size(), 1u);
  desk_->On(internal_event::RecordsUpToDate());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(CutDeskTest, OtherShardsCutsWaitForNoRecords) {
  Make(ShardId(1));
  queries_.norm = 2;  // which only the lead knows
  ReachBorder(2);
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre("Start 1 Cut cut 2/1 version 2 update 2 norm 0x0p+0 opened"));
}

TEST_F(CutDeskTest, CutsNothingUnlessACutIsPending) {
  queries_.recorded_step = 9;
  desk_->On(internal_event::BorderReached());
  desk_->On(internal_event::RecordsUpToDate());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_THAT(outbox_.raised, IsEmpty());
}

TEST_F(CutDeskTest, LogsTheSessionBeforeTheCut) {
  Make(ShardId(1));
  std::vector<size_t> lines;  // emitted before SessionChanged, and before CutStarted
  outbox_.on_raise = [&](const InternalEvent&) { lines.push_back(outbox_.TakeUntraced().size()); };
  ReachBorder(2);
  EXPECT_THAT(lines, ElementsAre(0, 1));
  EXPECT_EQ(outbox_.TakeRaised<internal_event::SessionChanged>().size(), 1u);
}

TEST_F(CutDeskTest, SavesEachRecordOnce) {
  queries_.recorded_step = 9;
  Record(1);
  Record(2);
  ReachBorder(2);
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre(AllOf(StartsWith("Start 1 Cut cut 2/1"),
                                HasSubstr(" record {step: 1} record {step: 2}"))));
  Record(3);
  ReachBorder(3);
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre(AllOf(StartsWith("Start 2 Cut cut 3/1"),
                                                        HasSubstr("opened record {step: 3}"))));
  ReachBorder(4);
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre(Not(HasSubstr("record"))));
}

TEST_F(CutDeskTest, DropsRecordsThatTheRestoredCutHas) {
  queries_.recorded_step = 9;
  Record(1);
  desk_->On(internal_event::StateRestored{});
  Record(3);
  ReachBorder(3);
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre(HasSubstr("opened record {step: 3}")));
}

TEST_F(CutDeskTest, KeepsNoRecordsUnlessDurable) {
  Make(ShardId(0), /*scrub_bytes_per_second=*/0, /*durable=*/false);
  Record(1);
  desk_->On(ImportOf(0));
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre(Not(HasSubstr("record"))));
}

TEST_F(CutDeskTest, SavesTheResidualsOfTheBorder) {
  Make(ShardId(1));
  facts_->residuals.Import({ChunkId(1), StageId(0), PartId(1)}, Bytes::CopyOf("0123"));
  ReachBorder(2);
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre(HasSubstr("residual 1,0,1[4:")));
}

TEST_F(CutDeskTest, TellsTheLeadOfADurableCut) {
  Make(ShardId(1));
  ReachBorder(2);
  outbox_.Take();
  EXPECT_FALSE(desk_->idle());
  EXPECT_TRUE(Complete(1));
  EXPECT_TRUE(desk_->idle());
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre(AllOf(StartsWith("ToShard 0 {"),
                                HasSubstr("from: 1 term: 1 durable { cut { step: 2 term: 1 } }"))));
  EXPECT_EQ(outbox_.counters["cuts"], 1u);
}

TEST_F(CutDeskTest, RepeatsItsYoungestCutToTheLead) {
  Make(ShardId(1));
  desk_->On(internal_event::LeadReached());
  EXPECT_THAT(outbox_.Take(), IsEmpty());  // there is no cut yet
  ReachBorder(2);
  ReachBorder(3);
  Complete(1);
  Complete(2);
  outbox_.Take();
  desk_->On(internal_event::LeadReached());
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("durable { cut { step: 3 term: 1 } }")));
}

TEST_F(CutDeskTest, AFailedCutIsNotDurable) {
  Make(ShardId(1));
  ReachBorder(2);
  outbox_.Take();
  outbox_.raised.clear();
  Complete(1, absl::UnavailableError("no room"));
  desk_->On(internal_event::LeadReached());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  const auto failed = outbox_.TakeRaised<internal_event::OpFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].what, "the cut of step 2 (term 1)");
  EXPECT_EQ(failed[0].status, absl::UnavailableError("no room"));
  EXPECT_EQ(outbox_.counters["cuts"], 0u);
}

TEST_F(CutDeskTest, ACutInTheLogCountsAgain) {
  internal_event::LogFound e;
  e.log.base = CutId{Step(2), Term(1)};
  desk_->On(e);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  desk_->On(internal_event::ReplayEnded());
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("durable { cut { step: 2 term: 1 } }")));
}

TEST_F(CutDeskTest, LeavesTheCallsOfOtherDesks) {
  ReachBorder(2);
  EXPECT_FALSE(Complete(99));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::OpFailed>(), IsEmpty());
}

// ---------------------------------------------------------------- imports

TEST_F(CutDeskTest, AnImportIsAnsweredAfterItsCut) {
  desk_->On(ImportOf(4));
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre("Start 1 Cut cut 4/1 version 5 update 6 norm 0x1p-1"));
  EXPECT_THAT(outbox_.raised, IsEmpty());
  Complete(1);
  EXPECT_THAT(outbox_.TakeUntraced(), IsEmpty());
  const auto durable = outbox_.TakeRaised<internal_event::ImportDurable>();
  ASSERT_EQ(durable.size(), 1u);
  EXPECT_EQ(durable[0].stream, kStream);
  EXPECT_EQ(durable[0].border.SerializeAsString(), ImportOf(4).border.SerializeAsString());
}

TEST_F(CutDeskTest, AnImportWithoutCutIsNotAnswered) {
  desk_->On(ImportOf(4));
  Complete(1, absl::InternalError("bad disk"));
  EXPECT_EQ(outbox_.raised.size(), 1u);
  EXPECT_EQ(outbox_.TakeRaised<internal_event::OpFailed>().size(), 1u);
}

// ---------------------------------------------------------------- cuts that every shard has

TEST_F(CutDeskTest, ACutEverywhereFreesOlderCuts) {
  queries_.recorded_step = 9;
  facts_->now_ms = 1000;
  ReachBorder(2);
  facts_->now_ms = 3500;
  Complete(1);
  outbox_.Take();
  desk_->On(internal_event::CutEverywhere{CutId{Step(2), Term(1)}});
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("ToShard 1 {"),
                                                HasSubstr("watermark { cut { step: 2 term: 1 } }")),
                                          "Start 0 Recycle 2/1"));
  const auto measured = outbox_.TakeRaised<internal_event::CutMeasured>();
  ASSERT_EQ(measured.size(), 1u);
  EXPECT_EQ(measured[0].seconds, 2.5);
  EXPECT_EQ(outbox_.counters["cut_ms"], 2500u);
}

TEST_F(CutDeskTest, MeasuresOverlappingCutsFromTheirBegins) {
  queries_.recorded_step = 9;
  facts_->now_ms = 1000;
  ReachBorder(2);
  facts_->now_ms = 3000;
  ReachBorder(3);
  facts_->now_ms = 3500;
  desk_->On(internal_event::CutEverywhere{CutId{Step(2), Term(1)}});
  facts_->now_ms = 6000;
  desk_->On(internal_event::CutEverywhere{CutId{Step(3), Term(1)}});
  const auto measured = outbox_.TakeRaised<internal_event::CutMeasured>();
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_EQ(measured[0].seconds, 2.5);
  EXPECT_EQ(measured[1].seconds, 3);
}

TEST_F(CutDeskTest, MeasuresOnlyCutsOfItsTerm) {
  facts_->now_ms = 3500;
  desk_->On(internal_event::CutEverywhere{CutId{Step(2), Term(1)}});
  EXPECT_EQ(outbox_.Take().size(), 2u);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::CutMeasured>(), IsEmpty());
}

TEST_F(CutDeskTest, OnlyTheWatermarkFreesOlderCuts) {
  Make(ShardId(1));
  ReachBorder(2);
  Complete(1);
  EXPECT_THAT(outbox_.Take(), Not(Contains(HasSubstr("Recycle"))));
  desk_->KeepFrom(CutId{Step(2), Term(1)});
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 0 Recycle 2/1"));
}

// ---------------------------------------------------------------- scrubs

TEST_F(CutDeskTest, AScrubWaitsAsTheRateDemands) {
  Make(ShardId(0), /*scrub_bytes_per_second=*/1000);
  desk_->On(internal_event::StepOpened());
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 1 Scrub"));
  EXPECT_TRUE(desk_->idle());  // a scrub does not count
  EXPECT_TRUE(CompleteScrub(1, 4500));
  EXPECT_THAT(outbox_.Take(), ElementsAre("SetTimer 1 after 4500"));
  desk_->On(event::Timer{TimerId(99)});  // of another desk
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  desk_->On(event::Timer{TimerId(1)});
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 2 Scrub"));
  CompleteScrub(2, /*bytes=*/0, /*ends_pass=*/true);
  EXPECT_THAT(outbox_.Take(), ElementsAre("SetTimer 2 after 10000"));  // there is no cut
  EXPECT_EQ(outbox_.counters["scrubbed_bytes"], 4500u);
  EXPECT_EQ(outbox_.counters["scrub_passes"], 1u);
}

TEST_F(CutDeskTest, AScrubAlwaysPauses) {
  Make(ShardId(0), /*scrub_bytes_per_second=*/1'000'000);
  desk_->On(internal_event::StepOpened());
  CompleteScrub(1, 10);
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 1 Scrub", "SetTimer 1 after 1"));
}

TEST_F(CutDeskTest, NeverScrubsTwiceAtOnce) {
  Make(ShardId(0), /*scrub_bytes_per_second=*/1000);
  desk_->On(internal_event::StepOpened());
  desk_->On(internal_event::StepOpened());
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 1 Scrub"));
  CompleteScrub(1, 10);
  desk_->On(internal_event::StepOpened());  // the pause is not over
  EXPECT_THAT(outbox_.Take(), ElementsAre("SetTimer 1 after 10"));
}

TEST_F(CutDeskTest, ScrubsOnlyIfAskedAndDurable) {
  desk_->On(internal_event::StepOpened());
  Make(ShardId(0), /*scrub_bytes_per_second=*/1000, /*durable=*/false);
  desk_->On(internal_event::StepOpened());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(CutDeskTest, EndOfTermStopsScrubbing) {
  Make(ShardId(0), /*scrub_bytes_per_second=*/1000);
  desk_->EndTerm();
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  desk_->On(internal_event::StepOpened());
  CompleteScrub(1, 10);
  outbox_.Take();
  desk_->EndTerm();
  EXPECT_THAT(outbox_.Take(), ElementsAre("ClearTimer 1"));
}

TEST_F(CutDeskTest, AFailedJobStopsScrubbing) {
  Make(ShardId(0), /*scrub_bytes_per_second=*/1000);
  desk_->On(internal_event::StepOpened());
  CompleteScrub(1, 10);
  outbox_.Take();
  facts_->state = v1::JOB_STATE_FAILED;
  desk_->On(event::Timer{TimerId(1)});
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(CutDeskTest, CountsOnlyDamageAsDamage) {
  Make(ShardId(0), /*scrub_bytes_per_second=*/1000);
  desk_->On(internal_event::StepOpened());
  Complete(1, absl::UnavailableError("gone"));
  EXPECT_EQ(outbox_.counters["scrub_damage"], 0u);
  desk_->On(internal_event::StepOpened());
  outbox_.Take();
  outbox_.raised.clear();
  Complete(2, absl::DataLossError("a bit is wrong"));
  EXPECT_EQ(outbox_.counters["scrub_damage"], 1u);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  const auto failed = outbox_.TakeRaised<internal_event::OpFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].what, "scrub");
}

}  // namespace
}  // namespace eps
