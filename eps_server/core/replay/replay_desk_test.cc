// The contribution log, with the desk alone: the test answers for the backend, and applies entries.

#include "eps_server/core/replay/replay_desk.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "eps/v1/log.pb.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/cut.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

const CutId kOpened{Step(2), Term(1)};
const CutId kBase{Step(6), Term(1)};

// On the lead of a job with a contribution log.
class ReplayDeskTest : public testing::Test {
 protected:
  static SmallJob JobWithLog() {
    SmallJob job;
    job.caps.durable = true;
    job.caps.log_steps = 4;
    return job;
  }
  // An entry of `step`; in this test its decision's step is its name.
  static LogEntry Entry(uint64_t step) {
    v1::LogFact fact;
    fact.mutable_decision()->set_step(step);
    return LogEntry{Step(step), fact.SerializeAsString(), Bytes(), Bytes()};
  }

  void SetUp() override {
    facts_.incarnation = 9;
    facts_.log = ShardFacts::LogState::kWritten;
    facts_.cuts.base = kBase;
    queries_.is_idle = false;
  }
  absl::StatusOr<bool> Apply(const v1::LogFact& fact) {
    const uint64_t step = fact.decision().step();
    tried_.push_back(step);
    const auto answer = answers_.find(step);
    return answer == answers_.end() ? absl::StatusOr<bool>(true) : answer->second;
  }
  // Begins a replay; the first read is op 1.
  void BeginReplay() {
    facts_.log = ShardFacts::LogState::kReplayed;
    facts_.step = 7;
    internal_event::LogFound found;
    found.log = FoundLog{LogId{Term(1), 9}, kOpened, kBase};
    desk_.On(found);
    internal_event::StateRestored restored{};
    restored.border.id = kBase;
    restored.border.version = Version(5);
    desk_.On(restored);
  }
  // Ends the replay as the router does.
  void EndReplay() {
    facts_.log = ShardFacts::LogState::kWritten;
    desk_.On(internal_event::ReplayEnded());
  }
  bool Complete(uint64_t op, absl::Status status = absl::OkStatus()) {
    BackendDone done;
    done.op = OpId(op);
    done.status = std::move(status);
    return desk_.On(event::OpDone{done});
  }
  void Read(uint64_t op, std::vector<LogEntry> entries) {
    BackendDone done;
    done.op = OpId(op);
    done.value = std::make_shared<const std::vector<LogEntry>>(std::move(entries));
    EXPECT_TRUE(desk_.On(event::OpDone{done}));
  }
  // Expects that the replay failed since the last call, once; returns why.
  internal_event::OpFailed Failure() {
    const auto failed = outbox_.TakeRaised<internal_event::OpFailed>();
    EXPECT_EQ(failed.size(), 1u);
    return failed.empty() ? internal_event::OpFailed() : failed[0];
  }

  SmallJob job_ = JobWithLog();
  ShardFacts facts_ = job_.MakeFacts();
  FakeOutbox outbox_;
  FakeQueries queries_;
  std::vector<uint64_t> tried_;                       // steps of the entries, in order
  std::map<uint64_t, absl::StatusOr<bool>> answers_;  // of Apply, where it is not true
  ReplayDesk desk_{&facts_, &queries_, &outbox_,
                   [this](const v1::LogFact& fact, const LogEntry&) { return Apply(fact); }};
};

// ---------------------------------------------------------------- writing

TEST_F(ReplayDeskTest, ALogBeginsWithItsSession) {
  desk_.On(internal_event::BorderOpened());
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 1 StartLog log 1:9 opened 6/1 base 6/1",
                                          StartsWith("Start 2 Log step 1 {session {")));
  const auto written = outbox_.TakeRaised<internal_event::LogWritten>();
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(written[0].op, OpId(1));
  EXPECT_EQ(written[1].op, OpId(2));
}

TEST_F(ReplayDeskTest, AShardWithoutLogWritesNone) {
  SmallJob job;
  job.caps.durable = true;
  ShardFacts facts = job.MakeFacts();
  ReplayDesk desk(&facts, &queries_, &outbox_, nullptr);
  desk.On(internal_event::BorderOpened());
  desk.On(internal_event::SessionChanged());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_THAT(outbox_.raised, IsEmpty());
}

TEST_F(ReplayDeskTest, AWrittenEntryIsDurable) {
  v1::LogFact fact;
  fact.mutable_decision()->set_step(3);
  desk_.Log(3, fact, Bytes::CopyOf("01234"), Bytes::CopyOf("678"));
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(AllOf(StartsWith("Start 1 Log step 3 {decision { step: 3 }"),
                                HasSubstr(" [5:"), HasSubstr(" [3:"))));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::LogDurable>(), IsEmpty());
  EXPECT_FALSE(desk_.idle());
  EXPECT_TRUE(Complete(1));
  EXPECT_TRUE(desk_.idle());
  const auto durable = outbox_.TakeRaised<internal_event::LogDurable>();
  ASSERT_EQ(durable.size(), 1u);
  EXPECT_EQ(durable[0].op, OpId(1));
  EXPECT_FALSE(Complete(1));  // of nobody
}

TEST_F(ReplayDeskTest, AFailedWriteIsNotDurable) {
  desk_.Log(3, v1::LogFact(), Bytes(), Bytes());
  outbox_.raised.clear();
  Complete(1, absl::InternalError("bad disk"));
  ASSERT_EQ(outbox_.raised.size(), 1u);
  const auto failure = Failure();
  EXPECT_EQ(failure.what, "the contribution log");
  EXPECT_EQ(failure.status, absl::InternalError("bad disk"));
}

TEST_F(ReplayDeskTest, AChangedSessionIsLoggedAtOnce) {
  facts_.step = 4;
  desk_.On(internal_event::SessionChanged());
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Start 1 Log step 4 {session {")));
}

// ---------------------------------------------------------------- replaying

TEST_F(ReplayDeskTest, OpensTheReplayBeforeItReads) {
  std::vector<size_t> lines;  // emitted before ReplayOpened
  outbox_.on_raise = [&](const InternalEvent&) { lines.push_back(outbox_.TakeUntraced().size()); };
  BeginReplay();
  EXPECT_THAT(lines, ElementsAre(0));
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre("Start 1 ReadLog"));
  const auto opened = outbox_.TakeRaised<internal_event::ReplayOpened>();
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened[0].border.step(), 6u);
  EXPECT_EQ(opened[0].border.version(), 5u);
  EXPECT_EQ(opened[0].opened, kOpened);
}

TEST_F(ReplayDeskTest, AppliesEntriesInTheirOrder) {
  BeginReplay();
  Read(1, {Entry(7), Entry(9)});
  EXPECT_THAT(tried_, IsEmpty());
  desk_.Pump();
  Read(2, {Entry(8)});
  desk_.Pump();
  EXPECT_THAT(tried_, ElementsAre(7, 9, 8));
}

TEST_F(ReplayDeskTest, TriesAnEntryThatWaitsAgain) {
  BeginReplay();
  answers_[8] = false;
  Read(1, {Entry(7), Entry(8), Entry(9)});
  outbox_.Take();
  desk_.Pump();
  EXPECT_THAT(tried_, ElementsAre(7, 8));
  EXPECT_THAT(outbox_.Take(), IsEmpty());  // it reads no further
  desk_.Pump();
  EXPECT_THAT(tried_, ElementsAre(7, 8, 8));
  answers_.clear();
  desk_.Pump();
  EXPECT_THAT(tried_, ElementsAre(7, 8, 8, 8, 9));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::OpFailed>(), IsEmpty());
}

TEST_F(ReplayDeskTest, WaitingWhileIdleIsDataLoss) {
  BeginReplay();
  answers_[8] = false;
  queries_.is_idle = true;
  Read(1, {Entry(7), Entry(8), Entry(9)});
  desk_.Pump();
  EXPECT_THAT(tried_, ElementsAre(7, 8));
  const auto failure = Failure();
  EXPECT_EQ(failure.what, "the contribution log, an entry of step 8, while step 7 is open");
  EXPECT_TRUE(absl::IsDataLoss(failure.status));
}

TEST_F(ReplayDeskTest, AnEntryMustFitTheState) {
  BeginReplay();
  answers_[8] = absl::DataLossError("no such part");
  Read(1, {Entry(7), Entry(8), Entry(9)});
  desk_.Pump();
  EXPECT_THAT(tried_, ElementsAre(7, 8));
  EXPECT_EQ(Failure().status, absl::DataLossError("no such part"));
}

TEST_F(ReplayDeskTest, AnUnreadableEntryIsDataLoss) {
  BeginReplay();
  Read(1, {LogEntry{Step(7), "\xff", Bytes(), Bytes()}, Entry(8)});
  desk_.Pump();
  EXPECT_THAT(tried_, IsEmpty());
  EXPECT_EQ(Failure().status, absl::DataLossError("it cannot be read"));
}

TEST_F(ReplayDeskTest, EndsAfterTheLastRead) {
  BeginReplay();
  desk_.Pump();
  Read(1, {Entry(7)});
  outbox_.TakeRaised<internal_event::ReplayEnded>();
  outbox_.Take();
  desk_.Pump();
  desk_.Pump();
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 2 ReadLog"));  // one at a time
  EXPECT_FALSE(desk_.idle());
  EXPECT_THAT(outbox_.TakeRaised<internal_event::ReplayEnded>(), IsEmpty());
  Read(2, {});
  EXPECT_TRUE(desk_.idle());
  desk_.Pump();
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_EQ(outbox_.TakeRaised<internal_event::ReplayEnded>().size(), 1u);
}

TEST_F(ReplayDeskTest, DoesNotEndWhileAnEntryWaits) {
  BeginReplay();
  answers_[7] = false;
  Read(1, {Entry(7)});
  desk_.Pump();
  EXPECT_THAT(outbox_.TakeRaised<internal_event::ReplayEnded>(), IsEmpty());
}

TEST_F(ReplayDeskTest, WaitsUntilTheBaseIsRestored) {
  BeginReplay();
  Read(1, {Entry(7)});
  outbox_.Take();
  facts_.step = 0;
  desk_.Pump();
  EXPECT_THAT(tried_, IsEmpty());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(ReplayDeskTest, AFailedReadRaisesOpFailed) {
  BeginReplay();
  outbox_.raised.clear();
  Complete(1, absl::DataLossError("a bit is wrong"));
  ASSERT_EQ(outbox_.raised.size(), 1u);
  const auto failure = Failure();
  EXPECT_EQ(failure.what, "the contribution log");
  EXPECT_EQ(failure.status, absl::DataLossError("a bit is wrong"));
}

TEST_F(ReplayDeskTest, AFailedJobEndsItsReplay) {
  BeginReplay();
  Read(1, {Entry(7)});
  outbox_.raised.clear();
  facts_.state = v1::JOB_STATE_FAILED;
  desk_.Pump();
  EXPECT_THAT(tried_, IsEmpty());
  EXPECT_EQ(outbox_.TakeRaised<internal_event::ReplayEnded>().size(), 1u);
}

TEST_F(ReplayDeskTest, LogsTheSessionThatTheReplayOwes) {
  BeginReplay();
  outbox_.Take();
  desk_.On(internal_event::SessionChanged());
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EndReplay();
  EXPECT_THAT(outbox_.TakeUntraced(), ElementsAre(StartsWith("Start 2 Log step 7 {session {")));
  EXPECT_EQ(outbox_.counters["replays"], 1u);
}

TEST_F(ReplayDeskTest, OwesNoSessionUnlessItChanged) {
  BeginReplay();
  outbox_.Take();
  EndReplay();
  EXPECT_THAT(outbox_.TakeUntraced(), IsEmpty());
}

}  // namespace
}  // namespace eps
