// LeadDesk alone: the test plays the shards and the workers.

#include "eps_server/core/steps/lead_desk.h"

#include <string>
#include <vector>

#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class LeadDeskTest : public testing::Test {
 protected:
  void Imported(uint32_t shard, uint64_t step = 0) {
    v1::ShardMessage message = facts_.NewMessage();
    message.mutable_imported()->set_step(step);
    message.mutable_imported()->set_version(step);
    desk_.OnImported(ShardId(shard), message);
  }
  // Opens the job, and drops what the lead decides at once.
  void Open() {
    Imported(0);
    Imported(1);
    desk_.Pump();
    outbox_.Take();
    outbox_.raised.clear();
  }
  // One chunk of a shard.
  v1::Stats Stats(uint64_t step, double sum_squares = 9, uint32_t chunk = 0) {
    v1::Stats stats;
    stats.set_step(step);
    stats.add_chunks(chunk);
    stats.add_sum_squares(sum_squares);
    return stats;
  }
  v1::BeginStepRequest Report(uint64_t step, uint32_t part) {
    v1::BeginStepRequest request;
    request.set_step(step + 1);
    v1::PartLoss* loss = request.add_losses();
    loss->set_step(step);
    loss->set_part(part);
    loss->set_loss_sum(10);
    loss->set_tokens(5);
    return request;
  }
  void ReportLoss(uint64_t step, uint32_t part) {
    const v1::BeginStepRequest request = Report(step, part);
    desk_.On(internal_event::LossesReported{&request});
    desk_.On(internal_event::EvaluationsReported{&request});
  }

  SmallJob job_{/*shards=*/2};
  ShardFacts facts_ = job_.MakeFacts();
  FakeOutbox outbox_;
  LeadDesk desk_{&facts_, &outbox_};
};

TEST_F(LeadDeskTest, OpensWhenEveryShardHoldsTheBorder) {
  Imported(0);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::BorderOpened>(), IsEmpty());
  EXPECT_THAT(desk_.WaitsFor(), HasSubstr("shard 1"));
  Imported(1);
  EXPECT_EQ(outbox_.TakeRaised<internal_event::BorderOpened>().size(), 1u);
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("ToShard 1")));
}

TEST_F(LeadDeskTest, FailsWhenShardsHoldDifferentBorders) {
  Imported(0, 0);
  Imported(1, 4);
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].reason, HasSubstr("import the same checkpoint into all shards"));
}

TEST_F(LeadDeskTest, BroadcastsADecisionOnce) {
  Imported(0);
  Imported(1);
  outbox_.Take();
  desk_.Pump();
  const size_t decided = outbox_.TakeRaised<internal_event::Decided>().size();
  EXPECT_GT(decided, 0u);
  EXPECT_EQ(outbox_.Take().size(), decided) << "one message for each";
  desk_.Pump();
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(LeadDeskTest, DecidesNothingDuringAReplay) {
  Imported(0);
  Imported(1);
  outbox_.Take();
  facts_.log = ShardFacts::LogState::kReplayed;
  desk_.Pump();
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(LeadDeskTest, RecordsAStepAfterItsLastReport) {
  Open();
  desk_.OnStats(ShardId(0), Stats(1));
  ReportLoss(1, 0);
  ReportLoss(1, 1);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::Recorded>(), IsEmpty());
  desk_.OnStats(ShardId(1), Stats(1, 16, 1));
  const auto recorded = outbox_.TakeRaised<internal_event::Recorded>();
  ASSERT_EQ(recorded.size(), 1u);
  EXPECT_EQ(recorded[0].record.loss(), 2.0);
  EXPECT_EQ(desk_.recorded_step(), 1u);
  EXPECT_EQ(desk_.NormOf(1), 5.0);
}

TEST_F(LeadDeskTest, CountsARepeatedLossOnce) {
  Open();
  desk_.OnStats(ShardId(0), Stats(1));
  desk_.OnStats(ShardId(1), Stats(1, 16, 1));
  ReportLoss(1, 0);
  ReportLoss(1, 0);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::Recorded>(), IsEmpty()) << "part 1 is missing";
}

TEST_F(LeadDeskTest, LogsWhatIsNews) {
  Open();
  facts_.log = ShardFacts::LogState::kWritten;
  desk_.OnStats(ShardId(1), Stats(1));
  desk_.OnStats(ShardId(1), Stats(1));
  desk_.OnStats(ShardId(0), Stats(1));  // its own follow from the rest
  const v1::BeginStepRequest report = Report(1, 0);
  desk_.On(internal_event::LossesReported{&report});
  desk_.On(internal_event::LossesReported{&report});
  std::vector<std::string> logged;
  for (const std::string& line : outbox_.Take()) {
    if (line.rfind("Log", 0) == 0) logged.push_back(line.substr(0, 11));
  }
  EXPECT_THAT(logged, ElementsAre("Log 1 stats", StartsWith("Log "), StartsWith("Log 2 repor")));
}

TEST_F(LeadDeskTest, RepeatsItselfToAShardThatReturns) {
  Open();
  desk_.On(internal_event::ShardReached{ShardId(1)});
  const std::vector<std::string> lines = outbox_.Take();
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front(), HasSubstr("imported"));
  EXPECT_THAT(lines.back(), HasSubstr("decision"));
}

}  // namespace
}  // namespace eps
