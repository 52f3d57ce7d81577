// Tests the arithmetic and the verdicts of `eps bench depth`, and the command itself over two
// depths.

#include "cli/measure/bench_depth.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/job/layout/model_layout.h"
#include "cli/launch/child_process.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kMebi = uint64_t{1} << 20;

JobSpec SpecOf(int layers, bool tied) {
  JobSpec spec;
  spec.name = "depth";
  Gpt2Config& gpt2 = spec.model.gpt2;
  gpt2.n_layer = layers;
  gpt2.n_embd = 32;
  gpt2.n_head = 2;
  gpt2.n_positions = 16;
  gpt2.vocab_size = 64;
  gpt2.tie_word_embeddings = tied;
  spec.chunk_elements = 4096;
  spec.training.micro_batch_size = 3;
  spec.training.micro_batches = 2;
  spec.training.parts = 5;
  spec.training.seq_len = 16;
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  return spec;
}

TEST(BenchDepth, BoundsEqualThoseComputedByHand) {
  constexpr uint64_t kEmbedding = (64 + 16) * 32;
  constexpr uint64_t kBlock = 12 * 32 * 32 + 13 * 32;
  constexpr uint64_t kTied = 64 * 32;
  const DepthBounds bounds = BoundsOf(SpecOf(7, /*tied=*/true));
  EXPECT_EQ(bounds.stash, 8u * 2 * 5 * 3 * 16 * 32 * 4);  // 7 blocks and the head
  EXPECT_EQ(bounds.state, 12 * (kEmbedding + 7 * kBlock + 2 * 32));
  EXPECT_EQ(bounds.server, bounds.state + 64 * kMebi + 2 * 5 * (2 * kBlock + kTied) * 4);
}

TEST(BenchDepth, AnUntiedModelHoldsNothingForTies) {
  const DepthBounds tied = BoundsOf(SpecOf(2, true));
  const DepthBounds untied = BoundsOf(SpecOf(2, false));
  EXPECT_EQ(untied.stash, tied.stash);
  EXPECT_EQ(untied.state, tied.state + 12 * 64 * 32);
  EXPECT_EQ(untied.server - untied.state, tied.server - tied.state - 2 * 5 * 64 * 32 * 4);
}

TEST(BenchDepth, ReadsLastPeaksAndMedianTime) {
  const absl::StatusOr<WorkerReport> report = ParseWorkerReport(
      "{\"step\":1,\"seconds\":9.0,\"device_peak_bytes\":10,\"stash_peak_bytes\":1}\n"
      "{\"step\":2,\"seconds\":2.0,\"device_peak_bytes\":12,\"stash_peak_bytes\":3}\n"
      "{\"step\":3,\"seconds\":1.0,\"device_peak_bytes\":13,\"stash_peak_bytes\":4}\n");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->steps, 3u);
  EXPECT_EQ(report->device_peak, 13u);
  EXPECT_EQ(report->stash_peak, 4u);
  EXPECT_EQ(report->seconds, 2.0);
}

TEST(BenchDepth, RefusesMalformedReports) {
  const std::string good = "{\"seconds\":1,\"device_peak_bytes\":1,\"stash_peak_bytes\":1}\n";
  EXPECT_FALSE(ParseWorkerReport("").ok());
  for (const std::string& bad :
       {std::string("{\"seconds\":1}"), std::string("[]"), std::string("{\"sec"),
        std::string("{\"seconds\":\"1\",\"device_peak_bytes\":1,\"stash_peak_bytes\":1}")}) {
    const absl::StatusOr<WorkerReport> report = ParseWorkerReport(good + bad);
    EXPECT_FALSE(report.ok()) << bad;
    EXPECT_TRUE(absl::StrContains(report.status().message(), "line 2")) << report.status();
  }
}

TEST(BenchDepth, SumsServerAccountsByKind) {
  DepthRun run;
  for (const uint64_t scale : {1u, 100u}) {
    v1::StatusReply status;
    for (const auto& [kind, peak] :
         {std::pair<const char*, uint64_t>{"state", 5}, {"contribution", 7}, {"fetch", 11}}) {
      v1::MemoryUse* use = status.add_memory();
      use->set_kind(kind);
      use->set_live_bytes(1);
      use->set_peak_bytes(peak * scale);
    }
    AddServerAccounts(status, &run);
  }
  EXPECT_EQ(run.state_peak, 505u);
  EXPECT_EQ(run.contribution_peak, 707u);
}

// Returns two depths that pass every check.
std::vector<DepthRun> GoodRuns() {
  std::vector<DepthRun> runs(2);
  for (size_t i = 0; i < runs.size(); ++i) {
    DepthRun& run = runs[i];
    run.layers = i == 0 ? 8 : 64;
    run.worker.device_peak = 1000 + 10 * i;
    run.worker.stash_peak = run.bounds.stash = 100 * (i + 1);
    run.state_peak = run.bounds.state = 1200 * (i + 1);
    run.contribution_peak = 50;
    run.bounds.server = run.bounds.state + 50;
  }
  return runs;
}

TEST(BenchDepth, EachVerdictFailsOnItsOwn) {
  for (const DepthVerdict& verdict : JudgeDepth(GoodRuns())) {
    EXPECT_TRUE(verdict.ok) << verdict.text;
    EXPECT_TRUE(absl::StrContains(verdict.text, ": ok (")) << verdict.text;
  }
  struct Case {
    std::string broken;
    void (*plant)(DepthRun* deepest);
  };
  const Case cases[] = {
      {"device_flat", [](DepthRun* run) { run->worker.device_peak = 1011; }},
      {"device_flat", [](DepthRun* run) { run->worker.device_peak = 989; }},
      {"device_flat", [](DepthRun* run) { run->worker.device_peak = 0; }},
      {"stash_as_predicted", [](DepthRun* run) { ++run->worker.stash_peak; }},
      {"stash_as_predicted", [](DepthRun* run) { --run->worker.stash_peak; }},
      {"state_exact", [](DepthRun* run) { --run->state_peak; }},
      {"servers_bounded", [](DepthRun* run) { ++run->contribution_peak; }},
  };
  for (const Case& c : cases) {
    std::vector<DepthRun> runs = GoodRuns();
    c.plant(&runs[1]);
    for (const DepthVerdict& verdict : JudgeDepth(runs)) {
      EXPECT_EQ(verdict.ok, verdict.name != c.broken) << verdict.text;
      EXPECT_EQ(absl::StrContains(verdict.text, ": MISSED ("), !verdict.ok) << verdict.text;
    }
    EXPECT_FALSE(nlohmann::json::parse(DepthJson(runs))["ok"].get<bool>());
  }
  EXPECT_TRUE(nlohmann::json::parse(DepthJson(GoodRuns()))["ok"].get<bool>());
}

TEST(BenchDepth, RefusesUnmeasurableSettings) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--layers=8,none"},
                                             {"--layers=0"},
                                             {"--width=33"},
                                             {"--width="},
                                             {"--model=/tmp"},
                                             {"--workers=2"},
                                             {"--layer=8"}}) {
    const absl::Status status = RunBenchDepth(arguments);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << arguments[0] << status;
  }
}

TEST(BenchDepth, HoldsItsPromisesOverTwoSmallDepths) {
  ChildOptions options;
  options.name = "eps";
  options.argv = {std::filesystem::absolute("cli/eps").string(),
                  "bench",
                  "depth",
                  "--json",
                  "--layers=2,6",
                  "--width=32",
                  "--training.seq_len=32",
                  "--training.steps=2",
                  "--training.micro_batches=2",
                  "--servers=2",
                  "--worker.threads=1"};
  options.environment = {"PATH=/usr/bin:/bin", std::string("TMPDIR=") + testing::TempDir()};
  options.log_path = testing::TempDir() + "/depth.out";
  const auto child = ChildProcess::Start(options);
  ASSERT_TRUE(child.ok()) << child.status();
  ASSERT_TRUE((*child)->WaitExit(steady_clock::now() + std::chrono::minutes(4)));
  std::ostringstream output;
  output << std::ifstream(options.log_path).rdbuf();
  EXPECT_TRUE((*child)->Failure().ok()) << (*child)->Failure();
  const auto json = nlohmann::json::parse(output.str(), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << output.str();
  EXPECT_TRUE(json["ok"].get<bool>()) << output.str();
  ASSERT_EQ(json["depths"].size(), 2u);
  for (const auto& depth : json["depths"]) {
    const uint64_t layers = depth["layers"].get<uint64_t>();
    EXPECT_EQ(depth["parameters"], (256 + 32) * 32 + layers * (12 * 32 * 32 + 13 * 32) + 2 * 32);
    EXPECT_EQ(depth["stash_peak_bytes"], (layers + 1) * 2 * 4 * 32 * 32 * 4);
    EXPECT_EQ(depth["steps"], 2);
    EXPECT_GT(depth["contribution_peak_bytes"].get<uint64_t>(), 0u);
    EXPECT_GT(depth["server_rss_bytes"].get<uint64_t>(), depth["state_peak_bytes"]);
  }
}

}  // namespace
}  // namespace eps
