// Promises, registrations and rollbacks, with the desk alone.

#include "eps_server/core/cuts/term_desk.h"

#include <utility>

#include "absl/status/status.h"
#include "base/ids.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "eps_server/core/testing/term_desk_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/state_backend.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// ---------------------------------------------------------------- promises

TEST_F(TermDeskTest, RegistersOnceItKnowsItsDisk) {
  Make(ShardId(1));
  desk_->On(event::Opened());
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 1 Recover"));
  EXPECT_EQ(desk_->WaitsFor(), "its own data directory");
  AskForTerm(4);  // it cannot promise what it may have promised already
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_EQ(TermsOver(), 0u);
  Find(/*promised=*/5, {CutAfter(2)});
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre(Sends(0, "register { incarnation: 11 promised_term: 5")));
  EXPECT_EQ(desk_->WaitsFor(), "the lead at shard-0");
}

TEST_F(TermDeskTest, TheLeadPromisesBeforeItAsks) {
  Open(0);
  Register(kProcess, 0);
  outbox_.Take();
  NextTerm(1);
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 2 Promise 1"));
  Complete();
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre(Sends(1, "new_term { term: 1 }"), "Start 3 Quiesce"));
}

TEST_F(TermDeskTest, AFailedPromiseAsksNobody) {
  BeginTerm1();
  outbox_.Take();
  outbox_.raised.clear();
  Complete(absl::monostate(), absl::InternalError("bad disk"));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  const auto failed = outbox_.TakeRaised<internal_event::OpFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].what, "shard 0, recovery in term 1");
  EXPECT_EQ(failed[0].status, absl::InternalError("bad disk"));
}

TEST_F(TermDeskTest, ListsCutsOnceTheDiskIsQuiet) {
  JoinTerm(4);
  Complete();
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre("Start 3 Quiesce"));
  Complete();
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre("Start 4 Recover"));
  Find(4, {CutAfter(2), CutAfter(4)});
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre(Sends(0,
                                "term: 4 promised { term: 4 cuts { step: 2 term: 1 } "
                                "cuts { step: 4 term: 1 } opened: true }")));
}

TEST_F(TermDeskTest, NoPromisedTermIsUsedAgain) {
  Open(/*promised=*/5);
  Register(kProcess, /*promised=*/7);
  NextTerm(8);
  Register(kProcess + 1, 7);  // while nobody has promised term 8
  NextTerm(9);
  Make(ShardId(0));  // the lead dies after it has promised, and before it asks
  Open(/*promised=*/9);
  Register(kProcess + 1, 7);
  NextTerm(10);
}

TEST_F(TermDeskTest, IgnoresALateRequestForATerm) {
  JoinTerm(4);
  Promise({});
  outbox_.Take();
  AskForTerm(3);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_EQ(TermsOver(), 0u);
  AskForTerm(5);
  AskForTerm(6);
  NextTerm(5);
}

TEST_F(TermDeskTest, TellsTheLeadOfAnEarlierPromise) {
  Make(ShardId(1));
  Open(/*promised=*/5);
  outbox_.Take();
  AskForTerm(5);
  EXPECT_THAT(outbox_.Take(), ElementsAre(Sends(0, "promised_term: 5")));
  EXPECT_EQ(TermsOver(), 0u);
  AskForTerm(6);
  EXPECT_EQ(TermsOver(), 1u);
}

TEST_F(TermDeskTest, RepeatsItsPromiseOnceItIsDurable) {
  JoinTerm(4);
  AskForTerm(4);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  Promise({CutAfter(2)});
  outbox_.Take();
  AskForTerm(4);
  EXPECT_THAT(outbox_.Take(), ElementsAre(Sends(0, "promised { term: 4 cuts { step: 2 ")));
  EXPECT_EQ(TermsOver(), 0u);
}

// ---------------------------------------------------------------- shards that register

TEST_F(TermDeskTest, WaitsForEveryShardAndItsPromise) {
  Open(0);
  EXPECT_EQ(TermsOver(), 0u);
  EXPECT_EQ(desk_->WaitsFor(), "shard 1 at shard-1: Register");
  Register(kProcess, 0);
  NextTerm(1);
  Promise({});
  EXPECT_EQ(desk_->WaitsFor(), "shard 1 at shard-1: its promise of term 1");
}

TEST_F(TermDeskTest, RepeatsToAShardWhatItMissed) {
  BeginTerm1();
  outbox_.Take();
  Register(kProcess, 0);  // the lead's promise is not durable yet
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_THAT(outbox_.TakeRaised<internal_event::ShardReached>(), IsEmpty());
  Promise({CutAfter(2)});
  outbox_.Take();
  Register(kProcess, 1);
  EXPECT_THAT(outbox_.Take(), ElementsAre(Sends(1, "new_term { term: 1 }")));
  const auto reached = outbox_.TakeRaised<internal_event::ShardReached>();
  ASSERT_THAT(reached, SizeIs(1));
  EXPECT_EQ(reached[0].shard, ShardId(1));
  OtherPromises({CutAfter(2)});
  outbox_.Take();
  Register(kProcess, 1);
  EXPECT_THAT(outbox_.Take(), ElementsAre(Sends(1, "restore { cut { step: 2 term: 1 } term: 1 }")));
}

TEST_F(TermDeskTest, RepeatsTheWatermarkInAnOpenJob) {
  Run();
  Register(kProcess, 1);
  EXPECT_THAT(outbox_.Take(), ElementsAre(Sends(1, "restore {"),
                                          Sends(1, "watermark { cut { step: 2 term: 1 } }")));
  EXPECT_EQ(TermsOver(), 0u);
}

TEST_F(TermDeskTest, ALostMemoryStartsANewTerm) {
  Run();
  Register(kProcess + 1, 1);
  NextTerm(2);
}

TEST_F(TermDeskTest, ALaterPromiseStartsANewTerm) {
  Run();
  v1::ShardMessage m = Message();
  m.set_term(5);  // the shard is in the term that it promised; the lead is not
  m.mutable_register_()->set_incarnation(kProcess);
  m.mutable_register_()->set_promised_term(5);
  Receive(m);
  NextTerm(6);
}

TEST_F(TermDeskTest, ALostTermStartsANewOne) {
  Run();
  v1::ShardMessage m = Message();
  m.set_term(0);
  m.mutable_register_()->set_incarnation(kProcess);
  m.mutable_register_()->set_promised_term(1);  // not later than the lead's term
  Receive(m);
  NextTerm(2);
}

TEST_F(TermDeskTest, TheLowestCutLimitCounts) {
  job_.caps.log_steps = 9;
  Make(ShardId(0));
  Open(0);
  Register(kProcess, 0, /*most_cut_steps=*/4);
  const auto limits = outbox_.TakeRaised<internal_event::CutLimit>();
  ASSERT_THAT(limits, SizeIs(2));
  EXPECT_EQ(limits[0].steps, 9u);
  EXPECT_EQ(limits[1].steps, 4u);
}

// ---------------------------------------------------------------- rollbacks

TEST_F(TermDeskTest, ATermEndsOnlyOnce) {
  Run();
  bool again = false;
  outbox_.on_raise = [&](const InternalEvent&) {
    if (!std::exchange(again, true)) desk_->On(internal_event::RollBack());
  };
  desk_->On(internal_event::RollBack());
  desk_->On(internal_event::RollBack());
  EXPECT_TRUE(again);
  EXPECT_EQ(outbox_.counters["rollbacks"], 1u);
  outbox_.on_raise = nullptr;
  NextTerm(2);
}

TEST_F(TermDeskTest, OtherShardsAskForARollback) {
  JoinTerm(4);
  desk_->On(internal_event::RollBack());
  EXPECT_THAT(outbox_.Take(), ElementsAre(Sends(0, "term: 4 roll_back {")));
  EXPECT_TRUE(desk_->rolls_back());
  EXPECT_EQ(TermsOver(), 0u);
}

TEST_F(TermDeskTest, OnlyARunningJobRollsBack) {
  BeginTerm1();
  AskToRollBack(1);  // it recovers already
  EXPECT_EQ(TermsOver(), 0u);
  facts_->state = v1::JOB_STATE_RUNNING;
  AskToRollBack(0);  // of the term before
  EXPECT_EQ(TermsOver(), 0u);
  AskToRollBack(1);
  NextTerm(2);
}

// ---------------------------------------------------------------- messages and calls of others

TEST_F(TermDeskTest, OnlyTheLeadDecidesOnTerms) {
  JoinTerm(4);
  facts_->state = v1::JOB_STATE_RUNNING;
  Register(kProcess + 1, 9);
  AskToRollBack(4);
  OtherPromises({});
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_THAT(outbox_.raised, IsEmpty());
}

TEST_F(TermDeskTest, LeavesTheMessagesOfOtherDesks) {
  v1::ShardMessage m = Message();
  m.mutable_stats();
  EXPECT_FALSE(desk_->OnMessage(event::FromShard{ShardId(1), m}));
  BackendDone done;
  done.op = OpId(99);
  EXPECT_FALSE(desk_->On(event::OpDone{done}));
}

TEST_F(TermDeskTest, LooksForNothingUnlessDurable) {
  SmallJob job;
  const ShardFacts facts = job.MakeFacts();
  TermDesk desk(&facts, nullptr, &outbox_);
  desk.On(event::Opened());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_TRUE(desk.idle());
}

}  // namespace
}  // namespace eps
