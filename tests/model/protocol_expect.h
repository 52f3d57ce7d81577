#ifndef EPS_TESTS_MODEL_PROTOCOL_EXPECT_H_
#define EPS_TESTS_MODEL_PROTOCOL_EXPECT_H_

// Configurations of the protocol's model for tests, and expectations of their searches.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/model/protocol_model.h"

namespace eps {

constexpr char kStuck[] = "stuck";

ModelConfig Config(int stages_per_shard, int steps, int shard_crashes, int worker_crashes);
ModelConfig Every(int cut_interval, ModelConfig config);
ModelConfig Sealed(int poisoned_step, ModelConfig config);
// As in the product, only one version of the weights is kept. `shards` is a bitmask of the shards
// that have a log.
ModelConfig Logs(int shards, ModelConfig config);

// A configuration and the number of its states.
struct Expected {
  ModelConfig config;
  uint64_t states;
};

// Expects that each search ends well, and that it visits the given number of states.
void ExpectClean(const std::vector<Expected>& table);
// Expects neither a violation nor a stuck state.
void ExpectNothing(const ModelConfig& config);
// Expects the search to find `kinds` in `config`, which disables a rule.
void ExpectFound(const ModelConfig& config, const std::vector<std::string>& kinds);

}  // namespace eps

#endif  // EPS_TESTS_MODEL_PROTOCOL_EXPECT_H_
