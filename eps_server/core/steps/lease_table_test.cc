#include "eps_server/core/steps/lease_table.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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

}  // namespace
}  // namespace eps
