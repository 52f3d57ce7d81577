#include "planner/walls.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/config/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/hardware.h"
#include "planner/step_model.h"
#include "planner/testing/plans.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner {
namespace {

using ::testing::HasSubstr;

constexpr double kPeak = 989e12;       // of an H100 in BF16
constexpr double kRate = 0.6 * kPeak;  // F
constexpr double kLink = 50e9;         // B
// Three models, and the stages of a real model of that size.
constexpr double kParameters[] = {7.6e9, 32.5e9, 70.6e9};
constexpr size_t kStages[] = {30, 66, 82};

// A job in BF16 with AdamW and one worker, whose stages are all alike.
Workload UniformJob(double parameters, size_t stages, double tokens, bool sealed) {
  Workload work;
  work.parameters = static_cast<uint64_t>(parameters);
  work.precision = Precision::kBf16;
  work.state_per_parameter = Bytes(12);
  work.tokens = static_cast<uint64_t>(tokens);
  work.sealed = sealed;
  work.model_flops = Flops(6 * parameters * tokens);
  StageWork stage;
  stage.elements = static_cast<uint64_t>(parameters / static_cast<double>(stages));
  const auto elements = static_cast<double>(stage.elements);
  stage.fetch_forward = stage.fetch_backward = stage.push = Bytes(2 * elements);
  stage.forward = Flops(2 * elements * tokens);
  stage.backward = 3 * stage.forward;
  work.stages.assign(stages, stage);
  work.stages.back().fetch_backward = Bytes(0);
  return work;
}

// The example of an H100 with another bandwidth and number of cores, whose links inside the host
// and fixed times do not limit it.
Hardware HostOf(double bandwidth, uint32_t cores) {
  Hardware hardware = Example("h100_host");
  ServerKind& server = hardware.servers[0];
  server.memory_bandwidth = BytesPerSecond(bandwidth);
  server.cores = cores;
  server.send = server.receive = kNoLimit;
  WorkerKind& worker = hardware.workers[0];
  worker.send = worker.receive = kNoLimit;
  worker.latency = worker.device.stage_overhead = Seconds(0);
  EXPECT_EQ(worker.device.products(Precision::kBf16), FlopsPerSecond(kRate));
  EXPECT_EQ(worker.device.to_device, BytesPerSecond(kLink));
  return hardware;
}

RunShape ShapeOn(const Hardware& hardware, int prefetch = 2) {
  RunShape shape;
  shape.server_threads = hardware.servers[0].cores;
  shape.weights = shape.gradients = "bf16";
  shape.prefetch = prefetch;
  return shape;
}

StepWalls WallsOn(const Workload& work, const Hardware& hardware) {
  const RunShape shape = ShapeOn(hardware);
  return WallsOf(work, EstimateStep(work, hardware, shape));
}

// One row of the table "Walls" in docs/planning.md.
struct TableRow {
  double bandwidth;  // D
  uint32_t cores;
  bool sealed;
  // For 4, 16, 32 and 64 Ki tokens: percent of the peak, and seconds of a step by model.
  int mfu[4];
  const char* seconds[4];
};
constexpr double kTokens[] = {4096, 16384, 32768, 65536};
constexpr TableRow kTable[] = {
    {120e9,
     16,
     false,
     {7, 27, 45, 45},
     {"2.8 / 12 / 26", "2.8 / 12 / 26", "3.4 / 14 / 31", "6.7 / 29 / 62"}},
    {120e9,
     16,
     true,
     {6, 22, 32, 42},
     {"2.9 / 12 / 27", "3.4 / 15 / 32", "4.7 / 20 / 43", "7.2 / 31 / 67"}},
    {200e9,
     32,
     false,
     {11, 42, 45, 45},
     {"1.7 / 7.1 / 16", "1.8 / 7.6 / 17", "3.4 / 14 / 31", "6.7 / 29 / 62"}},
    {200e9,
     32,
     true,
     {11, 30, 40, 45},
     {"1.7 / 7.5 / 16", "2.6 / 11 / 24", "3.8 / 16 / 35", "6.7 / 29 / 62"}},
    {300e9,
     48,
     false,
     {16, 45, 45, 45},
     {"1.2 / 5.2 / 11", "1.7 / 7.2 / 16", "3.4 / 14 / 31", "6.7 / 29 / 62"}},
    {300e9,
     48,
     true,
     {16, 36, 45, 45},
     {"1.2 / 5.0 / 11", "2.1 / 9.1 / 20", "3.4 / 14 / 31", "6.7 / 29 / 62"}},
};

// The equations of walls.h with W = 1, and those of mode sealed.
double Equations(double parameters, double tokens, double bandwidth, bool sealed) {
  const double forward = (sealed ? 34 : 8) * parameters / bandwidth;
  const double backward = (sealed ? 12 : 36) * parameters / bandwidth;
  const double link = 2 * parameters / kLink;
  return std::fmax(2 * parameters * tokens / kRate, std::fmax(link, forward)) +
         std::fmax(6 * parameters * tokens / kRate, std::fmax(link, backward));
}

std::string TwoDigits(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), number < 9.95 ? "%.1f" : "%.0f", number);
  return text;
}

// Many stages, as the equations do not count that the last stage is fetched once for both passes.
TEST(Walls, EquationsAndTableHold) {
  constexpr size_t kMany = 2000;
  std::ifstream file("docs/planning.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const TableRow& row : kTable) {
    const Hardware hardware = HostOf(row.bandwidth, row.cores);
    std::string line = "| " + std::to_string(static_cast<int>(row.bandwidth / 1e9)) + " GB/s | " +
                       (row.sealed ? "sealed" : "eager") + " |";
    for (size_t t = 0; t < 4; ++t) {
      std::string seconds;
      for (const double parameters : kParameters) {
        const Workload work = UniformJob(parameters, kMany, kTokens[t], row.sealed);
        const double bound = WallsOn(work, hardware).bound().value();
        EXPECT_NEAR(bound / Equations(parameters, kTokens[t], row.bandwidth, row.sealed), 1, 1e-3)
            << line << kTokens[t];
        EXPECT_EQ(std::lround(100 * work.model_flops.value() / bound / kPeak), row.mfu[t])
            << line << kTokens[t];
        seconds += (seconds.empty() ? "" : " / ") + TwoDigits(bound);
      }
      EXPECT_EQ(seconds, row.seconds[t]) << line << kTokens[t];
      line += " " + std::to_string(row.mfu[t]) + " %: " + row.seconds[t] + " |";
    }
    EXPECT_THAT(page.str(), HasSubstr(line));
  }
}

// A step adds little to its walls at its border, with as many stages as such models have.
TEST(Walls, StepsAreCloseToTheirWalls) {
  for (const TableRow& row : kTable) {
    const Hardware hardware = HostOf(row.bandwidth, row.cores);
    for (size_t m = 0; m < 3; ++m) {
      for (const double tokens : kTokens) {
        const Workload work = UniformJob(kParameters[m], kStages[m], tokens, row.sealed);
        const double equations = Equations(kParameters[m], tokens, row.bandwidth, row.sealed);
        const double step = EstimateStep(work, hardware, ShapeOn(hardware)).times.duration.value();
        EXPECT_NEAR(step / equations, 1, 0.05)
            << row.bandwidth << (row.sealed ? " sealed " : " eager ") << kParameters[m] << " "
            << tokens;
        // Without fetches ahead, nothing overlaps.
        const double alone =
            EstimateStep(work, hardware, ShapeOn(hardware, 0)).times.duration.value();
        if (tokens == kTokens[1]) {
          EXPECT_GT(alone / equations, 1.05) << row.bandwidth;
        }
      }
    }
  }
}

// 2 P T / F meets 8 P / D, and 6 P T / F meets 36 P / D.
TEST(Walls, TokensOfTheNextWall) {
  constexpr double kBandwidth = 120e9;
  constexpr size_t kMany = 2000;
  for (const bool sealed : {false, true}) {
    const Workload work = UniformJob(7.6e9, kMany, 4096, sealed);
    const StepWalls walls = WallsOn(work, HostOf(kBandwidth, 16));
    const std::pair<const PassWalls*, double> passes[] = {
        {&walls.forward, (sealed ? 34 : 8) / 2.0}, {&walls.backward, (sealed ? 12 : 36) / 6.0}};
    for (const auto& [pass, bytes_per_flop] : passes) {
      ASSERT_EQ(pass->ranges.size(), 2u);
      EXPECT_EQ(pass->ranges[0].resource, Resource::kServerMemory);
      EXPECT_NEAR(pass->ranges[0].to / (bytes_per_flop * kRate / kBandwidth), 1, 1e-3);
      EXPECT_EQ(pass->ranges[1].resource, Resource::kWorkerCompute);
      EXPECT_TRUE(std::isinf(pass->ranges[1].to));
    }
  }
}

TEST(Walls, EachResourceCanBind) {
  const Workload work = UniformJob(7.6e9, 30, 64, false);  // hardly any computation
  const auto walls = [&](const Hardware& hardware) {
    const StepWalls both = WallsOn(work, hardware);
    return std::make_pair(both.forward.ranges[0].resource, both.backward.ranges[0].resource);
  };
  const auto both = [](Resource resource) { return std::make_pair(resource, resource); };
  EXPECT_EQ(walls(HostOf(300e9, 48)), std::make_pair(Resource::kToDevice, Resource::kServerMemory));
  EXPECT_EQ(walls(HostOf(900e9, 1)), both(Resource::kServerProcessors));
  Hardware hardware = HostOf(9000e9, 480);
  hardware.workers[0].device.from_device = BytesPerSecond(1e9);
  EXPECT_EQ(walls(hardware), std::make_pair(Resource::kToDevice, Resource::kFromDevice));
  hardware.workers[0].receive = BytesPerSecond(1e9);
  hardware.servers[0].receive = BytesPerSecond(0.5e9);
  EXPECT_EQ(walls(hardware), std::make_pair(Resource::kWorkerReceive, Resource::kServerReceive));
  hardware.workers[0].receive = hardware.servers[0].receive = kNoLimit;
  hardware.workers[0].device.codes = false;
  hardware.workers[0].decode = hardware.workers[0].encode = BytesPerSecond(0.5e9);
  const auto on_host = walls(hardware);
  EXPECT_EQ(on_host.first, Resource::kWorkerDecoding);
}

// FP32 crosses the link unless the device decodes, and the host's codecs take their time.
TEST(Walls, DevicesThatDecodeTakeEncodedBytes) {
  const Workload work = UniformJob(7.6e9, 30, 64, false);
  Hardware hardware = HostOf(9000e9, 480);
  const double encoded = WallsOn(work, hardware).forward.bound.value();
  hardware.workers[0].device.codes = false;
  EXPECT_NEAR(WallsOn(work, hardware).forward.bound.value(), 2 * encoded, 1e-9);
  EXPECT_NEAR(encoded, 2 * 7.6e9 / kLink, 1e-6);
}

// Bytes of host memory that a block moves per parameter, counted from the job's own codecs and
// optimizer.
struct Traffic {
  const char* weights;
  const char* gradients;
  const char* optimizer;
  const char* clip;
  uint32_t workers;
  double forward;
  double backward;
};

TEST(Walls, TrafficFollowsCodecsAndOptimizer) {
  // Encoding reads 4 B and writes w; each of W workers reads w; a gradient of g is written and
  // read; an update reads and writes s. Sealed, the sum is read again: as it came if it is the only
  // one, else in FP32, which is also written.
  const Traffic cases[] = {
      {"bf16", "bf16", "adamw", "none", 1, 8, 36},
      {"bf16", "bf16", "adamw", "exact", 1, 34, 12},
      {"bf16", "bf16", "adamw", "none", 8, 6 + 2 * 8, 30 + 6 * 8},
      {"bf16", "bf16", "adamw", "exact", 8, 6 + 2 * 8 + 24 + 4, 6 + 2 * 8 + 4 * 8 + 4},
      {"fp32", "fp32", "adamw", "none", 1, 12, 12 + 8 + 24},
      {"fp16", "fp32", "adamw", "none", 1, 8, 8 + 8 + 24},
      {"fp8_e4m3", "bf16", "adamw", "none", 1, 6, 6 + 4 + 24},
      {"bf16", "bf16", "lion", "none", 1, 8, 8 + 4 + 16},
  };
  constexpr double kBandwidth = 100e9;
  for (const Traffic& c : cases) {
    const Config config = ConfigWith({{"quantization.weights", c.weights},
                                      {"quantization.gradients", c.gradients},
                                      {"optimizer.name", c.optimizer},
                                      {"training.clip", c.clip}});
    const Workload work = *WorkloadOf(Gpt2Spec(config, 4, 1024, c.workers));
    const Hardware hardware = HostOf(kBandwidth, 48);
    RunShape shape = ShapeOn(hardware);
    shape.workers = c.workers;
    const StageTimes block = EstimateStep(work, hardware, shape).stages[1];
    const auto per_parameter = [&](ServerTime time) {
      return time.memory.value() * kBandwidth / static_cast<double>(work.stages[1].elements);
    };
    const ServerTime forward = work.sealed ? block.encode + block.update : block.encode;
    const ServerTime backward =
        work.sealed ? block.encode + block.reduce : block.encode + block.reduce + block.update;
    EXPECT_NEAR(per_parameter(forward) / c.forward, 1, 0.01) << c.weights << c.clip << c.workers;
    EXPECT_NEAR(per_parameter(backward) / c.backward, 1, 0.01) << c.weights << c.clip << c.workers;
  }
}

TEST(Walls, RangesAreTheSlowestStraightLines) {
  const auto ranges = [](std::vector<Wall> walls) {
    std::vector<std::pair<Resource, double>> pairs;
    for (const WallRange& range : RangesOf(walls, 1000))
      pairs.push_back({range.resource, range.to});
    return pairs;
  };
  using Pairs = std::vector<std::pair<Resource, double>>;
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const Wall memory{Resource::kServerMemory, Seconds(6), Seconds(0)};
  const Wall link{Resource::kToDevice, Seconds(4), Seconds(1)};
  const Wall compute{Resource::kWorkerCompute, Seconds(0), Seconds(3)};
  const Wall low{Resource::kServerProcessors, Seconds(1), Seconds(0)};
  EXPECT_EQ(ranges({low, compute}),
            (Pairs{{low.resource, 1000 / 3.0}, {compute.resource, kInfinite}}));
  // The link would meet the memory's 6 s at twice the tokens, where the computation is at 6 s, too.
  EXPECT_EQ(ranges({link, memory, compute, low}),
            (Pairs{{memory.resource, 2000}, {compute.resource, kInfinite}}));
  const Wall slower{Resource::kToDevice, Seconds(5), Seconds(1)};
  EXPECT_EQ(
      ranges({compute, slower, memory}),
      (Pairs{{memory.resource, 1000}, {slower.resource, 2500}, {compute.resource, kInfinite}}));
  EXPECT_EQ(ranges({compute}), (Pairs{{compute.resource, kInfinite}}));
  EXPECT_EQ(ranges({compute, {link.resource, Seconds(0), Seconds(1)}}),
            (Pairs{{compute.resource, kInfinite}}))
      << "from no tokens on";
}

}  // namespace
}  // namespace eps::planner
