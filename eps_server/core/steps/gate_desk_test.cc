// GateDesk alone: the test plays holders, shards and the other desks.

#include "eps_server/core/steps/gate_desk.h"

#include <optional>
#include <string>

#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

class GateDeskTest : public testing::Test {
 protected:
  static ShardFacts FactsOfALongJob(SmallJob* job) {
    job->spec.training.steps = 20;
    return job->MakeFacts();
  }
  GateDeskTest() {
    facts_.state = v1::JOB_STATE_RUNNING;
    queries_.next_decision = 6;
  }
  void Ask(uint64_t stream, const std::string& holder, std::optional<uint64_t> step) {
    desk_.On(event::Gate{StreamId(stream), holder, step});
  }
  void AskToLapse(uint64_t stream, const std::string& holder, uint64_t step) {
    desk_.On(event::Gate{StreamId(stream), holder, step, /*lapses=*/true});
  }
  void Stand(JobStanding standing) { desk_.On(event::Standing{standing}); }
  void Expire(uint64_t now_ms) {
    facts_.now_ms = now_ms;
    desk_.On(event::Timer{outbox_.last_timer});
  }
  void Answer(uint32_t shard, uint64_t revision, uint64_t first_border) {
    v1::GateSet message;
    message.set_revision(revision);
    message.set_first_border(first_border);
    desk_.OnGateSet(ShardId(shard), message);
  }
  void Drain(uint32_t shard, bool drains = true) {
    desk_.On(internal_event::ShardDrains{ShardId(shard), drains});
  }
  void HaveCutEverywhere(uint64_t step) {
    facts_.cuts.everywhere = CutId{Step(step), Term(1)};
    desk_.On(internal_event::CutEverywhere{*facts_.cuts.everywhere});
  }
  std::string Gates() {
    v1::StatusReply status;
    desk_.FillStatus(&status);
    std::string text;
    for (const v1::HeldGate& gate : status.gates()) {
      text += gate.holder() + "@" + std::to_string(gate.step()) + " ";
    }
    return text;
  }
  size_t MayEnd() { return outbox_.TakeRaised<internal_event::MayEnd>().size(); }

  SmallJob job_{3};
  ShardFacts facts_ = FactsOfALongJob(&job_);
  FakeQueries queries_;
  FakeOutbox outbox_;
  GateDesk desk_{&facts_, &queries_, &outbox_};
};

TEST_F(GateDeskTest, AnswersWhenEveryShardHasTheGate) {
  Ask(7, "driver", 4);
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(AllOf(StartsWith("ToShard 2"), HasSubstr("revision: 1 step: 4")),
                          AllOf(StartsWith("ToShard 1"), HasSubstr("holders: \"driver\""))));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::GateMoved>(), SizeIs(1)) << "its own shard";
  Answer(0, 1, 3);
  Answer(2, 1, 5);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  v1::StatusReply status;
  WaitPage page(10, &status);
  desk_.Waits(&page);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_EQ(status.waits(0).what(), "Gate of driver");
  EXPECT_THAT(status.waits(0).waits_for(), HasSubstr("shard 1 at "));
  Answer(1, 1, 4);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("GateReply {step: 5}")));
}

TEST_F(GateDeskTest, AnswersEveryCaller) {
  Ask(7, "driver", 4);
  Ask(8, "another", 3);
  Ask(9, "another", std::nullopt);
  desk_.Closed(StreamId(8));
  outbox_.Take();
  for (const uint32_t shard : {0, 1, 2}) Answer(shard, 1, 4);
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Reply on 7")));
  for (const uint32_t shard : {0, 1, 2}) Answer(shard, 3, 4);
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Reply on 9")));
}

TEST_F(GateDeskTest, RefusesHoldersThatCannotBe) {
  for (const std::string& holder : {std::string(), std::string(65, 'x'), std::string("drain/1")}) {
    Ask(7, holder, 4);
    EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("Gate: the holder has to be"))) << holder;
  }
  for (int holder = 0; holder < 64; ++holder) Ask(7, std::to_string(holder), 4);
  outbox_.Take();
  Ask(7, "one more", 4);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("64 holders have a gate; at most 64 may")));
  Ask(7, "63", std::nullopt);
  Ask(7, "one more", 4);
  EXPECT_THAT(outbox_.Take(), Not(Contains(StartsWith("Close"))));
}

TEST_F(GateDeskTest, RefusesAGateOfAFailedJob) {
  Ask(7, "driver", 4);
  outbox_.Take();
  desk_.EndWork(absl::AbortedError("term 1 is over"));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("term 1 is over")));
  facts_.state = v1::JOB_STATE_FAILED;
  Ask(8, "driver", 5);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("the job cannot go on")));
}

TEST_F(GateDeskTest, RepeatsTheGateToAShard) {
  desk_.On(internal_event::ShardReached{ShardId(2)});
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("ToShard 2"), HasSubstr("gate { }"))))
      << "it may have the gate of another process of the lead";
  desk_.OnImported(ShardId(1));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  Ask(7, "driver", 4);
  outbox_.Take();
  desk_.On(internal_event::ShardReached{ShardId(2)});
  desk_.OnImported(ShardId(1));
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("ToShard 2"), StartsWith("ToShard 1")));
}

TEST_F(GateDeskTest, ANewTermKeepsTheGates) {
  Ask(7, "driver", 4);
  Drain(1);
  GateDesk next(&facts_, &queries_, &outbox_);
  outbox_.TakeRaised<internal_event::GatesChanged>();
  next.Continue(desk_);
  const auto changed = outbox_.TakeRaised<internal_event::GatesChanged>();
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_THAT(changed[0].steps, ElementsAre(4, 6));
}

TEST_F(GateDeskTest, AGateLapsesWithItsHolder) {
  AskToLapse(7, "save/1", 4);
  EXPECT_THAT(outbox_.Take(), Contains("SetTimer 1 after 30000"));
  for (const uint32_t shard : {0, 1, 2}) Answer(shard, 1, 4);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("GateReply {step: 4 timeout_ms: 30000}")));
  facts_.now_ms = 20'000;
  AskToLapse(8, "save/1", 4);
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Reply on 8"))) << "every shard has it";
  Expire(30'000);
  EXPECT_EQ(Gates(), "save/1@4 ");
  EXPECT_THAT(outbox_.Take(), ElementsAre("SetTimer 2 after 20000"));
  Expire(50'000);
  EXPECT_EQ(Gates(), "");
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("ToShard 2"), HasSubstr("revision: 2")),
                                          StartsWith("ToShard 1")));
}

TEST_F(GateDeskTest, OtherGatesDoNotLapse) {
  Ask(7, "driver", 4);
  EXPECT_THAT(outbox_.Take(), Not(Contains(StartsWith("SetTimer"))));
  AskToLapse(8, "save/1", 3);
  Expire(30'000);
  EXPECT_EQ(Gates(), "driver@4 ");
}

TEST_F(GateDeskTest, AGateLapsesInANewTerm) {
  AskToLapse(7, "save/1", 4);
  outbox_.Take();
  facts_.now_ms = 10'000;
  desk_.EndWork(absl::AbortedError("term 1 is over"));
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Close 7"), "ClearTimer 1"));
  GateDesk next(&facts_, &queries_, &outbox_);
  next.Continue(desk_);
  EXPECT_THAT(outbox_.Take(), ElementsAre("SetTimer 2 after 20000"));
  facts_.now_ms = 30'000;
  next.On(event::Timer{outbox_.last_timer});
  v1::StatusReply status;
  next.FillStatus(&status);
  EXPECT_EQ(status.gates_size(), 0);
}

TEST_F(GateDeskTest, AServerDrainsAtAnUndecidedBorder) {
  Drain(2);
  EXPECT_EQ(Gates(), "drain/2@6 ");
  queries_.next_decision = 9;
  Drain(1);
  EXPECT_EQ(Gates(), "drain/1@6 drain/2@6 ") << "the job does not pass step 6";
  Drain(2, false);
  EXPECT_EQ(Gates(), "drain/1@6 ");
  Drain(1, false);
  EXPECT_EQ(Gates(), "");
  queries_.next_decision = 21;
  Drain(1);
  EXPECT_EQ(Gates(), "drain/1@20 ") << "the last step";
}

TEST_F(GateDeskTest, AServerEndsAtACommonCut) {
  Drain(1);
  HaveCutEverywhere(5);
  EXPECT_THAT(outbox_.Take(), Not(Contains(HasSubstr("drained"))));
  HaveCutEverywhere(6);
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("ToShard 1"), HasSubstr("drained"))));
  HaveCutEverywhere(6);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  Drain(1);  // its link broke
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("drained")));
}

TEST_F(GateDeskTest, AServerStaysForAnotherHolder) {
  Ask(7, "driver", 6);
  Drain(1);
  outbox_.Take();
  HaveCutEverywhere(6);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  Ask(8, "driver", 12);
  EXPECT_THAT(outbox_.Take(), Contains(HasSubstr("drained")));
}

TEST_F(GateDeskTest, TheLeadEndsAfterTheOthers) {
  Drain(0);
  Drain(1);
  HaveCutEverywhere(6);
  EXPECT_EQ(MayEnd(), 0u);
  desk_.On(event::LinkDown{ShardId(1)});
  EXPECT_EQ(MayEnd(), 1u);
}

TEST_F(GateDeskTest, ADriversGateEndsWithItsLease) {
  Ask(7, "driver", 4);
  Stand(JobStanding::kDriven);
  EXPECT_EQ(Gates(), "driver@4 ");
  outbox_.Take();
  Stand(JobStanding::kUndriven);
  EXPECT_EQ(Gates(), "");
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("ToShard 2"), HasSubstr("revision: 2")),
                                          StartsWith("ToShard 1")));
  Stand(JobStanding::kUndriven);
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "no news";
}

TEST_F(GateDeskTest, RefusesADriverWhoseLeaseIsOver) {
  for (const JobStanding standing : {JobStanding::kUndriven, JobStanding::kHeld}) {
    Stand(standing);
    outbox_.Take();
    desk_.On(event::Gate{StreamId(7), "driver", 4, false, DriverLease{1, 3}});
    EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("lease (generation 3) is over")));
  }
  Stand(JobStanding::kDriven);
  desk_.On(event::Gate{StreamId(7), "driver", 4, false, DriverLease{1, 5}});
  EXPECT_EQ(Gates(), "driver@4 ");
}

// The rule G22.
TEST_F(GateDeskTest, AnOlderRequestChangesNothing) {
  const auto ask = [](GateDesk* desk, uint64_t number, std::optional<uint64_t> step) {
    desk->On(event::Gate{StreamId(7), "driver", step, false, {}, false, number});
  };
  ask(&desk_, 4, 9);
  ask(&desk_, 6, std::nullopt);
  outbox_.Take();
  ask(&desk_, 5, 8);
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(HasSubstr("request 5 of driver arrived after request 6")));
  EXPECT_EQ(Gates(), "");
  GateDesk next(&facts_, &queries_, &outbox_);
  next.Continue(desk_);
  ask(&next, 5, 8);
  EXPECT_THAT(outbox_.Take(), Contains(HasSubstr("changes nothing"))) << "also in a new term";
  ask(&desk_, 6, std::nullopt);
  EXPECT_THAT(outbox_.Take(), Not(Contains(HasSubstr("changes nothing")))) << "it is repeated";
  Ask(8, "save/1", 7);
  EXPECT_EQ(Gates(), "save/1@7 ") << "each holder counts for itself";
}

TEST_F(GateDeskTest, AnUndecidedBorderKeepsItsGate) {
  desk_.On(event::Gate{StreamId(7), "driver", 4, false, {}, /*outlives_driver=*/true});
  Stand(JobStanding::kDriven);
  Stand(JobStanding::kUndriven);
  EXPECT_EQ(Gates(), "driver@4 ");
  Stand(JobStanding::kDriven);
  Ask(8, "driver", 5);
  Stand(JobStanding::kUndriven);
  EXPECT_EQ(Gates(), "");
}

TEST_F(GateDeskTest, TheBoardHoldsAPausedJob) {
  Ask(7, "driver", 4);
  Stand(JobStanding::kDriven);
  Stand(JobStanding::kHeld);
  EXPECT_EQ(Gates(), "board@4 driver@4 ") << "where its driver has left it";
  Stand(JobStanding::kUndriven);
  EXPECT_EQ(Gates(), "") << "it was resumed";
  Stand(JobStanding::kHeld);
  EXPECT_EQ(Gates(), "board@6 ") << "at a border that gets a cut";
  Stand(JobStanding::kDriven);
  EXPECT_EQ(Gates(), "");
}

TEST_F(GateDeskTest, ARestartedJobStaysPaused) {
  facts_.state = v1::JOB_STATE_RECOVERING;
  Stand(JobStanding::kHeld);
  EXPECT_EQ(Gates(), "board@0 ");
  GateDesk next(&facts_, &queries_, &outbox_);
  next.Continue(desk_);
  next.On(event::Gate{StreamId(7), "driver", 4, false, DriverLease{1, 3}});
  EXPECT_THAT(outbox_.Take(), Contains(HasSubstr("is over"))) << "also in a new term";
  next.On(event::Standing{JobStanding::kDriven});
  v1::StatusReply status;
  next.FillStatus(&status);
  EXPECT_EQ(status.gates_size(), 0);
}

TEST_F(GateDeskTest, APausedJobKeepsNoServer) {
  Ask(7, "driver", 4);
  Stand(JobStanding::kDriven);
  Stand(JobStanding::kHeld);
  HaveCutEverywhere(4);
  outbox_.Take();
  Drain(1);
  EXPECT_EQ(Gates(), "board@4 drain/1@4 driver@4 ") << "it reaches no other border";
  EXPECT_THAT(outbox_.Take(), Contains(AllOf(StartsWith("ToShard 1"), HasSubstr("drained"))));
}

TEST_F(GateDeskTest, NobodyElseHoldsForTheBoard) {
  Ask(7, "board", 4);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("are not \"board\"")));
}

TEST_F(GateDeskTest, AClosedJobGetsNoGate) {
  facts_.state = v1::JOB_STATE_RECOVERING;
  Drain(1);
  EXPECT_EQ(Gates(), "");
}

}  // namespace
}  // namespace eps
