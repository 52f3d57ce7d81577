#include "tests/model/protocol_expect.h"

#include <cstdio>

#include "gtest/gtest.h"
#include "tests/model/search/model_result.h"

namespace eps {
namespace {

ModelResult Search(const ModelConfig& config) {
  const ModelResult result = CheckProtocol(config);
  std::printf(
      "stages %d steps %d cuts every %d crashes %d+%d sealed %d trust %d breaks %d logs %d: %llu "
      "states, %llu transitions, depth %d, %.0f states/s\n",
      2 * config.stages_per_shard, config.steps, config.cut_interval, config.shard_crashes,
      config.worker_crashes, config.sealed, config.trust, config.link_breaks, config.logs,
      static_cast<unsigned long long>(result.states),
      static_cast<unsigned long long>(result.transitions), result.depth,
      static_cast<double>(result.states) / result.seconds);
  return result;
}

}  // namespace

ModelConfig Config(int stages_per_shard, int steps, int shard_crashes, int worker_crashes) {
  ModelConfig config;
  config.stages_per_shard = stages_per_shard;
  config.steps = steps;
  config.shard_crashes = shard_crashes;
  config.worker_crashes = worker_crashes;
  return config;
}

ModelConfig Every(int cut_interval, ModelConfig config) {
  config.cut_interval = cut_interval;
  return config;
}

ModelConfig Sealed(int poisoned_step, ModelConfig config) {
  config.sealed = true;
  config.poisoned_step = poisoned_step;
  return config;
}

ModelConfig Logs(int shards, ModelConfig config) {
  config.logs = shards;
  config.one_version = true;
  return config;
}

void ExpectClean(const std::vector<Expected>& table) {
  for (const Expected& row : table) {
    const ModelResult result = Search(row.config);
    EXPECT_TRUE(result.violations.empty()) << Trace(result);
    EXPECT_EQ(result.stuck, 0u) << Trace(result);
    EXPECT_GT(result.finals, 0u);
    EXPECT_EQ(result.states, row.states);
  }
}

void ExpectNothing(const ModelConfig& config) {
  const ModelResult result = Search(config);
  EXPECT_TRUE(result.violations.empty()) << Trace(result);
  EXPECT_EQ(result.stuck, 0u) << Trace(result);
}

void ExpectFound(const ModelConfig& config, const std::vector<std::string>& kinds) {
  const ModelResult result = Search(config);
  for (const std::string& kind : kinds) EXPECT_EQ(result.traces.count(kind), 1u) << Trace(result);
  for (const auto& [found, count] : result.violations) {
    std::printf("  %s: %llu\n", found.c_str(), static_cast<unsigned long long>(count));
  }
  if (result.stuck != 0) {
    std::printf("  stuck: %llu\n", static_cast<unsigned long long>(result.stuck));
  }
}

}  // namespace eps
