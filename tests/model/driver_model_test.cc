#include "tests/model/driver_model.h"

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

using Edit = void (*)(DriverConfig* config);

DriverConfig With(DriverConfig config, Edit edit) {
  edit(&config);
  return config;
}

DriverConfig Without(DriverRule rule, DriverConfig config) {
  config.without.set(static_cast<size_t>(rule));
  return config;
}

DriverConfig Crash() {
  DriverConfig config;
  config.crashes = 1;
  return config;
}

// A driver is stopped, loses its lease, and goes on.
DriverConfig Expiry() {
  DriverConfig config;
  config.expiries = 1;
  return config;
}

constexpr Edit kNoLocks = [](DriverConfig* config) { config->no_locks = true; };
constexpr Edit kLeadCrash = [](DriverConfig* config) { config->lead_crashes = 1; };
constexpr Edit kShardCrash = [](DriverConfig* config) { config->shard_crashes = 1; };
constexpr Edit kRollBack = [](DriverConfig* config) { config->rollbacks = 1; };
constexpr Edit kThreeSteps = [](DriverConfig* config) { config->steps = 3; };
constexpr Edit kAll = [](DriverConfig* config) {
  config->drivers = 3;
  config->crashes = config->expiries = config->lead_crashes = config->rollbacks = 1;
};

// A configuration and the number of its states.
struct Expected {
  DriverConfig config;
  uint64_t states;
};

void ExpectClean(const std::vector<Expected>& table) {
  for (const Expected& row : table) {
    const ModelResult result = CheckDrivers(row.config);
    std::printf("%s", Describe(result).c_str());
    EXPECT_TRUE(result.violations.empty()) << Trace(result);
    EXPECT_EQ(result.stuck, 0u) << Trace(result);
    EXPECT_GT(result.finals, 0u);
    EXPECT_EQ(result.states, row.states);
  }
}

// Expects the search to find `kind` exactly `count` times in `config`, which removes a rule.
void ExpectFound(const DriverConfig& config, const char* kind, uint64_t count) {
  const ModelResult result = CheckDrivers(config);
  std::printf("%s", Describe(result).c_str());
  ASSERT_EQ(result.traces.count(kind), 1u) << Trace(result);
  EXPECT_FALSE(result.traces.at(kind).empty());
  EXPECT_EQ(kind == std::string(kNoWayOn) ? result.stuck : result.violations.at(kind), count);
}

TEST(DriverModel, NoViolationWithFaults) {
  ExpectClean({
      {Crash(), 723},
      {With(Crash(), kLeadCrash), 1446},
      {With(Crash(), kShardCrash), 2702},
      {With(DriverConfig(), kRollBack), 90},
      {Expiry(), 136},
      {With(Expiry(), kNoLocks), 2898},
      {With(With(Expiry(), kNoLocks), kShardCrash), 11828},
      {With(With(Expiry(), kNoLocks), kThreeSteps), 9975},
      {With(DriverConfig(), kAll), 32140},
  });
}

TEST(DriverModel, NoViolationInLongSearches) {
  if (std::getenv("EPS_LONG") == nullptr) return;
  ExpectClean({
      {With(With(DriverConfig(), kAll), kNoLocks), 1664404},
      {With(With(With(DriverConfig(), kAll), kNoLocks), kShardCrash), 5912460},
  });
}

// ---- Each rule removed in turn.

TEST(DriverModel, D1LeaseIsExclusive) {
  ExpectFound(Without(DriverRule::kLease, With(Expiry(), kNoLocks)), kNeedlessClaim, 62);
}

TEST(DriverModel, D1LeaseIsDurable) {
  const DriverConfig config = With(With(DriverConfig(), kLeadCrash), kNoLocks);
  ExpectFound(Without(DriverRule::kLeaseIsDurable, config), kNeedlessClaim, 88);
}

TEST(DriverModel, D1LeaseOfDeadDriverEnds) {
  ExpectFound(Without(DriverRule::kLeaseEnds, Crash()), kNoWayOn, 88);
}

TEST(DriverModel, D2GenerationIsDurable) {
  ExpectFound(Without(DriverRule::kGenerationIsDurable, With(Crash(), kLeadCrash)), kNoWayOn, 661);
}

TEST(DriverModel, D3ShardsFence) {
  const DriverConfig config = Without(DriverRule::kShardsFence, Crash());
  ExpectFound(config, kMixedState, 150);
  ExpectFound(config, kFencedState, 84);
}

TEST(DriverModel, D4CreateJobFencesEveryShard) {
  ExpectFound(Without(DriverRule::kCreateFences, Crash()), kFencedState, 8);
}

TEST(DriverModel, D5ShardsKeepTheirFence) {
  const DriverConfig config = Without(DriverRule::kFenceIsDurable, With(Crash(), kShardCrash));
  ExpectFound(config, kMixedState, 108);
  ExpectFound(config, kFencedState, 6);
}

TEST(DriverModel, D6DriverLocksTheFolder) {
  ExpectFound(Without(DriverRule::kLock, Expiry()), kTwoPublish, 16);
}

TEST(DriverModel, D7DriverAsksBeforeItRenames) {
  ExpectFound(Without(DriverRule::kAskBeforeRename, Expiry()), kPublishesOn, 2);
  ExpectFound(Without(DriverRule::kAskBeforeRename, With(Expiry(), kNoLocks)), kPublishesOn, 396);
}

TEST(DriverModel, D8LatestMovesForward) {
  ExpectFound(Without(DriverRule::kLatestInOrder, With(Expiry(), kNoLocks)), kLatestBack, 16);
  ExpectFound(Without(DriverRule::kLatestInOrder, With(DriverConfig(), kRollBack)), kLatestBack, 4);
}

TEST(DriverModel, D9RecordMovesForward) {
  ExpectFound(Without(DriverRule::kReportsInOrder, With(Expiry(), kNoLocks)), kReportBack, 40);
}

}  // namespace
}  // namespace eps
