#include "eps_server/core/steps/lease_table.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using End = LeaseTable::End;

constexpr LeaseTable::Limits kLimits{10'000, 1000, 60'000};
constexpr uint64_t kA = 0xa;
constexpr uint64_t kB = 0xb;
constexpr uint64_t kC = 0xc;

// Two parts; the job opens at time 0.
class LeaseTableTest : public testing::Test {
 protected:
  LeaseTableTest() { table_.Open(0); }
  // Lets both processes join for all parts and open their sessions: kA holds, kB waits.
  void HolderAndStandby() {
    table_.Join(kA, {}, 0);
    table_.Join(kB, {0, 1}, 0);
    table_.Beat(kA, 0, true, 0);
    table_.Beat(kB, 0, true, 0);
    table_.TakeChanges();
  }
  // Beats of both at each second up to and including `until_ms`.
  void BeatBoth(uint64_t from_ms, uint64_t until_ms) {
    for (uint64_t t = from_ms; t <= until_ms; t += 1000) {
      table_.Beat(kA, 0, true, t);
      table_.Beat(kB, 0, true, t);
    }
  }
  void ExpectHeldBy(uint64_t nonce, uint64_t generation) {
    for (const LeaseTable::Part& part : table_.parts()) {
      EXPECT_EQ(part.holder, nonce);
      EXPECT_EQ(part.generation, generation);
    }
  }

  LeaseTable table_{2, kLimits};
};

TEST_F(LeaseTableTest, AJoinerGetsAllOrNothing) {
  EXPECT_TRUE(table_.Join(kA, {1}, 5));
  EXPECT_THAT(table_.PartsOf(kA), ElementsAre(1));
  EXPECT_TRUE(table_.Join(kB, {0, 1}, 5));
  EXPECT_THAT(table_.PartsOf(kB), IsEmpty());
  EXPECT_THAT(table_.standbys(), ElementsAre(kB));
  EXPECT_TRUE(table_.Join(kC, {}, 5)) << "whatever is free";
  EXPECT_THAT(table_.PartsOf(kC), ElementsAre(0));
  const auto changes = table_.TakeChanges();
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_FALSE(changes[0].end.has_value());
  EXPECT_THAT(changes[1].parts, ElementsAre(0));
}

TEST_F(LeaseTableTest, ALiveLeaseIsNeverGrantedAgain) {
  HolderAndStandby();
  BeatBoth(1000, 100'000);
  ExpectHeldBy(kA, 1);
  EXPECT_THAT(table_.TakeChanges(), IsEmpty());
}

TEST_F(LeaseTableTest, JoinIsIdempotentByNonce) {
  table_.Join(kA, {0}, 0);
  table_.Join(kA, {0, 1}, 9000);
  EXPECT_THAT(table_.PartsOf(kA), ElementsAre(0)) << "it keeps what it wanted first";
  EXPECT_EQ(table_.parts()[0].generation, 1u);
  table_.Advance(18'999);
  EXPECT_TRUE(table_.Knows(kA)) << "a repeated Join renews the lease";
  table_.Advance(19'000);
  EXPECT_FALSE(table_.Knows(kA));
}

TEST_F(LeaseTableTest, ALeaseExpiresAfterTheLastBeat) {
  HolderAndStandby();
  table_.Beat(kB, 0, true, 9000);
  EXPECT_LE(table_.NextDeadline(), 10'000u);
  table_.Advance(9999);
  ExpectHeldBy(kA, 1);
  table_.Advance(10'000);
  ExpectHeldBy(kB, 2);
  const auto changes = table_.TakeChanges();
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].nonce, kA);
  EXPECT_EQ(changes[0].end, End::kExpired);
  EXPECT_THAT(changes[0].parts, ElementsAre(0, 1));
  EXPECT_EQ(changes[1].nonce, kB);
}

TEST_F(LeaseTableTest, ALateBeatRevivesNothing) {
  HolderAndStandby();
  table_.Beat(kB, 0, true, 9000);
  EXPECT_FALSE(table_.Beat(kA, 1, false, 10'000));
  ExpectHeldBy(kB, 2);
}

TEST_F(LeaseTableTest, LeaveEndsTheLeasesAtOnce) {
  HolderAndStandby();
  table_.Leave(kA, 10);
  ExpectHeldBy(kB, 2);
  table_.Leave(kB, 20);
  ExpectHeldBy(0, 2);
  EXPECT_EQ(table_.parts()[0].free_since_ms, 20u);
  EXPECT_EQ(table_.parts()[0].last_holder, kB);
  EXPECT_EQ(table_.parts()[0].ended, End::kLeft);
  table_.Leave(kB, 30);  // again: unknown
  EXPECT_EQ(table_.parts()[0].free_since_ms, 20u);
}

TEST_F(LeaseTableTest, AClosedSessionHasAGrace) {
  HolderAndStandby();
  table_.CloseSession(kA, 100);
  table_.Advance(1099);
  ExpectHeldBy(kA, 1);
  table_.Advance(1100);
  ExpectHeldBy(kB, 2);
  EXPECT_EQ(table_.TakeChanges()[0].end, End::kClosed);
}

TEST_F(LeaseTableTest, ASessionOpenedAgainKeepsTheLease) {
  HolderAndStandby();
  table_.CloseSession(kA, 100);
  table_.Beat(kA, 0, true, 1099);
  BeatBoth(2000, 20'000);
  ExpectHeldBy(kA, 1);
}

TEST_F(LeaseTableTest, AStuckHolderLosesItsLease) {
  HolderAndStandby();
  for (uint64_t t = 1000; t < 61'000; t += 1000) {
    table_.Beat(kA, 5, /*waits=*/false, t);
    table_.Beat(kB, 0, true, t);
  }
  ExpectHeldBy(kA, 1);
  table_.Advance(61'000);
  ExpectHeldBy(kB, 2);
  EXPECT_EQ(table_.TakeChanges()[0].end, End::kStuck);
}

TEST_F(LeaseTableTest, VisitsAndWaitsStopTheStuckClock) {
  HolderAndStandby();
  for (uint64_t t = 1000; t <= 200'000; t += 1000) {
    table_.Beat(kA, t / 50'000, /*waits=*/false, t);  // a stage each 50 s
    table_.Beat(kB, 0, false, t);                     // a standby cannot be stuck
  }
  for (uint64_t t = 201'000; t <= 400'000; t += 1000) {
    table_.Beat(kA, 4, /*waits=*/true, t);
    table_.Beat(kB, 0, false, t);
  }
  ExpectHeldBy(kA, 1);
}

TEST_F(LeaseTableTest, ZeroDisablesTheStuckClock) {
  LeaseTable table(1, {10'000, 1000, 0});
  table.Join(kA, {}, 0);
  for (uint64_t t = 0; t <= 10'000'000; t += 9000) ASSERT_TRUE(table.Beat(kA, 5, false, t));
}

TEST_F(LeaseTableTest, StandbysAreServedInOrder) {
  table_.Join(kA, {}, 0);
  table_.Join(kB, {0}, 0);
  table_.Join(kC, {0}, 0);
  table_.Beat(kC, 0, true, 1);
  table_.Beat(kB, 0, true, 2);
  table_.Leave(kA, 3);
  EXPECT_EQ(table_.parts()[0].holder, kB);
  EXPECT_EQ(table_.parts()[1].holder, 0u);
}

TEST_F(LeaseTableTest, AStandbyWithoutSessionIsPassedOver) {
  table_.Join(kA, {}, 0);
  table_.Join(kB, {0, 1}, 0);
  table_.Leave(kA, 3);
  ExpectHeldBy(0, 1);
  table_.Beat(kB, 0, true, 4);
  ExpectHeldBy(kB, 2);
}

TEST_F(LeaseTableTest, AStandbyEndsToo) {
  HolderAndStandby();
  table_.Beat(kA, 0, true, 9000);
  table_.Advance(10'000);
  EXPECT_FALSE(table_.Knows(kB));
  const auto changes = table_.TakeChanges();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_THAT(changes[0].parts, IsEmpty());
}

TEST_F(LeaseTableTest, TooManyStandbysAreRefused) {
  table_.Join(kA, {}, 0);
  for (size_t i = 0; i < LeaseTable::kMaxStandbys; ++i) ASSERT_TRUE(table_.Join(100 + i, {}, 0));
  EXPECT_FALSE(table_.Join(kB, {}, 0));
  EXPECT_TRUE(table_.Join(100, {}, 0)) << "known";
}

TEST_F(LeaseTableTest, RestoredLeasesHaveTheirFullLength) {
  table_.Restore(0, 3, kA);
  table_.Restore(1, 2, 0);
  table_.Restore(0, 4, kB);  // a later session
  table_.Open(50'000);
  EXPECT_FALSE(table_.Knows(kA));
  EXPECT_THAT(table_.PartsOf(kB), ElementsAre(0));
  EXPECT_EQ(table_.parts()[1].free_since_ms, 50'000u);
  table_.Advance(59'999);
  EXPECT_TRUE(table_.Knows(kB));
  table_.Join(kC, {}, 59'999);
  EXPECT_EQ(table_.parts()[1].generation, 3u);
  table_.Advance(60'000);
  EXPECT_FALSE(table_.Knows(kB));
}

TEST_F(LeaseTableTest, TextsNameTheKey) {
  EXPECT_THAT(TextOf(End::kExpired, kLimits), HasSubstr("10 s (servers.worker_lease)"));
  EXPECT_THAT(TextOf(End::kClosed, kLimits), HasSubstr("1 s (servers.worker_close_grace)"));
  EXPECT_THAT(TextOf(End::kStuck, kLimits), HasSubstr("60 s (servers.worker_stuck_timeout)"));
}

// Eight parts, dealt to as many workers as somebody wants.
class LeaseDealTest : public testing::Test {
 protected:
  LeaseDealTest() { table_.Open(0); }
  void Come(uint64_t nonce) {
    table_.Join(nonce, {}, now_);
    table_.Beat(nonce, 0, true, now_);
  }
  // Lets kB hold the first half of the parts, and kC the second one.
  void DealToTwo() {
    table_.SetTarget(2, now_);
    Come(kA);
    Come(kB);
    Yield(kA);
    Come(kC);
  }
  // Returns who shall yield since the last call, in order of nonces.
  std::vector<uint64_t> Yielding() {
    std::vector<uint64_t> nonces;
    for (const LeaseTable::Change& change : table_.TakeChanges()) {
      if (change.yields) nonces.push_back(change.nonce);
    }
    return nonces;
  }
  void Yield(uint64_t nonce) {
    ASSERT_TRUE(table_.Yields(nonce));
    table_.Leave(nonce, now_);
  }

  uint64_t now_ = 0;
  LeaseTable table_{8, kLimits};
};

TEST_F(LeaseDealTest, AnotherWorkerGetsItsShare) {
  Come(kA);
  table_.SetTarget(2, now_);
  EXPECT_THAT(Yielding(), IsEmpty()) << "nobody else is there";
  Come(kB);
  EXPECT_THAT(table_.PartsOf(kA), SizeIs(8)) << "until its border";
  EXPECT_THAT(Yielding(), ElementsAre(kA));
  Yield(kA);
  EXPECT_THAT(table_.PartsOf(kB), IsEmpty()) << "the other one comes back";
  Come(kC);
  EXPECT_THAT(table_.PartsOf(kB), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(table_.PartsOf(kC), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(table_.parts()[0].generation, 2u);
  EXPECT_THAT(Yielding(), IsEmpty());
}

TEST_F(LeaseDealTest, FewerWorkersGetLargerShares) {
  DealToTwo();
  table_.TakeChanges();
  table_.SetTarget(1, now_);
  EXPECT_THAT(Yielding(), ElementsAre(kB, kC));
  Yield(kC);
  Come(kA);
  EXPECT_THAT(table_.PartsOf(kA), IsEmpty()) << "one has not reached its border";
  Come(kC);
  Yield(kB);
  EXPECT_THAT(table_.PartsOf(kA), SizeIs(8));
  EXPECT_THAT(table_.standbys(), ElementsAre(kC));
  EXPECT_THAT(Yielding(), IsEmpty());
}

TEST_F(LeaseDealTest, SharesDifferByOnePart) {
  table_.SetTarget(3, now_);
  for (const uint64_t nonce : {kA, kB}) Come(nonce);
  Yield(kA);
  for (const uint64_t nonce : {uint64_t{0xd}, kC}) Come(nonce);
  for (const uint64_t nonce : {kB, uint64_t{0xd}}) Yield(nonce);
  for (const uint64_t nonce : {kA, kB}) Come(nonce);
  EXPECT_THAT(table_.PartsOf(kC), ElementsAre(0, 1));
  EXPECT_THAT(table_.PartsOf(kA), ElementsAre(2, 3, 4));
  EXPECT_THAT(table_.PartsOf(kB), ElementsAre(5, 6, 7));
}

// It cannot reach its border without the parts of the others.
TEST_F(LeaseDealTest, AHolderInMidStepGetsHelp) {
  DealToTwo();
  table_.SetTarget(1, now_);
  table_.TakeChanges();
  Yield(kC);
  Come(kA);
  EXPECT_EQ(table_.NextDeadline(), LeaseTable::kYieldMs);
  table_.Advance(LeaseTable::kYieldMs);
  EXPECT_THAT(table_.PartsOf(kA), ElementsAre(4, 5, 6, 7));
  EXPECT_TRUE(table_.Yields(kA) && table_.Yields(kB));
  table_.Leave(kA, LeaseTable::kYieldMs);
  table_.Leave(kB, LeaseTable::kYieldMs);
  now_ = LeaseTable::kYieldMs;
  Come(kC);
  EXPECT_THAT(table_.PartsOf(kC), SizeIs(8));
}

// The last worker is in the middle of a step that the lost one had begun.
TEST_F(LeaseDealTest, ASurvivorInMidStepStartsAgain) {
  DealToTwo();
  table_.Leave(kC, now_);
  table_.TakeChanges();
  table_.Advance(LeaseTable::kDealMs - 1);
  EXPECT_THAT(table_.PartsOf(kB), SizeIs(4));
  table_.Advance(LeaseTable::kDealMs);
  const auto changes = table_.TakeChanges();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].nonce, kB);
  EXPECT_EQ(changes[0].end, End::kDealt);
  now_ = LeaseTable::kDealMs;
  Come(kA);
  EXPECT_THAT(table_.PartsOf(kA), SizeIs(8));
}

TEST_F(LeaseDealTest, AStandbyReplacesALostWorker) {
  DealToTwo();
  Come(kA);
  table_.TakeChanges();
  table_.Leave(kC, now_);
  EXPECT_THAT(table_.PartsOf(kA), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(Yielding(), IsEmpty()) << "the shares are equal";
}

TEST_F(LeaseDealTest, UnequalSharesAreDealtAgain) {
  table_.SetTarget(3, now_);
  Come(kA);
  Come(kB);
  Yield(kA);
  Come(kC);
  Come(0xd);
  for (const uint64_t nonce : {kB, kC}) Yield(nonce);
  for (const uint64_t nonce : {kA, kB}) Come(nonce);
  Come(0xe);
  table_.TakeChanges();
  table_.CloseSession(0xd, now_);
  table_.CloseSession(kA, now_);
  now_ = kLimits.close_grace_ms;
  table_.Advance(now_);
  EXPECT_THAT(table_.PartsOf(0xe), SizeIs(5)) << "at once";
  EXPECT_THAT(Yielding(), ElementsAre(kB, 0xe));
}

TEST_F(LeaseDealTest, SurvivorsTakeOverWhatIsLost) {
  DealToTwo();
  table_.TakeChanges();
  table_.CloseSession(kC, now_);
  now_ = kLimits.close_grace_ms;
  table_.Advance(now_);
  EXPECT_THAT(Yielding(), ElementsAre(kB));
  Yield(kB);
  Come(kA);
  EXPECT_THAT(table_.PartsOf(kA), SizeIs(8));
}

// One of those that gave back their leases never comes back.
TEST_F(LeaseDealTest, ADealWaitsForALimitedTime) {
  table_.SetTarget(2, now_);
  Come(kA);
  Come(kB);
  Yield(kA);
  EXPECT_EQ(table_.NextDeadline(), LeaseTable::kDealMs);
  table_.Advance(LeaseTable::kDealMs - 1);
  EXPECT_THAT(table_.PartsOf(kB), IsEmpty());
  table_.Advance(LeaseTable::kDealMs);
  EXPECT_THAT(table_.PartsOf(kB), SizeIs(8));
}

TEST_F(LeaseDealTest, WithoutATargetNothingMoves) {
  table_.SetTarget(2, now_);
  Come(kA);
  Come(kB);
  table_.SetTarget(0, now_);
  EXPECT_FALSE(table_.Yields(kA));
  table_.TakeChanges();
  table_.Leave(kA, now_);
  EXPECT_THAT(table_.PartsOf(kB), SizeIs(8)) << "as a standby";
}

TEST_F(LeaseDealTest, MoreWorkersThanPartsWait) {
  table_.SetTarget(100, now_);
  for (uint64_t nonce = 1; nonce <= 9; ++nonce) Come(nonce);
  Yield(1);
  Come(1);
  EXPECT_THAT(table_.PartsOf(2), ElementsAre(0));
  EXPECT_THAT(table_.standbys(), ElementsAre(1));
}

}  // namespace
}  // namespace eps
