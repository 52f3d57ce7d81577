// Searches one configuration and prints what it finds:
//   check_protocol [stages=1] [steps=2] [every=1] [crashes=1] [workers=0] [sealed=0] [poisoned=0]
//                  [logs=0] [one_version=0] [trust=0] [breaks=0] [without=RULE]…
// `stages` counts per shard; RULE is a member of ModelRules. Exits with 1 after a violation or a
// stuck state, and prints for each kind how the first one came about.

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/model/protocol_model.h"
#include "tests/model/search/model_result.h"

namespace {

const std::map<std::string, bool eps::ModelRules::*> kRules = {
    {"push_names_term", &eps::ModelRules::push_names_term},
    {"first_contribution_wins", &eps::ModelRules::first_contribution_wins},
    {"fetch_names_version", &eps::ModelRules::fetch_names_version},
    {"have_set_is_answered", &eps::ModelRules::have_set_is_answered},
    {"fresh_process_refuses", &eps::ModelRules::fresh_process_refuses},
    {"one_decision", &eps::ModelRules::one_decision},
    {"skip_advances_step", &eps::ModelRules::skip_advances_step},
    {"slot_of_cut_not_step", &eps::ModelRules::slot_of_cut_not_step},
    {"retain_until_complete", &eps::ModelRules::retain_until_complete},
    {"begin_after_acks", &eps::ModelRules::begin_after_acks},
    {"update_waits_for_capture", &eps::ModelRules::update_waits_for_capture},
    {"recycle_below_watermark", &eps::ModelRules::recycle_below_watermark},
    {"durable_names_term", &eps::ModelRules::durable_names_term},
    {"cut_names_term", &eps::ModelRules::cut_names_term},
    {"durable_only_in_term", &eps::ModelRules::durable_only_in_term},
    {"restore_waits_for_quiesce", &eps::ModelRules::restore_waits_for_quiesce},
    {"all_promise", &eps::ModelRules::all_promise},
    {"term_is_durable", &eps::ModelRules::term_is_durable},
    {"base_is_common", &eps::ModelRules::base_is_common},
    {"restore_kills_newer", &eps::ModelRules::restore_kills_newer},
    {"restore_reloads_all", &eps::ModelRules::restore_reloads_all},
    {"tell_after_sync", &eps::ModelRules::tell_after_sync},
    {"replay_before_serving", &eps::ModelRules::replay_before_serving},
    {"replay_names_origin", &eps::ModelRules::replay_names_origin},
    {"replay_skips_old", &eps::ModelRules::replay_skips_old},
    {"log_moves_with_cut", &eps::ModelRules::log_moves_with_cut},
    {"log_synced_before_read", &eps::ModelRules::log_synced_before_read},
    {"log_of_promised_term", &eps::ModelRules::log_of_promised_term},
    {"lead_promises_first", &eps::ModelRules::lead_promises_first},
    {"register_names_promise", &eps::ModelRules::register_names_promise},
    {"session_is_logged", &eps::ModelRules::session_is_logged},
    {"session_follows_replay", &eps::ModelRules::session_follows_replay},
    {"session_has_decision", &eps::ModelRules::session_has_decision},
    {"cut_waits_for_log", &eps::ModelRules::cut_waits_for_log},
    {"one_process_per_log", &eps::ModelRules::one_process_per_log},
    {"norms_follow_decision", &eps::ModelRules::norms_follow_decision},
    {"norms_follow_sync", &eps::ModelRules::norms_follow_sync},
    {"norms_name_term", &eps::ModelRules::norms_name_term},
    {"norms_name_step", &eps::ModelRules::norms_name_step},
    {"norms_count_once", &eps::ModelRules::norms_count_once},
    {"norms_sent_again", &eps::ModelRules::norms_sent_again},
    {"trust_names_term", &eps::ModelRules::trust_names_term},
    {"trust_names_step", &eps::ModelRules::trust_names_step},
    {"trust_synced_before_sent", &eps::ModelRules::trust_synced_before_sent},
    {"trust_is_repeated", &eps::ModelRules::trust_is_repeated},
    {"session_has_trust", &eps::ModelRules::session_has_trust},
    {"trust_logged_before_update", &eps::ModelRules::trust_logged_before_update},
    {"update_waits_for_trust", &eps::ModelRules::update_waits_for_trust},
    {"skipped_step_has_no_trust", &eps::ModelRules::skipped_step_has_no_trust},
};

bool Set(const std::string& key, const std::string& value, eps::ModelConfig* config) {
  const int number = std::atoi(value.c_str());
  const std::map<std::string, int*> numbers = {
      {"stages", &config->stages_per_shard}, {"steps", &config->steps},
      {"every", &config->cut_interval},      {"crashes", &config->shard_crashes},
      {"workers", &config->worker_crashes},  {"poisoned", &config->poisoned_step},
      {"breaks", &config->link_breaks},      {"logs", &config->logs}};
  if (const auto it = numbers.find(key); it != numbers.end()) {
    *it->second = number;
    return true;
  }
  if (key == "one_version") {
    config->one_version = number != 0;
    return true;
  }
  if (key == "sealed") {
    config->sealed = number != 0;
    return true;
  }
  if (key == "trust") {
    config->trust = number != 0;
    return true;
  }
  const auto rule = kRules.find(value);
  if (key != "without" || rule == kRules.end()) return false;
  config->rules.*rule->second = false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  eps::ModelConfig config;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string::npos ||
        !Set(argument.substr(0, equals), argument.substr(equals + 1), &config)) {
      std::fprintf(stderr, "check_protocol: unknown argument %s\n", argv[i]);
      return 64;
    }
  }
  const eps::ModelResult result = eps::CheckProtocol(config);
  const auto print = [](const char* what, uint64_t count) {
    std::printf("%s %llu\n", what, static_cast<unsigned long long>(count));
  };
  for (const auto& [kind, events] : result.traces) {
    std::printf("%s:\n", kind.c_str());
    for (const std::string& event : events) std::printf("  %s\n", event.c_str());
  }
  for (const auto& [kind, count] : result.violations) print(kind.c_str(), count);
  print("stuck", result.stuck);
  print("states", result.states);
  print("transitions", result.transitions);
  print("final states", result.finals);
  std::printf("depth %d, %.1f s, %.0f states/s\n", result.depth, result.seconds,
              static_cast<double>(result.states) / result.seconds);
  return result.violations.empty() && result.stuck == 0 ? 0 : 1;
}
