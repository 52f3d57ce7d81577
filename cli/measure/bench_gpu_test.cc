// Tests the arithmetic and the texts of `eps bench gpu`, and runs it on the CPU.

#include "cli/measure/bench_gpu.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "cli/launch/child_process.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

nlohmann::json Answer() {
  return {{"device", "libtorch 2 cuda A sm_90"},
          {"layers", 4},
          {"parameters", 1000000},
          {"tokens", 2000},
          {"step_s", 2.0},
          {"compute_s", 1.6},
          {"transfer_s", 0.5},
          {"device_peak_bytes", 1000}};
}

GpuBench Bench() {
  GpuBench bench;
  bench.shape = bench.deeper = *ReadStepAnswer(Answer());
  bench.deeper.layers = 8;
  return bench;
}

TEST(BenchGpu, CountsSixOperationsPerParameterAndToken) {
  GpuBench bench = Bench();
  EXPECT_EQ(bench.mfu(), 0);
  bench.peak_flops = 12e9;
  EXPECT_DOUBLE_EQ(bench.mfu(), 6.0 * 1e6 * 2000 / 2 / 12e9);
  EXPECT_DOUBLE_EQ(bench.over_slower_half(), 2.0 / 1.6);
  EXPECT_TRUE(absl::StrContains(GpuBenchText(bench), "MFU 50.0 %")) << GpuBenchText(bench);
  EXPECT_TRUE(absl::StrContains(GpuBenchText(bench), "1.250 (goal 1.05)")) << GpuBenchText(bench);
  const auto json = nlohmann::json::parse(GpuBenchJson(bench));
  EXPECT_EQ(json["mfu"], 0.5);
  EXPECT_EQ(json["flat"], true);
}

TEST(BenchGpu, MemoryMayGrowByOnePercent) {
  GpuBench bench = Bench();
  bench.deeper.device_peak = 1010;
  EXPECT_TRUE(bench.is_flat());
  bench.deeper.device_peak = 1011;
  EXPECT_FALSE(bench.is_flat());
  EXPECT_TRUE(absl::StrContains(GpuBenchText(bench), "NOT FLAT")) << GpuBenchText(bench);
}

TEST(BenchGpu, NamesAFieldThatIsMissing) {
  nlohmann::json answer = Answer();
  answer.erase("transfer_s");
  const absl::Status status = ReadStepAnswer(answer).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "transfer_s")) << status;
}

TEST(BenchGpu, RefusesWrongArguments) {
  for (const char* const argument : {"--layers=0", "--precision", "--what=1"}) {
    EXPECT_EQ(RunBenchGpu({argument}).code(), absl::StatusCode::kInvalidArgument) << argument;
  }
  const absl::Status hardware = RunBenchGpu({"--hardware=nothing"});
  EXPECT_TRUE(absl::StrContains(hardware.message(), "nothing")) << hardware;
}

TEST(BenchGpu, MeasuresTheCpuAsADevice) {
  ChildOptions options;
  options.name = "eps";
  options.argv = {std::filesystem::absolute("cli/eps").string(),
                  "bench",
                  "gpu",
                  "--json",
                  "--device=cpu",
                  "--layers=1",
                  "--width=32",
                  "--heads=2",
                  "--seq-len=16",
                  "--vocab=64",
                  "--samples=2",
                  "--steps=1",
                  "--threads=1",
                  "--hardware=h100_host"};
  options.environment = {"PATH=/usr/bin:/bin", std::string("TMPDIR=") + testing::TempDir()};
  options.log_path = testing::TempDir() + "/bench_gpu.log";
  options.read_stdout = true;
  auto eps = ChildProcess::Start(std::move(options));
  ASSERT_TRUE(eps.ok()) << eps.status();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  const auto line = (*eps)->WaitForLine("{", deadline);
  ASSERT_TRUE(line.ok()) << line.status();
  const auto json = nlohmann::json::parse("{" + *line);
  EXPECT_EQ(json["tokens"], 2 * 2 * 16);
  EXPECT_EQ(json["flat"], true);
  EXPECT_GT(json["mfu"], 0);
  EXPECT_LT(json["mfu"], 1e-3);  // of an H100's peak
}

}  // namespace
}  // namespace eps
