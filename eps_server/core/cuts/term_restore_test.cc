// How a TermDesk chooses a cut, restores it, and returns to a contribution log.

#include <memory>
#include <utility>
#include <variant>

#include "base/exit_code.h"
#include "base/ids.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/cuts/recovery.h"
#include "eps_server/core/testing/term_desk_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/cut.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// ---------------------------------------------------------------- restores

TEST_F(TermDeskTest, ChoosesTheYoungestCommonCut) {
  BeginTerm1();
  outbox_.Take();
  Promise({CutAfter(2), CutAfter(4), CutAfter(6)});
  outbox_.Take();
  OtherPromises({CutAfter(2), CutAfter(4)});
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre(Sends(1, "restore { cut { step: 4 term: 1 } term: 1 }"),
                          "Start 5 Restore 4/1 term 1"));
  OtherPromises({CutAfter(2)});  // repeated
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(TermDeskTest, NoCommonCutEndsTheJob) {
  BeginTerm1();
  Promise({CutAfter(4)});
  outbox_.Take();
  OtherPromises({CutAfter(2)});
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].code, ExitCode::kDataInvalid);
}

TEST_F(TermDeskTest, AMissingFolderHasItsExitCode) {
  BeginTerm1();
  Promise({});
  outbox_.raised.clear();
  OtherPromises({CutAfter(2)});
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].code, ExitCode::kNoInput);
}

TEST_F(TermDeskTest, RestoresACutAndReportsIt) {
  JoinTerm(4);
  Promise({CutAfter(2), CutAfter(4)});
  AskToRestore(CutAfter(2).id);
  v1::StepRecord record;
  record.set_step(2);
  outbox_.Take();
  outbox_.raised.clear();
  outbox_.on_raise = [](const InternalEvent& event) {
    const auto* restored = std::get_if<internal_event::StateRestored>(&event);
    if (restored == nullptr) return;
    ASSERT_THAT(*restored->records, SizeIs(1));
    EXPECT_EQ(restored->records->front().step(), 2u);
    EXPECT_EQ(restored->border.id, CutAfter(2).id);
    EXPECT_EQ(restored->border.version, Version(2));
  };
  Restore({record.SerializeAsString()});
  ASSERT_THAT(outbox_.raised, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<internal_event::StateRestored>(outbox_.raised[0]));
  const auto imported = outbox_.TakeRaised<internal_event::Imported>();
  ASSERT_THAT(imported, SizeIs(1));
  EXPECT_EQ(imported[0].border.step(), 2u);
}

TEST_F(TermDeskTest, RestoresOnlyOnce) {
  JoinTerm(4);
  Promise({CutAfter(2)});
  outbox_.Take();
  AskToRestore(CutAfter(2).id);
  AskToRestore(CutAfter(2).id);
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 5 Restore 2/1 term 4"));
  outbox_.raised.clear();
  Restore();
  facts_->imported = ToImported(CutAfter(2));
  facts_->state = v1::JOB_STATE_RUNNING;
  outbox_.TakeUntraced();
  AskToRestore(CutAfter(2).id);  // the lead did not hear of it
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_THAT(outbox_.TakeRaised<internal_event::Imported>(), SizeIs(2));
}

TEST_F(TermDeskTest, IgnoresARestoreOfAnotherTerm) {
  JoinTerm(4);
  Promise({CutAfter(2)});
  outbox_.Take();
  v1::ShardMessage m = facts_->NewMessage();
  m.set_term(3);
  *m.mutable_restore()->mutable_cut() = ToProto(CutAfter(2).id);
  Receive(m, /*from=*/0);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(TermDeskTest, AMissingCutEndsTheJob) {
  JoinTerm(4);
  Promise({CutAfter(2)});
  AskToRestore(CutAfter(6).id);
  outbox_.raised.clear();
  Restore();
  ASSERT_THAT(outbox_.raised, SizeIs(1));
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].reason,
            "shard 1 was told to restore step 6 (term 1), which it does not have");
}

TEST_F(TermDeskTest, ADamagedRecordEndsTheJob) {
  JoinTerm(4);
  Promise({CutAfter(2)});
  AskToRestore(CutAfter(2).id);
  outbox_.raised.clear();
  Restore({"\xff"});
  ASSERT_THAT(outbox_.raised, SizeIs(1));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::JobFailed>(), SizeIs(1));
}

TEST_F(TermDeskTest, AJobThatNeverBeganIsImported) {
  BeginTerm1();
  Promise({});
  outbox_.Take();
  OtherPromises({});
  EXPECT_THAT(outbox_.TakeUntraced(),
              ElementsAre(Sends(1, "restore { term: 1 }"), "Start 5 Restore nothing term 1"));
  outbox_.raised.clear();
  Restore();
  ASSERT_THAT(outbox_.raised, SizeIs(1));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::NothingToRestore>(), SizeIs(1));
}

// ---------------------------------------------------------------- cuts and logs

TEST_F(TermDeskTest, TheLastShardMakesACutCommon) {
  Run();
  v1::ShardMessage m = Message();
  *m.mutable_durable()->mutable_cut() = ToProto(CutAfter(4).id);
  Receive(m, /*from=*/1);
  m.set_term(0);  // of the term before
  Receive(m, /*from=*/0);
  EXPECT_THAT(outbox_.TakeRaised<internal_event::CutEverywhere>(), IsEmpty());
  m.set_term(1);
  Receive(m, /*from=*/0);
  Receive(m, /*from=*/1);
  const auto everywhere = outbox_.TakeRaised<internal_event::CutEverywhere>();
  ASSERT_THAT(everywhere, SizeIs(1));
  EXPECT_EQ(everywhere[0].cut, CutAfter(4).id);
}

TEST_F(TermDeskTest, AFoundLogKeepsItsTerm) {
  outbox_.on_raise = [this](const InternalEvent& event) {
    const auto* found = std::get_if<internal_event::LogFound>(&event);
    if (found == nullptr) return;
    facts_->log = ShardFacts::LogState::kReplayed;  // as the router does
    facts_->term = found->log.id.term;
    facts_->incarnation = found->log.id.incarnation;
  };
  auto found = std::make_shared<RecoveredState>();
  found->promised = Term(3);
  found->cuts = {CutAfter(2), CutAfter(4)};
  found->log = FoundLog{LogId{Term(3), 77}, CutAfter(2).id, CutAfter(4).id};
  desk_->On(event::Opened());
  Complete(std::shared_ptr<const RecoveredState>(std::move(found)));
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre("Start 1 Recover", "Start 2 Restore 4/1 term 3"));
  EXPECT_EQ(desk_->WaitsFor(), "its contribution log");
  outbox_.raised.clear();
  Restore();
  ASSERT_THAT(outbox_.raised, SizeIs(1));  // it reports no border: the log follows
  EXPECT_THAT(outbox_.TakeRaised<internal_event::StateRestored>(), SizeIs(1));
  desk_->On(internal_event::ReplayOpened{ToImported(CutAfter(4)), CutAfter(2).id});
  EXPECT_EQ(recovery_->watermark(), CutAfter(2).id);
  v1::LoggedSession session;
  session.add_incarnations(77);
  session.add_incarnations(kProcess);
  desk_->On(internal_event::SessionReplayed{&session});
  Register(kProcess, 3);
  EXPECT_EQ(TermsOver(), 0u);
  Register(kProcess + 1, 3);
  EXPECT_EQ(TermsOver(), 1u);
}

}  // namespace
}  // namespace eps
