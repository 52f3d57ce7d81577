// WorkerDesk alone: the test plays workers, timers and the other desks.

#include "eps_server/core/steps/worker_desk.h"

#include <string>
#include <variant>
#include <vector>

#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr StreamId kStream(7);

class WorkerDeskTest : public testing::Test {
 protected:
  WorkerDeskTest() {
    outbox_.on_raise = [this](const InternalEvent& event) {
      if (const auto* gate = std::get_if<internal_event::GateMoved>(&event)) {
        facts_.gate_step = gate->step;
      }
    };
  }
  event::Join Join(const std::string& profile = "cpu", uint32_t rank = 0, uint32_t count = 1) {
    event::Join e{kStream, {}};
    e.request.set_worker_nonce(10 + rank);
    e.request.set_compute_profile(profile);
    e.request.set_worker_rank(rank);
    e.request.set_worker_count(count);
    return e;
  }
  event::BeginStep Begin(uint64_t step) {
    event::BeginStep e{kStream, {}};
    e.request.set_job_id(facts_.job.id.value());
    e.request.set_term(facts_.term.value());
    e.request.set_step(step);
    e.request.add_parts(0);
    e.request.set_worker_nonce(10);
    return e;
  }

  SmallJob job_;
  ShardFacts facts_ = job_.MakeFacts();
  FakeQueries queries_;
  FakeOutbox outbox_;
  WorkerDesk desk_{&facts_, &queries_, &outbox_};
};

TEST_F(WorkerDeskTest, SharesPartsByRank) {
  desk_.On(Join("cpu", 1, 2));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("parts: 1 servers")));
  EXPECT_EQ(desk_.joined_workers(), 1u);
  desk_.On(Join("cpu", 0, 3));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("raise training.parts")));
}

TEST_F(WorkerDeskTest, RefusesAnotherComputeProfile) {
  desk_.On(Join("cpu"));
  EXPECT_EQ(desk_.compute_profile(), "cpu");
  EXPECT_EQ(outbox_.TakeRaised<internal_event::SessionChanged>().size(), 1u);
  outbox_.Take();
  desk_.On(Join("another"));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("training.determinism=relaxed")));
}

TEST_F(WorkerDeskTest, JoinsWaitForTheFirstStep) {
  facts_.state = v1::JOB_STATE_IMPORTING;
  desk_.On(Join());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  facts_.state = v1::JOB_STATE_RUNNING;
  desk_.On(internal_event::StepOpened());
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Reply on 7 eps.v1.JoinReply")));
}

TEST_F(WorkerDeskTest, ANewTermKeepsTheJoinsThatWait) {
  facts_.state = v1::JOB_STATE_RECOVERING;
  desk_.On(Join());
  WorkerDesk next(&facts_, &queries_, &outbox_);
  next.Continue(&desk_);
  facts_.state = v1::JOB_STATE_RUNNING;
  next.On(internal_event::StepOpened());
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Reply on 7 eps.v1.JoinReply")));
}

TEST_F(WorkerDeskTest, AnswersTheOpenStepAndParksTheNext) {
  queries_.counted.emplace_back().set_chunk(3);
  desk_.On(Begin(1));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("have { chunk: 3 }")));
  const auto begun = outbox_.TakeRaised<internal_event::PartsBegun>();
  ASSERT_EQ(begun.size(), 1u);
  EXPECT_EQ(begun[0].nonce, 10u);
  desk_.On(Begin(2));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  facts_.step = 2;
  desk_.On(internal_event::StepReady());
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("BeginStepReply")));
}

TEST_F(WorkerDeskTest, ReportsLossesBeforeItAnswers) {
  bool answered_before = true;
  outbox_.on_raise = [&](const InternalEvent& event) {
    if (std::holds_alternative<internal_event::LossesReported>(event)) {
      answered_before = !outbox_.Take().empty();
    }
  };
  desk_.On(Begin(1));
  EXPECT_FALSE(answered_before);
  EXPECT_EQ(outbox_.TakeRaised<internal_event::EvaluationsReported>().size(), 1u);
}

TEST_F(WorkerDeskTest, TheGateHoldsTheNextStep) {
  desk_.On(event::Gate{StreamId(9), 1});
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Reply on 9 eps.v1.GateReply")));
  EXPECT_EQ(outbox_.TakeRaised<internal_event::SessionChanged>().size(), 1u);
  facts_.step = 2;
  desk_.On(Begin(2));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  v1::StatusReply status;
  WaitPage page(10, &status);
  desk_.Waits(&page);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_EQ(status.waits(0).waits_for(), "the gate at step 1");
  desk_.On(event::Gate{StreamId(9), 0});
  EXPECT_THAT(outbox_.Take(), testing::Contains(HasSubstr("BeginStepReply")));
}

TEST_F(WorkerDeskTest, RefusesStepsFarFromTheOpenOne) {
  facts_.step = 3;
  desk_.On(Begin(1));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("step 1 is complete")));
  facts_.step = 1;
  desk_.On(Begin(3));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("step 3 while step 1 is open")));
}

TEST_F(WorkerDeskTest, AReportBeginsNothing) {
  facts_.gate_step = 1;  // a report must not wait for the border that it completes
  event::BeginStep report = Begin(2);
  report.request.set_report_only(true);
  desk_.On(report);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("BeginStepReply {term: 1 step: 1}")));
  EXPECT_EQ(outbox_.TakeRaised<internal_event::LossesReported>().size(), 1u);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::PartsBegun>(), IsEmpty());
}

TEST_F(WorkerDeskTest, AProbeLearnsTheOpenStep) {
  facts_.step = 5;
  facts_.gate_step = 4;
  queries_.counted.emplace_back().set_chunk(3);
  event::BeginStep probe = Begin(0);
  probe.request.set_probe(true);
  desk_.On(probe);
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(HasSubstr("step: 5"), HasSubstr("chunk: 3"))));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::PartsBegun>(), IsEmpty());
}

TEST_F(WorkerDeskTest, AProbeWaitsForTheWeights) {
  facts_.state = v1::JOB_STATE_IMPORTING;
  facts_.step = 0;
  event::BeginStep probe = Begin(0);
  probe.request.set_probe(true);
  desk_.On(probe);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  facts_.state = v1::JOB_STATE_RUNNING;
  facts_.step = 1;
  desk_.On(internal_event::StepReady());
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("step: 1")));
}

TEST_F(WorkerDeskTest, ADuplicateOfAnEarlierBeginChangesNothing) {
  facts_.step = 4;
  for (const uint64_t step : {0, 1, 3}) {
    desk_.On(Begin(step));
    EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Close 7")));
  }
  EXPECT_THAT(outbox_.raised, IsEmpty());
}

TEST_F(WorkerDeskTest, ALostPartEndsAnEagerJob) {
  desk_.On(internal_event::PartPushes{PartId(1), kStream});
  desk_.Closed(kStream);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("SetTimer 1 after 60000")));
  desk_.On(event::Timer{TimerId(1)});
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].reason, StartsWith("part 1 was lost in step 1"));
}

TEST_F(WorkerDeskTest, APartThatReturnsStopsItsTimer) {
  desk_.On(internal_event::PartPushes{PartId(1), kStream});
  desk_.Closed(kStream);
  outbox_.Take();
  desk_.On(internal_event::PartSeen{PartId(1)});
  EXPECT_THAT(outbox_.Take(), ElementsAre("ClearTimer 1"));
  desk_.On(event::Timer{TimerId(1)});
  EXPECT_THAT(outbox_.TakeRaised<internal_event::JobFailed>(), IsEmpty());
}

TEST_F(WorkerDeskTest, ASealedJobWaitsForAReplacement) {
  job_.spec.training.mode = Mode::kSealed;
  ShardFacts facts = job_.MakeFacts();
  WorkerDesk desk(&facts, &queries_, &outbox_);
  desk.On(internal_event::PartPushes{PartId(1), kStream});
  desk.Closed(kStream);
  desk.On(event::Timer{TimerId(1)});
  EXPECT_THAT(outbox_.raised, IsEmpty());
}

}  // namespace
}  // namespace eps
