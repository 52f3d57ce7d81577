#include "tests/model/protocol_model.h"

#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/model/protocol_expect.h"
#include "tests/model/search/model_result.h"

namespace eps {
namespace {

constexpr char kLost[] = "no cut is on all shards: the job is lost";
constexpr char kRolledBack[] = "rolled back below the watermark";
constexpr char kTwice[] = "a contribution was counted twice";
constexpr char kOtherWeights[] = "a contribution computed from other weights was counted";
constexpr char kMixedTerms[] = "contributions of two terms were mixed";
constexpr char kDisagree[] = "shards disagree";
constexpr char kForgotStep[] = "a shard forgot which step it had open";
constexpr char kAckLost[] = "an acknowledged contribution is lost";
constexpr char kAllGoBack[] = "the job rolled back although every shard has its log";

TEST(ProtocolModel, NoViolationWithAllRules) {
  ExpectClean({
      {Config(1, 2, 0, 0), 1359},
      {Config(1, 3, 2, 0), 427973},
      {Config(1, 2, 3, 0), 825609},
      {Config(1, 3, 0, 1), 48742},
      {Config(1, 2, 1, 1), 141114},
      {Config(2, 2, 1, 0), 44805},
      {Config(2, 2, 0, 1), 137462},
      {Every(2, Config(1, 4, 2, 0)), 235430},
      {Sealed(2, Config(1, 3, 1, 0)), 47183},
  });
}

TEST(ProtocolModel, NoViolationInLongSearches) {
  if (std::getenv("EPS_LONG") == nullptr) return;
  ExpectClean({
      {Config(2, 2, 2, 0), 291693},
      {Config(2, 2, 1, 1), 666338},
      {Config(2, 3, 2, 0), 942635},
      {Config(2, 3, 1, 1), 2013190},
      {Config(2, 2, 2, 1), 3579368},
      {Config(1, 3, 2, 1), 3273018},
      {Config(1, 2, 2, 2), 3209070},
      {Config(1, 4, 3, 0), 5271891},
      {Config(1, 3, 3, 1), 17856170},
      {Config(1, 4, 4, 0), 27865406},
      {Every(2, Config(1, 4, 2, 1)), 1733780},
      {Sealed(2, Config(2, 3, 2, 0)), 996901},
      {Sealed(2, Config(2, 3, 1, 1)), 2307798},
  });
}

TEST(ProtocolModel, NoViolationWithContributionLogs) {
  ExpectClean({
      {Logs(3, Config(1, 2, 1, 0)), 165074},
      {Logs(3, Config(1, 1, 3, 0)), 30579},
      {Logs(3, Config(2, 1, 1, 0)), 179027},
      {Logs(3, Config(1, 1, 1, 1)), 146334},
      {Logs(3, Every(2, Config(1, 2, 2, 0))), 24363},
      {Logs(3, Sealed(1, Config(1, 2, 1, 0))), 258258},
      {Logs(3, Sealed(0, Config(1, 1, 1, 1))), 35498},
      // Only one shard has a log: if the other one crashes, the job recovers.
      {Logs(1, Config(1, 2, 1, 0)), 107829},
      {Logs(1, Config(1, 1, 2, 0)), 47295},
      {Logs(2, Config(1, 2, 2, 0)), 257322},
      // No shard has a log, but lost work of a worker is detected as in the product.
      {Logs(0, Config(1, 2, 0, 1)), 41024},
  });
}

TEST(ProtocolModel, NoViolationInLongSearchesWithLogs) {
  if (std::getenv("EPS_LONG") == nullptr) return;
  ExpectClean({
      {Logs(3, Config(1, 2, 0, 1)), 254295},
      {Logs(3, Config(1, 2, 2, 0)), 998457},
      {Logs(3, Config(1, 2, 3, 0)), 3647125},
      {Logs(3, Config(1, 3, 1, 0)), 1149345},
      {Logs(3, Config(2, 1, 2, 0)), 721963},
      {Logs(3, Config(1, 2, 1, 1)), 4053006},
      {Logs(3, Config(1, 1, 2, 1)), 785407},
      {Logs(3, Every(2, Config(1, 4, 2, 0))), 2546915},
      {Logs(3, Sealed(1, Config(1, 2, 2, 0))), 1408159},
      {Logs(3, Sealed(1, Config(1, 2, 1, 1))), 3565314},
      {Logs(1, Config(1, 2, 2, 0)), 881368},
      {Logs(1, Config(1, 2, 1, 1)), 2520107},
      {Logs(2, Config(1, 2, 3, 0)), 1562431},
      {Logs(2, Config(1, 2, 1, 1)), 819846},
      {Logs(0, Config(1, 2, 1, 1)), 367491},
      {Logs(0, Config(1, 2, 2, 1)), 2482473},
  });
}

// ---- Each rule disabled in turn.

TEST(ProtocolModel, PushNamesTerm) {
  ModelConfig config = Config(1, 2, 1, 0);
  config.rules.push_names_term = false;
  ExpectFound(config, {kMixedTerms});
}

TEST(ProtocolModel, FirstContributionWins) {
  ModelConfig config = Config(1, 2, 0, 0);
  config.rules.first_contribution_wins = false;
  ExpectFound(config, {kTwice});
}

TEST(ProtocolModel, FetchNamesVersion) {
  ModelConfig config = Config(1, 2, 1, 0);
  config.rules.fetch_names_version = false;
  ExpectFound(config, {kOtherWeights});
}

TEST(ProtocolModel, HaveSetIsAnswered) {
  ModelConfig config = Config(1, 2, 0, 1);
  config.rules.have_set_is_answered = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolModel, FreshProcessRefuses) {
  ModelConfig config = Config(1, 2, 1, 0);
  config.rules.fresh_process_refuses = false;
  ExpectFound(config, {"shards are two steps apart"});
}

TEST(ProtocolModel, OneDecision) {
  ModelConfig config = Sealed(1, Config(1, 2, 0, 0));
  config.rules.one_decision = false;
  ExpectFound(config, {kDisagree});
}

TEST(ProtocolModel, SkipAdvancesStep) {
  ModelConfig config = Sealed(1, Config(1, 2, 0, 0));
  config.rules.skip_advances_step = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolModel, SlotOfCutNotStep) {
  ModelConfig config = Every(2, Config(1, 4, 0, 0));
  config.rules.slot_of_cut_not_step = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolModel, RetainUntilComplete) {
  ModelConfig config = Config(1, 2, 0, 1);
  config.rules.retain_until_complete = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolModel, BeginAfterAcks) {
  ModelConfig config = Config(1, 2, 0, 1);
  config.rules.begin_after_acks = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolModel, UpdateWaitsForCapture) {
  ModelConfig config = Config(1, 2, 2, 0);
  config.rules.update_waits_for_capture = false;
  ExpectFound(config, {kLost, kRolledBack});
}

TEST(ProtocolModel, RecycleBelowWatermark) {
  ModelConfig config = Config(1, 2, 2, 0);
  config.rules.recycle_below_watermark = false;
  ExpectFound(config, {kLost});
}

TEST(ProtocolModel, DurableNamesTerm) {
  ModelConfig config = Config(1, 2, 2, 0);
  config.rules.durable_names_term = false;
  ExpectFound(config, {kLost, kRolledBack});
}

TEST(ProtocolModel, RestoreWaitsForQuiesce) {
  ModelConfig config = Config(1, 2, 2, 0);
  config.rules.restore_waits_for_quiesce = false;
  ExpectFound(config, {kLost});
  // If the term does not distinguish cuts either, the failure is worse: it goes unnoticed.
  config.rules.cut_names_term = false;
  config.rules.durable_only_in_term = false;
  ExpectFound(config, {kDisagree});
}

TEST(ProtocolModel, TermIsDurable) {
  ModelConfig config = Config(1, 1, 3, 0);
  config.rules.term_is_durable = false;
  config.stop_at_violation = true;
  ExpectFound(config, {kMixedTerms});
}

TEST(ProtocolModel, BaseIsCommon) {
  ModelConfig config = Config(1, 2, 1, 0);
  config.rules.base_is_common = false;
  ExpectFound(config, {kDisagree});
}

TEST(ProtocolModel, RestoreReloadsAll) {
  ModelConfig config = Config(1, 2, 1, 0);
  config.rules.restore_reloads_all = false;
  ExpectFound(config, {kDisagree});
}

TEST(ProtocolModel, TellAfterSync) {
  ModelConfig config = Logs(3, Config(1, 1, 1, 0));
  config.rules.tell_after_sync = false;
  ExpectFound(config, {kAckLost});
}

TEST(ProtocolModel, ReplayBeforeServing) {
  ModelConfig config = Logs(3, Config(1, 2, 1, 0));
  config.rules.replay_before_serving = false;
  ExpectFound(config, {kAckLost, kForgotStep});
}

TEST(ProtocolModel, ReplayNamesOrigin) {
  ModelConfig config = Logs(3, Config(1, 1, 1, 0));
  config.rules.replay_names_origin = false;
  ExpectFound(config, {kTwice});
}

TEST(ProtocolModel, ReplaySkipsOld) {
  ModelConfig config = Logs(3, Config(1, 1, 1, 0));
  config.rules.replay_skips_old = false;
  ExpectFound(config, {kTwice});
}

TEST(ProtocolModel, LogMovesWithCut) {
  ModelConfig config = Logs(3, Config(1, 1, 1, 0));
  config.rules.log_moves_with_cut = false;
  ExpectFound(config, {kAckLost, kAllGoBack});
}

TEST(ProtocolModel, LogSyncedBeforeRead) {
  ModelConfig config = Logs(3, Config(1, 1, 2, 0));
  config.rules.log_synced_before_read = false;
  ExpectFound(config, {kAckLost});
}

TEST(ProtocolModel, LogOfPromisedTerm) {
  ModelConfig config = Logs(2, Config(1, 2, 2, 0));
  config.rules.log_of_promised_term = false;
  ExpectFound(config, {kMixedTerms, kAckLost});
}

TEST(ProtocolModel, TermIsDurableBesideALog) {
  ModelConfig config = Logs(2, Config(1, 1, 2, 0));
  config.rules.term_is_durable = false;
  config.stop_at_violation = true;
  ExpectFound(config, {kMixedTerms});
}

TEST(ProtocolModel, SessionIsLogged) {
  ModelConfig config = Logs(3, Config(1, 1, 1, 0));
  config.rules.session_is_logged = false;
  ExpectFound(config, {kAllGoBack});
}

TEST(ProtocolModel, SessionFollowsReplay) {
  ModelConfig config = Logs(3, Config(1, 1, 2, 0));
  config.rules.session_follows_replay = false;
  ExpectFound(config, {kAllGoBack});
}

TEST(ProtocolModel, SessionHasDecision) {
  ModelConfig config = Logs(3, Sealed(0, Config(1, 1, 1, 0)));
  config.rules.session_has_decision = false;
  ExpectFound(config, {kStuck});
}

TEST(ProtocolModel, CutWaitsForLog) {
  ModelConfig config = Logs(3, Config(1, 1, 1, 0));
  config.rules.cut_waits_for_log = false;
  ExpectFound(config, {kAllGoBack});
}

// The product enforces this rule by the identity of the log's file
// (storage/log/contribution_log.h).
TEST(ProtocolModel, OneProcessPerLog) {
  ModelConfig config = Logs(3, Config(1, 1, 1, 0));
  config.rules.one_process_per_log = false;
  ExpectFound(config, {kAckLost});
}

// ---- Redundant rules: disabling one of them changes nothing.

TEST(ProtocolModel, ThreeRulesKeepOutDeadCuts) {
  for (bool ModelRules::*rule : {&ModelRules::cut_names_term, &ModelRules::durable_only_in_term,
                                 &ModelRules::restore_kills_newer}) {
    ModelConfig config = Config(1, 3, 2, 0);
    config.rules.*rule = false;
    ExpectNothing(config);
  }
  ModelConfig config = Config(1, 3, 2, 0);
  config.rules.durable_only_in_term = false;
  config.rules.restore_kills_newer = false;
  ExpectFound(config, {kStuck});
  config.rules.cut_names_term = false;
  ExpectFound(config, {kDisagree});
}

// With a single lead, the durable write of Restore, which every shard makes before any shard opens,
// does the work of the promise.
TEST(ProtocolModel, RestoreReplacesThePromiseBeforeTheBase) {
  ModelConfig config = Config(1, 2, 2, 0);
  config.rules.all_promise = false;
  ExpectNothing(config);
}

TEST(ProtocolModel, TwoRulesInformAReturningLead) {
  ModelConfig both = Logs(3, Config(1, 1, 1, 1));
  for (bool ModelRules::*rule :
       {&ModelRules::lead_promises_first, &ModelRules::register_names_promise}) {
    ModelConfig one = Logs(3, Config(1, 1, 1, 1));
    one.rules.*rule = false;
    both.rules.*rule = false;
    ExpectNothing(one);
  }
  ExpectFound(both, {kStuck});
}

TEST(ProtocolModel, RepeatsASearchExactly) {
  const ModelResult once = CheckProtocol(Config(1, 2, 1, 0));
  const ModelResult again = CheckProtocol(Config(1, 2, 1, 0));
  EXPECT_EQ(once.states, 15013u);
  EXPECT_EQ(once.states, again.states);
  EXPECT_EQ(once.transitions, again.transitions);
  EXPECT_EQ(once.finals, again.finals);
  EXPECT_EQ(once.depth, again.depth);
}

}  // namespace
}  // namespace eps
