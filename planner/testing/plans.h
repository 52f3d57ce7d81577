#ifndef EPS_PLANNER_TESTING_PLANS_H_
#define EPS_PLANNER_TESTING_PLANS_H_

// The inputs of plans in tests: configurations, jobs and machines.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/config/config.h"
#include "base/config/spec_builder.h"
#include "base/job/job_spec.h"
#include "gtest/gtest.h"
#include "planner/hardware.h"

namespace eps::planner {

// Data of 2^40 tokens, which no plan reads.
inline DataSpec SomeData() {
  DataSpec data;
  data.tokens = uint64_t{1} << 40;
  data.sha256 = std::string(64, '0');
  return data;
}

inline Hardware Example(const std::string& name) {
  return *ParseHardware(*HardwareExample(name), name);
}

// Returns the job spec that the program builds for a GPT-2 with this configuration.
inline JobSpec Gpt2Spec(const Config& config, int layers, int width, uint32_t workers) {
  ModelSpec model;
  model.gpt2.n_layer = layers;
  model.gpt2.n_embd = width;
  model.gpt2.n_head = width / 64;
  model.gpt2.n_positions = 1024;
  model.gpt2.vocab_size = 50257;
  return *BuildJobSpec(config, model, SomeData(), workers);
}

inline Config ConfigWith(const std::vector<std::pair<std::string, std::string>>& settings) {
  Config config;
  for (const auto& [key, value] : settings) EXPECT_TRUE(config.Set(key, value).ok()) << key;
  return config;
}

}  // namespace eps::planner

#endif  // EPS_PLANNER_TESTING_PLANS_H_
