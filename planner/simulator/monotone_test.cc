// Better hardware and fewer failures never make a run longer. Checked over random scenarios with
// fixed seeds: 800, or 10,000 with EPS_LONG=1 in the environment.

#include <cstdint>
#include <cstdlib>
#include <functional>

#include "gtest/gtest.h"
#include "planner/hardware.h"
#include "planner/simulator/simulator.h"
#include "planner/simulator/testing/test_scenarios.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner::simulator {
namespace {

constexpr double kRounding = 1e-9;

struct Improvement {
  const char* what;
  std::function<void(Scenario*)> make;
  bool fewer_failures = false;  // the useful time stays the same, so goodput does not fall
};

template <class Kind>
Improvement Faster(const char* what, Kind& (*kind)(Scenario*), BytesPerSecond Kind::*rate) {
  return {what, [=](Scenario* s) { kind(s).*rate = 1.5 * (kind(s).*rate); }};
}

template <class Amount>
Improvement LessWork(const char* what, Amount StageWork::*amount) {
  return {what, [=](Scenario* s) {
            for (StageWork& stage : s->work.stages) stage.*amount = 0.7 * (stage.*amount);
          }};
}

const Improvement kImprovements[] = {
    Faster("worker receive", &WorkerOf, &WorkerKind::receive),
    Faster("worker send", &WorkerOf, &WorkerKind::send),
    Faster("worker decode", &WorkerOf, &WorkerKind::decode),
    Faster("worker encode", &WorkerOf, &WorkerKind::encode),
    Faster("server receive", &ServerOf, &ServerKind::receive),
    Faster("server send", &ServerOf, &ServerKind::send),
    Faster("server encode", &ServerOf, &ServerKind::encode),
    Faster("server update", &ServerOf, &ServerKind::update),
    Faster("worker transport", &WorkerOf, &WorkerKind::transport),
    Faster("server transport", &ServerOf, &ServerKind::transport),
    {"chunks",
     [](Scenario* s) {
       WorkerOf(s).chunk_overhead = WorkerOf(s).chunk_overhead / 2;
       ServerOf(s).chunk_overhead = ServerOf(s).chunk_overhead / 2;
     }},
    Faster("server memory", &ServerOf, &ServerKind::memory_bandwidth),
    {"to device",
     [](Scenario* s) { WorkerOf(s).device.to_device = 1.5 * WorkerOf(s).device.to_device; }},
    {"from device",
     [](Scenario* s) { WorkerOf(s).device.from_device = 1.5 * WorkerOf(s).device.from_device; }},
    {"disk reads",
     [](Scenario* s) { ServerOf(s).storage->read = 1.5 * ServerOf(s).storage->read; }},
    {"disk writes",
     [](Scenario* s) { ServerOf(s).storage->write = 1.5 * ServerOf(s).storage->write; }},
    {"latency", [](Scenario* s) { WorkerOf(s).latency = Seconds(0); }},
    // The total number of failures stays the same.
    {"servers",
     [](Scenario* s) {
       s->shape.servers *= 2;
       ServerOf(s).count *= 2;
       s->server_failures = s->server_failures / 2;
     }},
    {"prefetch", [](Scenario* s) { ++s->shape.prefetch; }},
    {"jit depth", [](Scenario* s) { ++s->shape.jit_depth; }},
    LessWork("forward", &StageWork::forward),
    LessWork("backward", &StageWork::backward),
    LessWork("stash", &StageWork::stash),
    LessWork("push", &StageWork::push),
    {"slow workers", [](Scenario* s) { s->slow_factor = 1; }},
    {"worker failures", [](Scenario* s) { s->worker_failures = 0.6 * s->worker_failures; }, true},
    {"server failures", [](Scenario* s) { s->server_failures = 0.6 * s->server_failures; }, true},
    {"no failures", [](Scenario* s) { s->worker_failures = s->server_failures = PerSecond(0); },
     true},
    {"worker restart", [](Scenario* s) { s->worker_restart = 0.5 * s->worker_restart; }, true},
    {"server restart", [](Scenario* s) { s->server_restart = 0.5 * s->server_restart; }, true},
};

TEST(Monotone, BetterPartsNeverMakeARunLonger) {
  const uint64_t scenarios = std::getenv("EPS_LONG") != nullptr ? 10'000 : 800;
  uint64_t failures = 0;
  for (uint64_t seed = 0; seed < scenarios; ++seed) {
    Scenario scenario = RandomScenario(seed);
    // The exception that simulator.h describes.
    if (scenario.work.sealed && scenario.replay == Replay::kLog) {
      scenario.worker_failures = PerSecond(0);
    }
    const auto before = Simulate(scenario);
    ASSERT_TRUE(before.ok()) << before.status();
    failures += before->worker_failures + before->server_failures;
    for (const Improvement& improvement : kImprovements) {
      Scenario better = scenario;
      improvement.make(&better);
      const auto after = Simulate(better);
      ASSERT_TRUE(after.ok()) << after.status();
      EXPECT_LE(after->wall.value(), before->wall.value() * (1 + kRounding))
          << "seed " << seed << ", better " << improvement.what;
      if (improvement.fewer_failures) {
        EXPECT_GE(after->goodput(), before->goodput() * (1 - kRounding))
            << "seed " << seed << ", better " << improvement.what;
      }
    }
  }
  EXPECT_GT(failures, 2 * scenarios);  // otherwise hardly any run had failures
}

}  // namespace
}  // namespace eps::planner::simulator
