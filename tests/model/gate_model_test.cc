#include "tests/model/gate_model.h"

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

using Edit = void (*)(GateConfig* config);

GateConfig With(GateConfig config, Edit edit) {
  edit(&config);
  return config;
}

// A driver that writes a checkpoint at each border but the last.
GateConfig Saving() {
  return With(GateConfig(), [](GateConfig* config) {
    config->drivers = 1;
    config->saves = 0b110;
  });
}

// The first driver and one that follows it.
GateConfig TwoDrivers() {
  return With(Saving(), [](GateConfig* config) { config->drivers = 2; });
}

GateConfig Pausing() {
  return With(GateConfig(), [](GateConfig* config) { config->pauses = 1; });
}

GateConfig Draining(int servers) {
  GateConfig config;
  config.drains = servers;
  return config;
}

// The operator pauses the job, and resumes it when the server is back.
GateConfig Upgrade() {
  return With(Pausing(), [](GateConfig* config) {
    config->drains = 1;
    config->upgrade = true;
  });
}

GateConfig Together() {
  return With(Draining(2), [](GateConfig* config) { config->together = true; });
}

GateConfig Volatile(GateConfig config) {
  config.volatile_job = true;
  return config;
}

GateConfig Without(GateRule rule, GateConfig config) {
  config.without.set(static_cast<size_t>(rule));
  return config;
}

// Edits that add faults.
constexpr Edit kCrash = [](GateConfig* config) { config->crashes = 1; };
constexpr Edit kLeadCrash = [](GateConfig* config) { config->lead_crashes = 1; };
constexpr Edit kBreak = [](GateConfig* config) { config->breaks = 1; };
constexpr Edit kDriverCrash = [](GateConfig* config) { config->driver_crashes = 1; };
constexpr Edit kExpiry = [](GateConfig* config) { config->expiries = 1; };
constexpr Edit kDuplicate = [](GateConfig* config) { config->duplicates = 1; };
constexpr Edit kLoss = [](GateConfig* config) { config->losses = 1; };
constexpr Edit kLogs = [](GateConfig* config) { config->logs = true; };
constexpr Edit kPause = [](GateConfig* config) { config->pauses = 1; };
constexpr Edit kPauseAtZero = [](GateConfig* config) { config->pause_at = 0; };
constexpr Edit kDrain = [](GateConfig* config) { config->drains = 1; };
constexpr Edit kSealed = [](GateConfig* config) { config->ahead = 0; };
constexpr Edit kFarAhead = [](GateConfig* config) {
  config->ahead = 2;
  config->steps = 4;
};

// A configuration and the number of its states.
struct Expected {
  GateConfig config;
  uint64_t states;
};

void ExpectClean(const std::vector<Expected>& table) {
  for (const Expected& row : table) {
    const ModelResult result = CheckGates(row.config);
    std::printf("%s", Describe(result).c_str());
    EXPECT_TRUE(result.violations.empty()) << Trace(result);
    EXPECT_EQ(result.stuck, 0u) << Trace(result);
    EXPECT_GT(result.finals, 0u);
    EXPECT_EQ(result.states, row.states);
  }
}

// Expects the search to find `kind` exactly `count` times in `config`, which removes a rule.
void ExpectFound(const GateConfig& config, const char* kind, uint64_t count) {
  const ModelResult result = CheckGates(config);
  std::printf("%s", Describe(result).c_str());
  ASSERT_EQ(result.traces.count(kind), 1u) << Trace(result);
  EXPECT_FALSE(result.traces.at(kind).empty());
  EXPECT_EQ(kind == std::string(kNoWayOn) ? result.stuck : result.violations.at(kind), count);
}

TEST(GateModel, NoViolationWithADriver) {
  ExpectClean({
      {Saving(), 2450},
      {With(Saving(), kSealed), 1618},
      {With(Saving(), kFarAhead), 3660},
      {With(With(Saving(), kLoss), kBreak), 38125},
      {With(Saving(), kCrash), 33809},
      {With(With(Saving(), kCrash), kLogs), 27583},
      {With(Saving(), kLeadCrash), 39782},
      {With(With(Saving(), kLeadCrash), kLogs), 88221},
  });
}

TEST(GateModel, NoViolationWithTwoDrivers) {
  ExpectClean({
      {With(TwoDrivers(), kDriverCrash), 67003},
      {With(TwoDrivers(), kExpiry), 232371},
      {With(Saving(), kDuplicate), 19632},
  });
}

TEST(GateModel, NoViolationWithPauses) {
  ExpectClean({
      {With(Saving(), kPause), 48397},
      {Volatile(With(Saving(), kPause)), 33393},
      {With(Pausing(), kCrash), 27945},
      {With(Pausing(), kLeadCrash), 34420},
      {With(With(With(Pausing(), kPauseAtZero), kLeadCrash), kLogs), 30652},
      {With(Pausing(), kDuplicate), 30148},
  });
}

TEST(GateModel, NoViolationWithDrains) {
  ExpectClean({
      {Draining(1), 2183},
      {With(Draining(1), kSealed), 1330},
      {With(Draining(1), kFarAhead), 7626},
      {Draining(2), 6646},
      {Together(), 6645},
      {With(Saving(), kDrain), 35925},
      {Upgrade(), 48348},
  });
}

TEST(GateModel, NoViolationInLongSearches) {
  if (std::getenv("EPS_LONG") == nullptr) return;
  ExpectClean({
      {With(With(TwoDrivers(), kDriverCrash), kDuplicate), 507025},
      {With(With(TwoDrivers(), kExpiry), kDuplicate), 1691141},
      {With(With(TwoDrivers(), kDriverCrash), kDrain), 838969},
      {With(With(With(Saving(), kLeadCrash), kDuplicate), kLogs), 780562},
      {With(With(With(With(Saving(), kCrash), kLeadCrash), kBreak), kLogs), 1685098},
      {With(With(Saving(), kDrain), kPause), 720732},
      {With(With(Pausing(), kDrain), kCrash), 363617},
      {With(With(Pausing(), kDrain), kLeadCrash), 429607},
      {With(Upgrade(), kFarAhead), 183094},
  });
}

// ---- Each rule removed in turn.

TEST(GateModel, G1HolderMovesItsOwnGate) {
  const GateConfig config = Without(GateRule::kHolders, With(Saving(), kPause));
  ExpectFound(config, kPausePassed, 362);
  ExpectFound(config, kBorderPassed, 3120);
}

TEST(GateModel, G2LowestGateHolds) {
  ExpectFound(Without(GateRule::kLowestHolds, With(Saving(), kPause)), kBorderPassed, 2192);
}

TEST(GateModel, G3NoGateIsNotZero) {
  ExpectFound(Without(GateRule::kAbsence, With(Pausing(), kPauseAtZero)), kPausePassed, 24);
}

TEST(GateModel, G4EveryShardAnswers) {
  ExpectFound(Without(GateRule::kAllAnswer, Volatile(Saving())), kExportNotWhole, 134);
}

TEST(GateModel, G5AnswerNamesTheChange) {
  ExpectFound(Without(GateRule::kAnswerNamesChange, Volatile(With(Saving(), kPause))),
              kExportNotWhole, 338);
}

TEST(GateModel, G6OnlyOpenShardsAnswer) {
  ExpectFound(Without(GateRule::kOpenShardsAnswer, With(Saving(), kCrash)), kNoWayOn, 22);
}

TEST(GateModel, G7HolderMovesOn) {
  const GateConfig config = Without(GateRule::kHolderMovesOn, Saving());
  ExpectFound(config, kBorderPassed, 52);
  ExpectFound(config, kNoWayOn, 128);
}

TEST(GateModel, G8LeadRepeatsTheGate) {
  ExpectFound(Without(GateRule::kRepeatAtRegister, With(Saving(), kBreak)), kNoWayOn, 1168);
}

TEST(GateModel, G9LeadRepeatsThatThereIsNone) {
  ExpectFound(Without(GateRule::kRepeatAbsence, With(Saving(), kBreak)), kNoWayOn, 562);
}

TEST(GateModel, G10GateComesBeforeTheTermOpens) {
  ExpectFound(Without(GateRule::kRepeatBeforeOpen, With(Pausing(), kCrash)), kPausePassed, 26);
}

TEST(GateModel, G11HolderSetsItsGateAgain) {
  ExpectFound(Without(GateRule::kHolderSetsAgain, With(Saving(), kLeadCrash)), kNoWayOn, 300);
}

TEST(GateModel, G12BorderOfGateGetsACut) {
  ExpectFound(Without(GateRule::kCutAtGate, Draining(1)), kNoWayOn, 614);
}

TEST(GateModel, G13ServerDrainsAtAnUndecidedBorder) {
  ExpectFound(Without(GateRule::kDrainUndecided, Draining(1)), kNoWayOn, 300);
}

TEST(GateModel, G13ServerEndsAtACommonCut) {
  ExpectFound(Without(GateRule::kEndAtCommonCut, Draining(1)), kStepRepeated, 87);
}

TEST(GateModel, G14ReaderKeepsTheServer) {
  ExpectFound(Without(GateRule::kReaderKeepsServer, With(Saving(), kDrain)), kExportCutOff, 50);
}

// A server whose lead has ended can only wait for the end of its patience.
TEST(GateModel, G14LeadEndsLast) {
  ExpectFound(Without(GateRule::kLeadEndsLast, Without(GateRule::kDrainTimesOut, Together())),
              kNoWayOn, 3116);
}

TEST(GateModel, G15DrainTimesOut) {
  ExpectFound(Without(GateRule::kDrainTimesOut, Together()), kNoWayOn, 10);
}

TEST(GateModel, G15GateEndsWithTheDrain) {
  ExpectFound(Without(GateRule::kDrainLifts, Draining(1)), kNoWayOn, 458);
}

// ---- Rules of what is not built yet: durable pauses, and leases of drivers.

TEST(GateModel, G16PauseIsDurable) {
  ExpectFound(Without(GateRule::kPauseIsDurable, With(Pausing(), kLeadCrash)), kPausePassed, 12);
}

TEST(GateModel, G17PauseTakesAnUndecidedBorder) {
  ExpectFound(Without(GateRule::kPauseUndecided, Upgrade()), kNoWayOn, 2838);
}

TEST(GateModel, G18ServerOfPausedJobDrains) {
  ExpectFound(Without(GateRule::kDrainAtPause, Upgrade()), kNoWayOn, 1388);
}

TEST(GateModel, G19PauseKeepsNoServer) {
  ExpectFound(Without(GateRule::kPauseKeepsNoServer, Upgrade()), kNoWayOn, 3800);
}

TEST(GateModel, G20GateEndsWithTheLease) {
  ExpectFound(Without(GateRule::kLeaseEndsGate, With(Saving(), kDriverCrash)), kNoWayOn, 1476);
}

TEST(GateModel, G20LeaseOfDeadDriverEnds) {
  ExpectFound(Without(GateRule::kDriverLeaseEnds, With(Saving(), kDriverCrash)), kNoWayOn, 738);
}

TEST(GateModel, G21RequestNamesALiveLease) {
  ExpectFound(Without(GateRule::kRequestNamesLease, With(Saving(), kDriverCrash)), kNoWayOn, 1115);
}

TEST(GateModel, G22OlderRequestIsIgnored) {
  ExpectFound(Without(GateRule::kRequestsInOrder, With(Saving(), kDuplicate)), kNoWayOn, 391);
  ExpectFound(Without(GateRule::kRequestsInOrder, With(Pausing(), kDuplicate)), kNoWayOn, 440);
}

}  // namespace
}  // namespace eps
