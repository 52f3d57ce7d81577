// WorkerDesk alone: the test plays workers, timers and the other desks.

#include "eps_server/core/steps/worker_desk.h"

#include <string>
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
  explicit WorkerDeskTest(ShardId shard = ShardId(0)) : job_(JobOf(shard)) {}
  static SmallJob JobOf(ShardId shard) {
    SmallJob job(2);
    job.shard = shard;
    return job;
  }
  v1::Gate GateAt(uint64_t step) {
    v1::Gate gate;
    gate.set_revision(5);
    gate.set_step(step);
    gate.add_holders("driver");
    return gate;
  }
  // As the router does.
  void Move(const v1::Gate& gate) {
    facts_.hold.gate = gate;
    desk_.On(internal_event::GateMoved{gate});
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

  const SmallJob job_;
  ShardFacts facts_ = job_.MakeFacts();
  FakeQueries queries_;
  FakeOutbox outbox_;
  WorkerDesk desk_{&facts_, &queries_, &outbox_};
};

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

TEST_F(WorkerDeskTest, AStepMayAwaitTheDriver) {
  event::BeginStep e = Begin(1);
  e.request.set_awaits_driver(true);
  desk_.On(e);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  v1::StatusReply status;
  WaitPage page(10, &status);
  desk_.Waits(&page);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_EQ(status.waits(0).waits_for(), "the program that drives the job (eps train)");
  // A server that drains is no driver.
  v1::Gate gate;
  gate.set_revision(1);
  Move(gate);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("gate_set")));
  // The driver holds the border, and then lets the workers pass it.
  gate.set_driver_spoke(true);
  gate.set_step(0);
  Move(gate);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("gate_set")));
  gate.set_step(1);
  Move(gate);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("gate_set"), HasSubstr("BeginStepReply")));
}

TEST_F(WorkerDeskTest, OtherStepsAwaitNoDriver) {
  desk_.On(Begin(1));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("BeginStepReply")));
}

TEST_F(WorkerDeskTest, TheGateHoldsTheNextStep) {
  Move(GateAt(1));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("gate_set { revision: 5 first_border: 1 }")));
  facts_.step = 2;
  desk_.On(Begin(2));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  v1::StatusReply status;
  WaitPage page(10, &status);
  desk_.Waits(&page);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_EQ(status.waits(0).waits_for(), "the gate at step 1 (driver)");
  Move(v1::Gate());
  EXPECT_THAT(outbox_.Take(), testing::Contains(HasSubstr("BeginStepReply")));
}

TEST_F(WorkerDeskTest, AnswersTheGateOnceOpen) {
  for (const v1::JobState state : {v1::JOB_STATE_RECOVERING, v1::JOB_STATE_IMPORTING}) {
    facts_.state = state;
    facts_.step = 0;
    Move(GateAt(1));
    EXPECT_THAT(outbox_.Take(), IsEmpty()) << "it does not know its border";
    facts_.state = v1::JOB_STATE_RUNNING;
    facts_.step = 4;
    desk_.On(internal_event::StepReady());
    EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("revision: 5 first_border: 4 }")));
    desk_.On(internal_event::StepReady());
    EXPECT_THAT(outbox_.Take(), IsEmpty()) << "once";
  }
}

TEST_F(WorkerDeskTest, AGateMayBeAtZero) {
  Move(GateAt(0));
  outbox_.Take();
  desk_.On(Begin(1));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
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
  facts_.hold.gate = GateAt(1);  // a report must not wait for the border that it completes
  event::BeginStep report = Begin(2);
  report.request.set_report_only(true);
  desk_.On(report);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("BeginStepReply {term: 1 step: 1}")));
  EXPECT_EQ(outbox_.TakeRaised<internal_event::LossesReported>().size(), 1u);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::PartsBegun>(), IsEmpty());
}

TEST_F(WorkerDeskTest, AProbeLearnsTheOpenStep) {
  facts_.step = 5;
  facts_.hold.gate = GateAt(4);
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

TEST_F(WorkerDeskTest, ADuplicateBeginChangesNothing) {
  facts_.step = 4;
  for (const uint64_t step : {0, 1, 3}) {
    desk_.On(Begin(step));
    EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Close 7")));
  }
  EXPECT_THAT(outbox_.raised, IsEmpty());
}

TEST_F(WorkerDeskTest, RefusesAnOlderGeneration) {
  facts_.parts[0] = {3, 3};
  for (const char* kind : {"begin", "probe", "report", "no lease"}) {
    event::BeginStep e = Begin(1);
    if (std::string(kind) != "no lease") e.request.add_generations(2);
    e.request.set_probe(std::string(kind) == "probe");
    e.request.set_report_only(std::string(kind) == "report");
    desk_.On(e);
    EXPECT_THAT(outbox_.Take(),
                ElementsAre(AllOf(HasSubstr("ABORTED"), HasSubstr("generation 3 has begun"),
                                  HasSubstr("another process holds the part; join again"))))
        << kind;
    EXPECT_THAT(outbox_.raised, IsEmpty()) << kind;
  }
}

TEST_F(WorkerDeskTest, AProbeRaisesTheFence) {
  facts_.parts[0] = {1, 2};
  event::BeginStep probe = Begin(0);
  probe.request.set_probe(true);
  probe.request.add_generations(2);
  desk_.On(probe);
  const auto seen = outbox_.TakeRaised<internal_event::PartsSeen>();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_THAT(seen[0].parts, ElementsAre(testing::Pair(PartId(0), 2u)));
}

TEST_F(WorkerDeskTest, AParkedBeginMayBeFenced) {
  facts_.parts[0] = {1, 2};
  event::BeginStep begin = Begin(2);
  begin.request.add_generations(1);
  desk_.On(begin);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  facts_.parts[0].seen = 2;
  facts_.step = 2;
  desk_.On(internal_event::StepReady());
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("generation 2 has begun")));
}

TEST_F(WorkerDeskTest, RefusesGenerationsThatCannotBe) {
  event::BeginStep begin = Begin(1);
  begin.request.add_generations(uint64_t{1} << 63);
  desk_.On(begin);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("was never granted")));
  begin.request.add_generations(1);
  desk_.On(begin);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("2 generations for 1 parts")));
  queries_.check_begin = absl::FailedPreconditionError("another machine");
  desk_.On(Begin(1));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("another machine")));
  EXPECT_THAT(outbox_.raised, IsEmpty());
}

// The same desk on a shard that is not the lead.
class OtherShardTest : public WorkerDeskTest {
 protected:
  OtherShardTest() : WorkerDeskTest(ShardId(1)) { facts_.parts[0] = {1, 1}; }
  event::BeginStep Probe(uint64_t generation) {
    event::BeginStep probe = Begin(0);
    probe.request.set_probe(true);
    probe.request.add_generations(generation);
    return probe;
  }
  // As the router does.
  void Grant(uint64_t generation) {
    facts_.parts[0].granted = generation;
    desk_.On(internal_event::LeasesChanged{{generation, 0}});
  }
};

TEST_F(OtherShardTest, AnUnknownGrantWaitsForTheLead) {
  desk_.On(Probe(3));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("SetTimer"))) << "for the length of a lease";
  EXPECT_THAT(outbox_.raised, IsEmpty()) << "it fences nobody";
  v1::StatusReply status;
  WaitPage page(10, &status);
  desk_.Waits(&page);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_THAT(status.waits(0).waits_for(), HasSubstr("to say that it has granted the part"));
  Grant(2);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  Grant(3);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("ClearTimer"), HasSubstr("BeginStepReply")));
  const auto seen = outbox_.TakeRaised<internal_event::PartsSeen>();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_THAT(seen[0].parts, ElementsAre(testing::Pair(PartId(0), 3u)));
}

TEST_F(OtherShardTest, AGrantThatNeverComesIsRefused) {
  desk_.On(Probe(uint64_t{1} << 63));
  outbox_.Take();
  desk_.On(event::Timer{TimerId(99)});
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  desk_.On(event::Timer{outbox_.last_timer});
  EXPECT_THAT(
      outbox_.Take(),
      ElementsAre(AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("generation 9223372036854775808"),
                        HasSubstr("the last one is generation 1; the lead at"),
                        HasSubstr("servers.worker_lease"))));
  EXPECT_THAT(outbox_.raised, IsEmpty());
  desk_.On(event::Timer{outbox_.last_timer});
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "once";
}

TEST_F(OtherShardTest, GrantWaitsEndWithTheirStream) {
  desk_.On(Probe(3));
  outbox_.Take();
  desk_.Closed(kStream);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("ClearTimer")));
  desk_.On(Probe(3));
  outbox_.Take();
  desk_.EndWork(absl::AbortedError("term 1 is over"));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("ClearTimer"), HasSubstr("term 1 is over")));
  Grant(3);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(OtherShardTest, AGrantWaitMayBeFenced) {
  desk_.On(Probe(2));
  outbox_.Take();
  facts_.parts[0].seen = 3;
  Grant(3);
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(HasSubstr("ClearTimer"), HasSubstr("generation 3 has begun")));
}

}  // namespace
}  // namespace eps
