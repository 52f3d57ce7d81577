// LeaseDesk alone: the test plays workers, time and the other desks.

#include "eps_server/core/steps/lease_desk.h"

#include <string>
#include <variant>
#include <vector>

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
using testing::StartsWith;

constexpr uint64_t kA = 0xa;
constexpr uint64_t kB = 0xb;

class LeaseDeskTest : public testing::Test {
 protected:
  void SetUp() override {
    facts_.now_ms = 1000;
    desk_.On(internal_event::StepOpened());
  }
  // The session of a worker is the stream of its nonce; its other requests have higher streams.
  event::Join Join(uint64_t nonce, const std::string& profile = "cpu") {
    event::Join e{StreamId(100 + nonce), {}};
    e.request.set_worker_nonce(nonce);
    e.request.set_compute_profile(profile);
    return e;
  }
  event::Beat Beat(uint64_t nonce) {
    event::Beat e{StreamId(nonce), {}};
    e.beat.set_job_id(facts_.job.id.value());
    e.beat.set_worker_nonce(nonce);
    e.beat.set_term(facts_.term.value());
    e.beat.set_waits(true);
    return e;
  }
  // Advances the time and expires the timer.
  void Expire(uint64_t now_ms) {
    facts_.now_ms = now_ms;
    desk_.On(event::Timer{outbox_.last_timer});
  }
  // Lets kA take all parts, and kB wait, both with a session.
  void HolderAndStandby() {
    desk_.On(Join(kA));
    desk_.On(Beat(kA));
    desk_.On(Join(kB));
    desk_.On(Beat(kB));
    outbox_.Take();
    outbox_.raised.clear();
  }
  v1::StatusReply Waits() {
    v1::StatusReply status;
    WaitPage page(facts_.now_ms, &status);
    desk_.Waits(&page);
    return status;
  }

  SmallJob job_;
  ShardFacts facts_ = job_.MakeFacts();
  FakeQueries queries_;
  FakeOutbox outbox_;
  LeaseDesk desk_{&facts_, &queries_, &outbox_};
};

TEST_F(LeaseDeskTest, SharesPartsByRank) {
  event::Join join = Join(kA);
  join.request.set_worker_rank(1);
  join.request.set_worker_count(2);
  desk_.On(join);
  EXPECT_THAT(outbox_.Take(), Contains(HasSubstr("leases { part: 1 generation: 1 }")));
  EXPECT_EQ(desk_.processes(), 1u);
  join.request.set_worker_count(3);
  desk_.On(join);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("raise training.parts")));
}

TEST_F(LeaseDeskTest, JoinsWaitForTheFirstStep) {
  facts_.state = v1::JOB_STATE_IMPORTING;
  desk_.On(Join(kA));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  LeaseDesk next(&facts_, &queries_, &outbox_);
  next.Continue(&desk_);
  facts_.state = v1::JOB_STATE_RUNNING;
  next.On(internal_event::StepOpened());
  EXPECT_THAT(outbox_.Take(), Contains(StartsWith("Reply on 110 eps.v1.JoinReply")));
}

TEST_F(LeaseDeskTest, AJoinerWithoutPartsIsAStandby) {
  desk_.On(Join(kA));
  outbox_.Take();
  desk_.On(Join(kB));
  const auto lines = outbox_.Take();
  EXPECT_THAT(lines, ElementsAre(AllOf(StartsWith("Reply on 111"), HasSubstr("lease_ms: 10000"),
                                       testing::Not(HasSubstr("leases")))));
  EXPECT_EQ(desk_.processes(), 2u);
}

TEST_F(LeaseDeskTest, LeasesAreLoggedBeforeTheAnswer) {
  bool answered_before = true;
  outbox_.on_raise = [&](const InternalEvent& event) {
    if (const auto* changed = std::get_if<internal_event::LeasesChanged>(&event)) {
      answered_before = !outbox_.Take().empty();
      EXPECT_THAT(changed->granted, ElementsAre(1, 1));
    }
  };
  desk_.On(Join(kA));
  EXPECT_FALSE(answered_before);
}

TEST_F(LeaseDeskTest, ShardsHearOfGrantsBeforeWorkers) {
  desk_.On(Join(kA));
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(AllOf(StartsWith("ToShard 1"),
                                HasSubstr("granted { generations: 1 generations: 1 }")),
                          StartsWith("SetTimer"), StartsWith("Reply on 110 eps.v1.JoinReply")));
  desk_.On(internal_event::ShardReached{ShardId(2)});
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("ToShard 2"),
                                                HasSubstr("generations: 1 generations: 1"))));
  desk_.On(internal_event::ShardReached{ShardId(0)});
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "its own shard knows";
}

TEST_F(LeaseDeskTest, TheFirstBeatIsAnswered) {
  desk_.On(Join(kA));
  outbox_.Take();
  desk_.On(Beat(kA));
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(AllOf(StartsWith("Reply on 10 eps.v1.Notice"), HasSubstr("part: 1"))));
  desk_.On(Beat(kA));
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "nothing is new";
}

TEST_F(LeaseDeskTest, AStandbyTakesOverExpiredParts) {
  HolderAndStandby();
  facts_.now_ms = 9000;
  desk_.On(Beat(kB));
  Expire(11'000);
  const auto lines = outbox_.Take();
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("Close 10"), HasSubstr("ABORTED"),
                                    HasSubstr("no Beat for 10 s"), HasSubstr("join again"))));
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("Reply on 11 eps.v1.Notice"),
                                    HasSubstr("leases { generation: 2 }"))));
  facts_.now_ms = 11'001;
  desk_.On(Beat(kA));
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("Close 10"), HasSubstr("ABORTED"),
                                                HasSubstr("join again"))));
}

TEST_F(LeaseDeskTest, LeaveEndsTheStreamWithOk) {
  HolderAndStandby();
  event::Beat leave = Beat(kA);
  leave.beat.set_leave(true);
  desk_.On(leave);
  const auto lines = outbox_.Take();
  EXPECT_THAT(lines, Contains("Close 10 {OK}"));
  EXPECT_THAT(lines, Contains(HasSubstr("generation: 2")));
  desk_.On(leave);
  EXPECT_THAT(outbox_.Take(), ElementsAre("Close 10 {OK}")) << "the answer was lost";
}

TEST_F(LeaseDeskTest, AReopenedSessionKeepsTheLease) {
  HolderAndStandby();
  event::Beat beat = Beat(kA);
  beat.stream = StreamId(77);
  desk_.On(beat);
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("Close 10"), HasSubstr("CANCELLED")),
                                          StartsWith("Reply on 77")));
  desk_.Closed(StreamId(10));
  for (uint64_t now = 2000; now < 40'000; now += 2000) {
    facts_.now_ms = now;
    desk_.On(beat);
    desk_.On(Beat(kB));
  }
  EXPECT_THAT(outbox_.TakeRaised<internal_event::LeasesChanged>(), IsEmpty());
}

TEST_F(LeaseDeskTest, RefusesBeatsThatCannotBe) {
  HolderAndStandby();
  event::Beat other_job = Beat(kA);
  other_job.stream = StreamId(50);
  other_job.beat.set_job_id(1);
  desk_.On(other_job);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("NOT_FOUND")));
  event::Beat old = Beat(kA);
  old.stream = StreamId(50);
  old.beat.set_term(0);
  desk_.On(old);
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(HasSubstr("ABORTED"), HasSubstr("term 0"))));
  event::Beat other = Beat(kB);
  other.stream = StreamId(10);
  desk_.On(other);
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("worker b on the stream of worker a")));
}

TEST_F(LeaseDeskTest, EverybodyLearnsOfTheEnd) {
  HolderAndStandby();
  facts_.state = v1::JOB_STATE_DONE;
  facts_.step = 4;
  queries_.recorded_step = 2;
  desk_.On(internal_event::RecordsUpToDate());
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "another shard has the last step open";
  queries_.recorded_step = 3;
  desk_.On(internal_event::RecordsUpToDate());
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(AllOf(StartsWith("Reply on 10"), HasSubstr("done: true")),
                          AllOf(StartsWith("Reply on 11"), HasSubstr("done: true"))));
  desk_.On(internal_event::RecordsUpToDate());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(LeaseDeskTest, TheFirstBeginPinsTheProfile) {
  desk_.On(Join(kA, "cpu"));
  desk_.On(Join(kB, "another"));
  outbox_.Take();
  EXPECT_THAT(outbox_.TakeRaised<internal_event::SessionChanged>(), IsEmpty());
  desk_.On(internal_event::PartsBegun{{PartId(0)}, kB});
  v1::LoggedSession session;
  desk_.FillSession(&session);
  EXPECT_EQ(session.compute_profile(), "") << "a standby decides nothing";
  desk_.On(internal_event::PartsBegun{{PartId(0)}, kA});
  EXPECT_EQ(outbox_.TakeRaised<internal_event::SessionChanged>().size(), 1u);
  desk_.On(Join(0xc, "another"));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("training.determinism=relaxed")));
  v1::BeginStepRequest begin;
  begin.set_worker_nonce(kB);
  EXPECT_EQ(desk_.CheckBegin(begin).code(), absl::StatusCode::kFailedPrecondition);
  begin.set_probe(true);
  EXPECT_TRUE(desk_.CheckBegin(begin).ok());
  begin.set_probe(false);
  begin.set_worker_nonce(kA);
  EXPECT_TRUE(desk_.CheckBegin(begin).ok());
}

TEST_F(LeaseDeskTest, StatusNamesTheProfilesThatComputed) {
  const auto profiles = [this] {
    v1::StatusReply status;
    desk_.FillStatus(&status);
    return std::vector<std::string>(status.compute_profiles().begin(),
                                    status.compute_profiles().end());
  };
  job_.spec.training.determinism = Determinism::kRelaxed;
  desk_.On(Join(kA, "a cpu"));
  desk_.On(Join(kB, "a gpu"));
  EXPECT_THAT(profiles(), IsEmpty()) << "nobody has computed";
  desk_.On(internal_event::PartsBegun{{PartId(0)}, kB});
  EXPECT_THAT(profiles(), IsEmpty()) << "a standby computes nothing";
  desk_.On(internal_event::PartsBegun{{PartId(0), PartId(1)}, kA});
  EXPECT_THAT(profiles(), ElementsAre("a cpu"));
  facts_.now_ms = 9000;
  desk_.On(Beat(kB));
  Expire(11'000);  // kB takes over
  desk_.On(internal_event::PartsBegun{{PartId(0), PartId(1)}, kB});
  EXPECT_THAT(profiles(), ElementsAre("a cpu", "a gpu"));
  LeaseDesk next(&facts_, &queries_, &outbox_);
  next.Continue(&desk_);
  v1::StatusReply status;
  next.FillStatus(&status);
  EXPECT_THAT(status.compute_profiles(), ElementsAre("a cpu", "a gpu"));
}

TEST_F(LeaseDeskTest, ALostPartEndsAnEagerJob) {
  desk_.On(Join(kA));
  desk_.On(internal_event::PartsBegun{{PartId(0), PartId(1)}, kA});
  Expire(11'000);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::JobFailed>(), IsEmpty());
  Expire(70'999);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::JobFailed>(), IsEmpty());
  Expire(71'000);
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].reason, StartsWith("part 0 was lost in step 1"));
  EXPECT_EQ(failed[0].code, ExitCode::kUnavailable);
}

TEST_F(LeaseDeskTest, WhatIsRecordedIsNotLost) {
  desk_.On(Join(kA));
  desk_.On(internal_event::PartsBegun{{PartId(0), PartId(1)}, kA});
  queries_.recorded_step = 1;
  Expire(11'000);
  Expire(200'000);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::JobFailed>(), IsEmpty());
}

TEST_F(LeaseDeskTest, AWorkerThatLeftLostNothing) {
  desk_.On(Join(kA));
  desk_.On(internal_event::PartsBegun{{PartId(0), PartId(1)}, kA});
  event::Beat leave = Beat(kA);
  leave.beat.set_leave(true);
  desk_.On(leave);
  Expire(11'000);
  Expire(200'000);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::JobFailed>(), IsEmpty());
}

TEST_F(LeaseDeskTest, AnUnbegunPartEndsNoJob) {
  desk_.On(Join(kA));
  Expire(11'000);
  Expire(200'000);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::JobFailed>(), IsEmpty());
}

TEST_F(LeaseDeskTest, SealedAndDurableJobsWaitOn) {
  for (const bool durable : {true, false}) {
    SmallJob job;
    if (!durable) job.spec.training.mode = Mode::kSealed;
    job.caps.durable = durable;
    ShardFacts facts = job.MakeFacts();
    LeaseDesk desk(&facts, &queries_, &outbox_);
    desk.On(internal_event::StepOpened());
    desk.On(Join(kA));
    desk.On(internal_event::PartsBegun{{PartId(0), PartId(1)}, kA});
    for (const uint64_t now : {10'000, 100'000, 200'000}) {
      facts.now_ms = now;
      desk.On(event::Timer{outbox_.last_timer});
    }
    EXPECT_THAT(outbox_.TakeRaised<internal_event::JobFailed>(), IsEmpty());
    EXPECT_THAT(outbox_.TakeRaised<internal_event::RollBack>(), IsEmpty());
  }
}

TEST_F(LeaseDeskTest, ThePageNamesPartsWithoutWorker) {
  facts_.now_ms = 3000;
  v1::StatusReply status = Waits();
  ASSERT_EQ(status.waits_size(), 2);
  EXPECT_EQ(status.waits(1).what(), "part 1: no worker holds it");
  EXPECT_EQ(status.waits(1).seconds(), 2);
  desk_.On(Join(kA));
  desk_.On(Join(kB));
  status = Waits();
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_EQ(status.waits(0).what(), "worker b: standby");
  Expire(13'000);
  status = Waits();
  ASSERT_EQ(status.waits_size(), 2);
  EXPECT_THAT(status.waits(0).waits_for(), HasSubstr("worker a held it last: it sent no Beat"));
}

TEST_F(LeaseDeskTest, OneTimerServesAllLeases) {
  desk_.On(Join(kA));
  EXPECT_THAT(outbox_.Take(), Contains("SetTimer 1 after 10000"));
  for (uint64_t now = 2000; now < 10'000; now += 1000) {
    facts_.now_ms = now;
    desk_.On(Beat(kA));
  }
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Reply on 10")));
  Expire(11'000);
  EXPECT_THAT(outbox_.Take(), ElementsAre("SetTimer 2 after 8000"));
}

TEST_F(LeaseDeskTest, AReplayRestoresLeases) {
  desk_.On(Join(kA));
  v1::LoggedSession session;
  desk_.FillSession(&session);
  ASSERT_EQ(session.leases_size(), 2);
  LeaseDesk next(&facts_, &queries_, &outbox_);
  next.On(internal_event::StepOpened());
  next.On(internal_event::SessionReplayed{&session});
  facts_.now_ms = 50'000;
  next.On(internal_event::ReplayEnded());
  EXPECT_THAT(outbox_.Take(), Contains("SetTimer 2 after 10000"));
  next.On(Join(kB));
  EXPECT_THAT(outbox_.Take(), ElementsAre(testing::Not(HasSubstr("leases"))));
  facts_.now_ms = 60'000;
  next.On(event::Timer{outbox_.last_timer});
  next.On(Join(kB));
  EXPECT_THAT(outbox_.Take(), Contains(HasSubstr("leases { generation: 2 }")));
}

TEST_F(LeaseDeskTest, ATermEndsAllSessions) {
  HolderAndStandby();
  desk_.EndTerm(absl::AbortedError("term 1 is over"));
  EXPECT_THAT(outbox_.Take(), ElementsAre("Close 10 {ABORTED: term 1 is over}",
                                          "Close 11 {ABORTED: term 1 is over}", "ClearTimer 1"));
}

TEST_F(LeaseDeskTest, AHolderIsToldToYield) {
  HolderAndStandby();
  desk_.On(event::Standing{JobStanding::kDriven, /*workers=*/2});
  EXPECT_THAT(outbox_.Take(), Contains(AllOf(StartsWith("Reply on 10 "), HasSubstr("Notice"),
                                             HasSubstr("wish: WISH_REJOIN"))));
  event::Beat again = Beat(kA);
  again.stream = StreamId(50);
  desk_.On(again);
  EXPECT_THAT(outbox_.Take(),
              Contains(AllOf(StartsWith("Reply on 50 "), HasSubstr("wish: WISH_REJOIN"))))
      << "the first Notice may be lost";
}

TEST_F(LeaseDeskTest, AWorkerIsToldToEnd) {
  HolderAndStandby();
  desk_.On(event::DrainWorker{kB});
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(AllOf(StartsWith("Reply on 11 "), HasSubstr("wish: WISH_END"))));
  desk_.On(event::DrainWorker{0xc});
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "it has ended already";
}

TEST_F(LeaseDeskTest, StatusNamesTheWorkers) {
  event::Join join = Join(kA);
  join.request.set_host("node-1");
  desk_.On(join);
  desk_.On(Join(kB));
  v1::StatusReply status;
  desk_.FillStatus(&status);
  ASSERT_EQ(status.workers_size(), 2);
  EXPECT_EQ(status.workers(0).worker_nonce(), kA);
  EXPECT_EQ(status.workers(0).host(), "node-1");
  EXPECT_GT(status.workers(0).parts_size(), 0);
  EXPECT_EQ(status.workers(1).parts_size(), 0) << "a standby";
}

}  // namespace
}  // namespace eps
