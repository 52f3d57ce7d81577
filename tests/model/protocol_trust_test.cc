// LAMB: norms and Trusts (docs/protocol.md, "With norms of whole tensors").

#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/model/protocol_expect.h"
#include "tests/model/protocol_model.h"

namespace eps {
namespace {

constexpr char kOtherTrust[] = "a shard updated with a Trust of other weights";
constexpr char kNoTrust[] = "a shard updated without a Trust";
constexpr char kForgotStep[] = "a shard forgot which step it had open";
constexpr char kMeasuredLost[] = "a shard lost a contribution that it had measured";

// Returns a configuration of LAMB in which the link between lead and shard 1 may break.
ModelConfig Trusts(int link_breaks, ModelConfig config) {
  config.sealed = true;
  config.trust = true;
  config.link_breaks = link_breaks;
  return config;
}

TEST(ProtocolTrust, NoViolationWithAllRules) {
  ExpectClean({
      {Trusts(2, Config(1, 2, 0, 0)), 7529},
      {Trusts(1, Config(1, 2, 2, 0)), 332906},
      {Trusts(0, Config(1, 3, 2, 0)), 454679},
      {Trusts(0, Config(1, 2, 1, 1)), 149842},
      {Trusts(1, Config(2, 2, 1, 0)), 124218},
      {Trusts(1, Sealed(2, Config(1, 3, 1, 0))), 121251},
  });
}

TEST(ProtocolTrust, NoViolationWithContributionLogs) {
  ExpectClean({
      {Trusts(1, Logs(3, Config(1, 2, 1, 0))), 308517},
      {Trusts(0, Logs(3, Config(1, 2, 2, 0))), 759537},
      {Trusts(1, Logs(3, Config(1, 1, 3, 0))), 31948},
      {Trusts(1, Logs(3, Config(2, 1, 1, 0))), 151708},
      {Trusts(0, Logs(3, Config(1, 1, 1, 1))), 26952},
      {Trusts(1, Logs(3, Every(2, Config(1, 2, 2, 0)))), 57642},
      {Trusts(1, Logs(3, Every(3, Config(1, 3, 1, 0)))), 28141},
      {Trusts(0, Logs(3, Sealed(1, Config(1, 2, 1, 0)))), 257880},
      {Trusts(0, Logs(3, Sealed(2, Config(1, 2, 1, 0)))), 121594},
      // Only one shard has a log: if the other one crashes, the job recovers.
      {Trusts(0, Logs(1, Config(1, 2, 1, 0))), 88091},
      {Trusts(0, Logs(2, Config(1, 2, 2, 0))), 261724},
      {Trusts(0, Logs(0, Config(1, 2, 1, 1))), 150900},
  });
}

TEST(ProtocolTrust, NoViolationInLongSearches) {
  if (std::getenv("EPS_LONG") == nullptr) return;
  ExpectClean({
      {Trusts(1, Config(1, 2, 2, 1)), 2608932},
      {Trusts(0, Config(1, 3, 2, 1)), 3515218},
      {Trusts(0, Config(1, 4, 3, 0)), 5549113},
      {Trusts(1, Sealed(2, Config(2, 3, 2, 0))), 2336562},
      {Trusts(1, Logs(3, Config(1, 2, 2, 0))), 1686850},
      {Trusts(0, Logs(3, Config(1, 2, 3, 0))), 2985392},
      {Trusts(1, Logs(3, Config(2, 1, 2, 0))), 531812},
      {Trusts(0, Logs(3, Config(1, 2, 1, 1))), 1648428},
      {Trusts(1, Logs(3, Sealed(1, Config(1, 2, 2, 0)))), 3132146},
      {Trusts(0, Logs(3, Sealed(2, Config(1, 2, 1, 1)))), 1682108},
      {Trusts(1, Logs(1, Config(1, 2, 2, 0))), 1747187},
      {Trusts(0, Logs(1, Config(1, 2, 1, 1))), 1109618},
      {Trusts(1, Logs(2, Config(1, 2, 3, 0))), 3237055},
      {Trusts(0, Logs(2, Config(1, 2, 1, 1))), 395980},
      {Trusts(0, Logs(0, Config(1, 2, 2, 1))), 1096290},
  });
}

// ---- Each rule disabled in turn.

TEST(ProtocolTrust, NormsNameTerm) {
  ModelConfig config = Trusts(0, Config(1, 2, 1, 0));
  config.rules.norms_name_term = false;
  ExpectFound(config, {kOtherTrust});
}

TEST(ProtocolTrust, NormsNameStep) {
  ModelConfig config = Trusts(1, Config(1, 2, 0, 0));
  config.rules.norms_name_step = false;
  ExpectFound(config, {kOtherTrust});
}

TEST(ProtocolTrust, NormsCountOnce) {
  ModelConfig config = Trusts(1, Config(1, 2, 0, 0));
  config.rules.norms_count_once = false;
  ExpectFound(config, {kOtherTrust});
}

TEST(ProtocolTrust, NormsAreSentAgain) {
  ModelConfig config = Trusts(1, Config(1, 2, 0, 0));
  config.rules.norms_sent_again = false;
  ExpectFound(config, {kStuck});
  // A crash of the lead loses them as well.
  config = Trusts(0, Logs(3, Config(1, 2, 1, 0)));
  config.rules.norms_sent_again = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolTrust, TrustNamesTerm) {
  ModelConfig config = Trusts(0, Config(1, 2, 1, 0));
  config.rules.trust_names_term = false;
  ExpectFound(config, {kOtherTrust});
}

TEST(ProtocolTrust, TrustNamesStep) {
  ModelConfig config = Trusts(1, Config(1, 2, 0, 0));
  config.rules.trust_names_step = false;
  ExpectFound(config, {kOtherTrust});
}

TEST(ProtocolTrust, TrustIsSyncedBeforeSent) {
  ModelConfig config = Trusts(0, Logs(3, Config(1, 2, 1, 0)));
  config.rules.trust_synced_before_sent = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolTrust, TrustIsRepeated) {
  ModelConfig config = Trusts(1, Config(1, 2, 0, 0));
  config.rules.trust_is_repeated = false;
  ExpectFound(config, {kStuck});
  config = Trusts(0, Logs(3, Config(1, 2, 1, 0)));
  config.rules.trust_is_repeated = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolTrust, SessionHasTrust) {
  ModelConfig config = Trusts(0, Logs(3, Config(1, 2, 1, 0)));
  config.rules.session_has_trust = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolTrust, TrustIsLoggedBeforeTheUpdate) {
  ModelConfig config = Trusts(0, Logs(3, Config(1, 2, 1, 0)));
  config.rules.trust_logged_before_update = false;
  ExpectFound(config, {kForgotStep, kStuck});
}

TEST(ProtocolTrust, UpdateWaitsForTrust) {
  ModelConfig config = Trusts(0, Config(1, 2, 0, 0));
  config.rules.update_waits_for_trust = false;
  ExpectFound(config, {kNoTrust});
}

// Norms of a gradient that is not finite do not exist.
TEST(ProtocolTrust, SkippedStepHasNoTrust) {
  ModelConfig config = Trusts(0, Sealed(1, Config(1, 2, 0, 0)));
  config.rules.skipped_step_has_no_trust = false;
  ExpectFound(config, {kStuck});
}

// ---- Redundant rules.

// Either rule keeps the lead from norms of contributions that their shard may still forget. In the
// product the first one also supplies the clip factor.
TEST(ProtocolTrust, TwoRulesKeepMeasuredContributions) {
  ModelConfig both = Trusts(0, Logs(3, Config(1, 2, 1, 0)));
  for (bool ModelRules::*rule :
       {&ModelRules::norms_follow_decision, &ModelRules::norms_follow_sync}) {
    ModelConfig one = Trusts(0, Logs(3, Config(1, 2, 1, 0)));
    one.rules.*rule = false;
    both.rules.*rule = false;
    ExpectNothing(one);
  }
  ExpectFound(both, {kMeasuredLost});
}

}  // namespace
}  // namespace eps
