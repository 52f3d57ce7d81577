#include "tests/model/lease_model.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/model/search/model_result.h"

namespace eps {
namespace {

constexpr char kNoWayOn[] = "stuck";

// The faults of a configuration.
struct Faults {
  int crashes = 0;
  int expiries = 0;
  int leaves = 0;
  int shard_crashes = 0;
};

constexpr Faults kNone = {0, 0, 0, 0};
constexpr Faults kCrash = {1, 0, 0, 0};
constexpr Faults kExpiry = {0, 1, 0, 0};
constexpr Faults kLeave = {0, 0, 1, 0};
constexpr Faults kShardCrash = {0, 0, 0, 1};

LeaseConfig Resend(int steps, int processes, const Faults& faults) {
  LeaseConfig config;
  config.steps = steps;
  config.processes = processes;
  config.crashes = faults.crashes;
  config.expiries = faults.expiries;
  config.leaves = faults.leaves;
  config.shard_crashes = faults.shard_crashes;
  return config;
}

LeaseConfig Rollback(LeaseConfig config) {
  config.rollback = true;
  return config;
}

LeaseConfig Sealed(LeaseConfig config) {
  config.sealed = true;
  return config;
}

LeaseConfig WithCredits(LeaseConfig config) {
  config.credits = true;
  return config;
}

LeaseConfig LateAnswers(LeaseConfig config) {
  config.late_answers = true;
  return config;
}

LeaseConfig Announced(LeaseConfig config) {
  config.announced = true;
  return config;
}

LeaseConfig WithBreak(LeaseConfig config) {
  config.breaks = 1;
  return Announced(config);
}

LeaseConfig WithStranger(LeaseConfig config) {
  config.strangers = 1;
  config.generations = 2;
  return Announced(config);
}

LeaseConfig TwoGenerations(LeaseConfig config) {
  config.generations = 2;
  return config;
}

LeaseConfig Without(LeaseRule rule, LeaseConfig config) {
  config.without.set(static_cast<size_t>(rule));
  return config;
}

// A configuration and the number of its states.
struct Expected {
  LeaseConfig config;
  uint64_t states;
};

void ExpectClean(const std::vector<Expected>& table) {
  for (const Expected& row : table) {
    const ModelResult result = CheckLeases(row.config);
    std::printf("%s", Describe(result).c_str());
    EXPECT_TRUE(result.violations.empty()) << Trace(result);
    EXPECT_EQ(result.stuck, 0u) << Trace(result);
    EXPECT_GT(result.finals, 0u);
    EXPECT_EQ(result.states, row.states);
  }
}

// Expects the search to find `kind` exactly `count` times in `config`, which removes a rule.
void ExpectFound(const LeaseConfig& config, const char* kind, uint64_t count) {
  const ModelResult result = CheckLeases(config);
  std::printf("%s", Describe(result).c_str());
  ASSERT_EQ(result.traces.count(kind), 1u) << Trace(result);
  EXPECT_FALSE(result.traces.at(kind).empty());
  EXPECT_EQ(kind == std::string(kNoWayOn) ? result.stuck : result.violations.at(kind), count);
}

TEST(LeaseModel, NoViolationWithResend) {
  ExpectClean({
      {Resend(2, 3, kExpiry), 48884},
      {Resend(2, 3, {1, 0, 1, 0}), 115360},
      {Resend(2, 2, kShardCrash), 239200},
  });
}

TEST(LeaseModel, NoViolationWithRollback) {
  ExpectClean({
      {Rollback(Resend(2, 3, kCrash)), 21152},
      {Rollback(Resend(2, 3, kExpiry)), 67886},
  });
}

// A sealed step updates nowhere before it is counted everywhere, so no old version is kept.
TEST(LeaseModel, NoViolationInSealedMode) {
  ExpectClean({
      {Sealed(Resend(2, 2, kCrash)), 10971},
      {Sealed(Resend(2, 3, kExpiry)), 56149},
      {Sealed(Resend(1, 2, kShardCrash)), 79262},
  });
}

TEST(LeaseModel, NoViolationWithLateAnswers) {
  ExpectClean({
      {LateAnswers(Resend(2, 2, kCrash)), 44897},
      {LateAnswers(Resend(1, 2, kExpiry)), 139589},
  });
}

TEST(LeaseModel, NoViolationWithCredits) {
  ExpectClean({
      {WithCredits(Resend(2, 2, kCrash)), 20288},
      {WithCredits(Resend(1, 2, kExpiry)), 22390},
  });
}

TEST(LeaseModel, NoViolationWithAnnouncedGrants) {
  ExpectClean({
      {Announced(Resend(2, 2, kCrash)), 12056},
      {Announced(Resend(2, 3, kExpiry)), 57698},
      {Announced(Rollback(Resend(2, 3, kCrash))), 28244},
      {WithBreak(Resend(1, 2, kExpiry)), 41736},
      {WithStranger(Resend(1, 2, kNone)), 234},
  });
}

TEST(LeaseModel, NoViolationInLongSearches) {
  if (std::getenv("EPS_LONG") == nullptr) return;
  ExpectClean({
      {Resend(2, 3, {1, 1, 0, 0}), 4759690},
      {Resend(1, 2, {0, 1, 0, 1}), 2330873},
      {Resend(1, 3, {1, 1, 0, 0}), 1314488},
      {Resend(2, 2, {1, 1, 0, 0}), 862448},
      {Resend(1, 2, {1, 0, 0, 1}), 321390},
      {Sealed(Resend(2, 2, kShardCrash)), 262942},
      {LateAnswers(Resend(2, 2, kExpiry)), 472275},
      {LateAnswers(Resend(1, 2, kShardCrash)), 323717},
      {LateAnswers(Rollback(Resend(2, 3, kCrash))), 99354},
      {WithCredits(Resend(2, 3, kExpiry)), 102582},
      {Announced(Resend(1, 2, {1, 0, 0, 1})), 449953},
      {Announced(LateAnswers(Resend(1, 2, kExpiry))), 165704},
  });
}

// ---- Each rule removed in turn.

TEST(LeaseModel, L1LeaseIsExclusive) {
  ExpectFound(Without(LeaseRule::kLease, TwoGenerations(Rollback(Resend(1, 2, kNone)))),
              kNeedlessRollback, 2472);
}

TEST(LeaseModel, L2FenceShutsOutPredecessor) {
  ExpectFound(Without(LeaseRule::kFence, Resend(2, 3, kExpiry)), kOthersResidual, 23568);
}

TEST(LeaseModel, L3FencesEndWithTerm) {
  ExpectFound(Without(LeaseRule::kFencesEndWithTerm, TwoGenerations(Resend(1, 2, {1, 0, 0, 1}))),
              kNoWayOn, 2744);
}

TEST(LeaseModel, L4ProbeBeforeBegin) {
  ExpectFound(Without(LeaseRule::kProbe, Resend(2, 3, kCrash)), kNoWayOn, 160);
}

TEST(LeaseModel, L5FlushBeforeNextStep) {
  const LeaseConfig config = Without(LeaseRule::kFlush, Resend(2, 3, kCrash));
  ExpectFound(config, kVersionGone, 64);
  ExpectFound(config, kNoWayOn, 9572);
}

TEST(LeaseModel, L6LossBeforeLastPush) {
  ExpectFound(Without(LeaseRule::kLossFirst, Resend(2, 3, kCrash)), kNoWayOn, 4048);
  ExpectFound(Without(LeaseRule::kLossFirst, Resend(2, 3, kLeave)), kNoWayOn, 2032);
}

TEST(LeaseModel, L7ReportBeginsNothing) {
  ExpectFound(Without(LeaseRule::kReportBeginsNothing, Resend(2, 3, kCrash)), kVersionGone, 64);
}

TEST(LeaseModel, L8HaveSetIsBinding) {
  ExpectFound(Without(LeaseRule::kHaveSet, Resend(2, 3, kCrash)), kOthersResidual, 456);
}

TEST(LeaseModel, L8ResidualIsFetched) {
  ExpectFound(Without(LeaseRule::kFetchedResidual, Resend(2, 3, kCrash)), kOthersResidual, 288);
}

TEST(LeaseModel, L9BeginNeverRollsBack) {
  ExpectFound(Without(LeaseRule::kNoLostWork, Rollback(Resend(2, 2, kNone))), kNeedlessRollback,
              838);
}

TEST(LeaseModel, L10LeaseOfDeadProcessEnds) {
  ExpectFound(Without(LeaseRule::kLeaseEnds, Resend(1, 2, kCrash)), kNoWayOn, 294);
}

TEST(LeaseModel, L11NewTermAnswersHeldRequests) {
  ExpectFound(Without(LeaseRule::kNewTermAnswers, Resend(1, 2, kShardCrash)), kNoWayOn, 444);
}

TEST(LeaseModel, L12CreditEnds) {
  ExpectFound(Without(LeaseRule::kCreditEnds, WithCredits(Resend(1, 2, kCrash))), kNoWayOn, 2464);
}

TEST(LeaseModel, L13GrantsAreAnnounced) {
  ExpectFound(Without(LeaseRule::kAnnounced, WithStranger(Resend(1, 2, kNone))), kNoWayOn, 1680);
}

TEST(LeaseModel, L13UnknownGrantWaits) {
  ExpectFound(Without(LeaseRule::kHoldsUnknown, Announced(Resend(1, 2, kNone))), kNeedlessRefusal,
              60);
}

TEST(LeaseModel, L13GrantsAreRepeated) {
  ExpectFound(Without(LeaseRule::kRepeatsGrants, WithBreak(Resend(1, 2, kNone))), kNoWayOn, 112);
}

// ---- Rules of contributions on which leases rely.

TEST(LeaseModel, OldVersionStays) {
  ExpectFound(Without(LeaseRule::kRetain, Resend(2, 2, kCrash)), kVersionGone, 112);
}

TEST(LeaseModel, FetchNamesVersion) {
  ExpectFound(
      Without(LeaseRule::kFetchNamesVersion, Without(LeaseRule::kRetain, Resend(2, 2, kCrash))),
      kOtherWeights, 36);
}

// The fence alone keeps a contribution from being counted twice, and so does its key.
TEST(LeaseModel, FenceOrKeyCountsOnce) {
  const LeaseConfig config = Resend(1, 2, kExpiry);
  for (const LeaseRule rule : {LeaseRule::kFence, LeaseRule::kFirstWins}) {
    EXPECT_EQ(CheckLeases(Without(rule, config)).violations.count(kCountedTwice), 0u);
  }
  ExpectFound(Without(LeaseRule::kFence, Without(LeaseRule::kFirstWins, config)), kCountedTwice,
              1704);
}

}  // namespace
}  // namespace eps
