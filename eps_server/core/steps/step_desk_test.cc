// StepDesk alone: the test plays PushDesk, the router, the lead and the backend.

#include "eps_server/core/steps/step_desk.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/job/optimizers.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class StepDeskTest : public testing::Test {
 protected:
  explicit StepDeskTest(Mode mode = Mode::kEager, OptimizerName optimizer = OptimizerName::kAdamW) {
    job_.spec.training.mode = mode;
    job_.spec.optimizer.name = optimizer;
    facts_.emplace(job_.MakeFacts());
    desk_.emplace(&*facts_, &queries_, &outbox_);
    outbox_.on_raise = [this](const InternalEvent& event) { Route(event); };
  }

  // The changes that the router makes to the facts.
  void Route(const InternalEvent& event) {
    if (const auto* started = std::get_if<internal_event::UpdateStarted>(&event)) {
      facts_->Owned(started->chunk)->updating = true;
    } else if (const auto* updated = std::get_if<internal_event::ChunkUpdated>(&event)) {
      OwnedChunk* const chunk = facts_->Owned(updated->chunk);
      chunk->updating = false;
      chunk->version = chunk->version.Next();
    } else if (const auto* complete = std::get_if<internal_event::StepComplete>(&event)) {
      if (!complete->decision.skip()) ++facts_->version;
      ++facts_->step;
    }
  }
  void Complete(size_t index, bool nonfinite = false, std::optional<uint64_t> tokens = 200) {
    internal_event::ChunkComplete complete;
    complete.chunk = facts_->owned[index].id;
    complete.tokens = tokens;
    complete.nonfinite = nonfinite;
    desk_->On(complete);
  }
  void CompleteAll() {
    for (size_t i = 0; i < facts_->owned.size(); ++i) Complete(i);
  }
  void Decide(uint64_t step, bool skip = false) {
    internal_event::Decided decided;
    decided.decision.set_step(step);
    decided.decision.set_update(step);
    decided.decision.set_clip_factor(1);
    decided.decision.set_skip(skip);
    desk_->On(decided);
  }
  void Done(uint64_t op, absl::Status status = absl::OkStatus()) {
    BackendDone done;
    done.op = OpId(op);
    done.status = std::move(status);
    UpdateResult result;
    result.sum_squares = 4;
    done.value = result;
    EXPECT_TRUE(desk_->On(event::OpDone{done}));
  }
  size_t Started(const std::string& what) {
    size_t count = 0;
    for (const std::string& line : outbox_.Take()) {
      if (line.rfind("Start", 0) == 0 && line.find(what) != std::string::npos) ++count;
    }
    return count;
  }

  SmallJob job_;
  FakeQueries queries_;
  FakeOutbox outbox_;
  std::optional<ShardFacts> facts_;
  std::optional<StepDesk> desk_;
};

class SealedStepDeskTest : public StepDeskTest {
 protected:
  SealedStepDeskTest() : StepDeskTest(Mode::kSealed) {}
};

class AdaptingStepDeskTest : public StepDeskTest {
 protected:
  AdaptingStepDeskTest() : StepDeskTest(Mode::kSealed, OptimizerName::kLamb) {}
};

TEST_F(AdaptingStepDeskTest, UpdatesWaitForTrustRatios) {
  CompleteAll();
  const size_t chunks = facts_->owned.size();
  for (size_t op = 1; op <= chunks; ++op) Done(op);
  outbox_.raised.clear();
  Decide(1);
  desk_->StartReadyUpdates();
  EXPECT_EQ(Started("Update"), 0u);
  const auto measurable = outbox_.TakeRaised<internal_event::Measurable>();
  ASSERT_EQ(measurable.size(), chunks) << "each is asked for once";
  EXPECT_EQ(measurable[0].request.step.update, 1u);
  queries_.trust.emplace();
  for (size_t i = 0; i < job_.spec.tensors.size(); ++i) queries_.trust->add_ratios(2);
  desk_->StartReadyUpdates();
  EXPECT_EQ(Started("trust 0x1p+1"), chunks);
}

TEST_F(AdaptingStepDeskTest, SkippedStepsAreNotMeasured) {
  CompleteAll();
  for (size_t op = 1; op <= facts_->owned.size(); ++op) Done(op);
  Decide(1, /*skip=*/true);
  EXPECT_TRUE(outbox_.TakeRaised<internal_event::Measurable>().empty());
  EXPECT_EQ(facts_->step, 2u);
}

TEST_F(StepDeskTest, UpdatesAChunkOnceItIsDecided) {
  Complete(0);
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "no decision yet";
  Decide(1);
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(StartsWith("Trace update-started"), StartsWith("Start 1 Update chunk")));
  EXPECT_FALSE(desk_->idle());
  Done(1);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("Trace updated")));
  EXPECT_EQ(outbox_.TakeRaised<internal_event::GradientUsed>().size(), 1u);
}

TEST_F(StepDeskTest, UpdatesWaitWhileTheBorderIsRead) {
  facts_->border_readers = 1;
  Decide(1);
  CompleteAll();
  EXPECT_EQ(Started("Update"), 0u);
  facts_->border_readers = 0;
  desk_->StartReadyUpdates();
  EXPECT_EQ(Started("Update"), facts_->owned.size());
}

TEST_F(StepDeskTest, UpdatesWaitForThePendingCut) {
  facts_->cuts.pending = CutBorder();
  Decide(1);
  CompleteAll();
  EXPECT_EQ(Started("Update"), 0u);
  facts_->cuts.pending.reset();
  desk_->StartReadyUpdates();
  EXPECT_EQ(Started("Update"), facts_->owned.size());
}

TEST_F(StepDeskTest, CompletesTheStepAfterItsLastChunk) {
  Decide(1);
  CompleteAll();
  const size_t chunks = facts_->owned.size();
  for (uint64_t op = 1; op < chunks; ++op) Done(op);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::StepComplete>(), IsEmpty());
  Done(chunks);
  std::vector<std::string> order;
  for (const InternalEvent& event : outbox_.raised) {
    if (std::holds_alternative<internal_event::StepComplete>(event)) order.push_back("complete");
    if (std::holds_alternative<internal_event::BorderReached>(event)) order.push_back("border");
    if (std::holds_alternative<internal_event::StepOpened>(event)) order.push_back("opened");
    if (std::holds_alternative<internal_event::StepReady>(event)) order.push_back("ready");
  }
  EXPECT_THAT(order, ElementsAre("complete", "border", "opened", "ready"));
  ASSERT_EQ(desk_->last_stats().size(), 1u);
  EXPECT_EQ(desk_->last_stats()[0].step(), 1u);
  EXPECT_EQ(desk_->last_stats()[0].sum_squares_size(), static_cast<int>(chunks));
  EXPECT_THAT(outbox_.Take().back(), HasSubstr("stats"));
}

TEST_F(StepDeskTest, KeepsTheStatisticsOfTwoSteps) {
  for (uint64_t step = 1; step <= 3; ++step) {
    Decide(step);
    CompleteAll();
    const size_t chunks = facts_->owned.size();
    for (uint64_t op = 1; op <= chunks; ++op) Done((step - 1) * chunks + op);
  }
  ASSERT_EQ(desk_->last_stats().size(), StepDesk::kStatsKept);
  EXPECT_EQ(desk_->last_stats().front().step(), 2u);
}

TEST_F(StepDeskTest, IgnoresDecisionsOfStepsThatAreOver) {
  facts_->step = 2;
  Decide(1);
  EXPECT_FALSE(desk_->has_decision());
  Decide(2);
  EXPECT_TRUE(desk_->has_decision());
}

TEST_F(StepDeskTest, FailsWhenUsesCountDifferentTokens) {
  Complete(0, /*nonfinite=*/false, /*tokens=*/std::nullopt);
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].reason, HasSubstr("different numbers of tokens"));
}

TEST_F(StepDeskTest, ReportsAnUpdateThatFails) {
  Decide(1);
  Complete(0);
  Done(1, absl::InternalError("the disk is gone"));
  const auto failed = outbox_.TakeRaised<internal_event::OpFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].what, HasSubstr("update of chunk 0 at step 1"));
}

TEST_F(StepDeskTest, LogsADecisionOnce) {
  facts_->log = ShardFacts::LogState::kWritten;
  v1::Decision decision;
  decision.set_step(1);
  desk_->OnMessage(decision);
  desk_->OnMessage(decision);
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Log 1 decision")));
}

TEST_F(SealedStepDeskTest, ReducesFirstAndUpdatesWhenDecided) {
  CompleteAll();
  const size_t chunks = facts_->owned.size();
  EXPECT_EQ(Started("Reduce"), chunks);
  EXPECT_TRUE(desk_->IsReducing(facts_->owned[0].id));
  for (uint64_t op = 1; op <= chunks; ++op) Done(op);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("stats"))) << "sent after the last chunk";
  EXPECT_FALSE(desk_->IsReducing(facts_->owned[0].id));
  Decide(1);
  EXPECT_EQ(Started("Update"), chunks);
}

TEST_F(SealedStepDeskTest, RefusesADecisionWithAnotherLossScale) {
  CompleteAll();
  for (uint64_t op = 1; op <= facts_->owned.size(); ++op) Done(op);
  internal_event::Decided decided;
  decided.decision.set_step(1);
  decided.decision.set_loss_scale_log2(-3);
  desk_->On(decided);
  EXPECT_EQ(Started("Update"), 0u);
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_FALSE(failed.empty());
  EXPECT_THAT(failed[0].reason, HasSubstr("decision has a loss scale of 2^3, this shard has 2^0"));
}

TEST_F(SealedStepDeskTest, SkipsAStepWithoutUpdates) {
  const size_t chunks = facts_->owned.size();
  Complete(0, /*nonfinite=*/true);
  for (size_t i = 1; i < chunks; ++i) Complete(i);
  for (uint64_t op = 1; op < chunks; ++op) Done(op);
  ASSERT_FALSE(desk_->last_stats().empty());
  EXPECT_TRUE(desk_->last_stats().back().nonfinite());
  Decide(1, /*skip=*/true);
  EXPECT_EQ(facts_->step, 2u);
  EXPECT_EQ(facts_->version, 0u) << "the weights stay";
  EXPECT_EQ(outbox_.counters["skipped_steps"], 1u);
  EXPECT_EQ(outbox_.counters["updates"], 0u);
}

}  // namespace
}  // namespace eps
