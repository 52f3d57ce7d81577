#include "worker/run_worker.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/job/layout/chunk_map.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/client/testing/scripted_shard.h"

namespace eps {
namespace {

constexpr uint64_t kSteps = 3;

// A worker against a server with made-up weights: the results do not matter here.
class RunWorkerTest : public testing::Test {
 protected:
  void StartServer(JobSpec spec) {
    spec_ = std::move(spec);
    spec_.training.steps = kSteps;
    spec_.data.tokens = text_.size();
    std::string tokens;
    for (const char c : text_) tokens += {c, '\0'};
    Sha256 hash;
    hash.Update(tokens);
    spec_.data.sha256 = ToHex(hash.Finish());
    ASSERT_TRUE(spec_.Validate().ok()) << spec_.Validate();
    chunks_ = ChunkMap::Build(spec_);
    server_ = std::make_unique<ScriptedShard>(&spec_, &chunks_, 0);
    server_->SetServers({server_->address()});
    server_->Change([](Script* script) { script->edit_slice = UseSmallWeights; });
    options_.servers = {server_->address()};
    options_.config.worker.device = "cpu";
    options_.config.worker.threads = 2;
    options_.config.data.path = {WriteText("text.txt", text_)};
    options_.report_path = Path("report.jsonl");
  }

  // The scripted weights grow with the chunk's number, far beyond what a model can compute with.
  static void UseSmallWeights(v1::FetchSlice* slice) {
    ASSERT_TRUE(slice->offset() == 0 && slice->last());
    std::string* const data = slice->mutable_data();
    for (size_t i = 0; i * sizeof(float) < data->size(); ++i) {
      const float value = 0.01f * static_cast<float>(static_cast<int>(i * 37 % 19) - 9);
      std::memcpy(&(*data)[i * sizeof(float)], &value, sizeof(float));
    }
    slice->set_crc32c(Crc32c(*data));
  }

  static std::string Path(const std::string& name) {
    return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
  }
  static std::string WriteText(const std::string& name, const std::string& text) {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  std::vector<nlohmann::json> ReportLines() const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(options_.report_path);
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  static bool Never() { return false; }

  const std::string text_ = std::string(500, 'a') + std::string(500, 'b');
  JobSpec spec_;
  ChunkMap chunks_;
  std::unique_ptr<ScriptedShard> server_;
  WorkerOptions options_;
};

TEST_F(RunWorkerTest, ComputesAndReportsEveryGpt2Step) {
  StartServer(TinyGpt2Spec());
  const absl::Status status = RunWorker(options_, Never);
  ASSERT_TRUE(status.ok()) << status;
  const Seen seen = server_->seen();
  ASSERT_EQ(seen.begins.size(), kSteps + 1);  // the last one completes the last step
  const std::vector<nlohmann::json> lines = ReportLines();
  ASSERT_EQ(lines.size(), kSteps);
  for (uint64_t i = 0; i < kSteps; ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_EQ(lines[i]["tokens"], 2 * 2 * 32);
    EXPECT_GT(lines[i]["loss_sum"], 0.0);
    EXPECT_GT(lines[i]["device_peak_bytes"], 0);
    EXPECT_GT(lines[i]["stash_peak_bytes"], 0);
    EXPECT_GT(lines[i]["seconds"], 0.0);
  }
  for (const auto& [place, tokens] : seen.tokens) EXPECT_EQ(tokens, 2u * 2 * 32);
}

TEST_F(RunWorkerTest, ComputesASyntheticJobWithoutData) {
  StartServer(TinySyntheticSpec());
  options_.config.data.path.clear();
  const absl::Status status = RunWorker(options_, Never);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(ReportLines().size(), kSteps);
}

TEST_F(RunWorkerTest, PassTimeDelaysWithoutChangingResults) {
  StartServer(TinySyntheticSpec());
  ASSERT_TRUE(RunWorker(options_, Never).ok());
  const std::vector<nlohmann::json> undelayed = ReportLines();
  StartServer(TinySyntheticSpec());
  options_.config.worker.pass_time_ms = 5;
  const absl::Status status = RunWorker(options_, Never);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<nlohmann::json> lines = ReportLines();
  ASSERT_EQ(lines.size(), undelayed.size());
  // A forward pass over all stages but the last, and a backward pass of three times that over all.
  const double micro_batches = spec_.training.micro_batches;
  const double stages = static_cast<double>(spec_.stages.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["loss_sum"], undelayed[i]["loss_sum"]);
    EXPECT_GE(lines[i]["forward_seconds"], 0.005 * micro_batches * (stages - 1));
    EXPECT_GE(lines[i]["backward_seconds"], 0.015 * micro_batches * stages);
  }
}

TEST_F(RunWorkerTest, RefusesPassTimeForRealModels) {
  StartServer(TinyGpt2Spec());
  options_.config.worker.pass_time_ms = 5;
  const absl::Status status = RunWorker(options_, Never);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "worker.pass_time is 5 ms")) << status;
}

TEST_F(RunWorkerTest, JoinsAgainIfATermEndsMeanwhile) {
  StartServer(TinyGpt2Spec());
  const auto over = [](v1::BeginStepReply*) {
    return grpc::Status(grpc::StatusCode::ABORTED, "term 1 is over; the job is at term 2");
  };
  server_->Change([&](Script* s) { s->begin_steps.assign(2, over); });
  const absl::Status status = RunWorker(options_, Never);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(server_->seen().probes.size(), 3u);
  EXPECT_EQ(ReportLines().size(), kSteps);
}

TEST_F(RunWorkerTest, FinishesTheCurrentStepWhenInterrupted) {
  StartServer(TinyGpt2Spec());
  const absl::Status status = RunWorker(options_, [&] { return !server_->seen().headers.empty(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(absl::StrContains(status.message(), "after step 1 of 3")) << status;
  EXPECT_EQ(server_->seen().begins.size(), 1u);
  EXPECT_EQ(ReportLines().size(), 1u);
  // Everything of the step that had begun has arrived.
  size_t places = 0;
  for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
    places += chunks_.ChunksOfStage(StageId(s)).size();
  }
  const Seen seen = server_->seen();
  EXPECT_EQ(seen.times_counted.size(), places);
  // It left after that, and after it reported the loss.
  ASSERT_FALSE(seen.beats.empty());
  EXPECT_TRUE(seen.beats.back().leave());
  EXPECT_EQ(seen.counted_at_leave, places);
  EXPECT_EQ(seen.reports_at_leave, 1u);
}

TEST_F(RunWorkerTest, DrainsWhileAStepIsNotOpen) {
  StartServer(TinySyntheticSpec());
  server_->Change([](Script* s) { s->park_begin_steps = true; });
  const absl::Status status = RunWorker(options_, [&] { return !server_->seen().begins.empty(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "after step 0 of 3")) << status;
  EXPECT_TRUE(server_->seen().beats.back().leave());
}

TEST_F(RunWorkerTest, LeavesAtTheEndOfTheJob) {
  StartServer(TinySyntheticSpec());
  ASSERT_TRUE(RunWorker(options_, Never).ok());
  const Seen seen = server_->seen();
  ASSERT_FALSE(seen.beats.empty());
  EXPECT_TRUE(seen.beats.back().leave());
  EXPECT_EQ(seen.begins.size(), kSteps + 1);
}

TEST_F(RunWorkerTest, AnInterruptEndsAStandby) {
  StartServer(TinySyntheticSpec());
  server_->Change([](Script* s) { s->leases.standby = true; });
  const absl::Status status = RunWorker(options_, [&] { return !server_->seen().beats.empty(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_TRUE(server_->seen().probes.empty());
}

TEST_F(RunWorkerTest, AFencedWorkerJoinsAgainAsAnother) {
  StartServer(TinySyntheticSpec());
  v1::PushReply fenced;
  fenced.mutable_ack()->set_outcome(v1::Ack::FENCED);
  server_->Change([&](Script* s) { s->pushes.header_replies = {fenced}; });
  const absl::Status status = RunWorker(options_, Never);
  EXPECT_TRUE(status.ok()) << status;
  const Seen seen = server_->seen();
  ASSERT_EQ(seen.joins.size(), 2u);
  EXPECT_NE(seen.joins[0].worker_nonce(), seen.joins[1].worker_nonce());
  EXPECT_EQ(seen.probes.size(), 2u);
  EXPECT_EQ(seen.begins.size(), 1 + kSteps + 1) << "the first step is computed twice";
}

TEST_F(RunWorkerTest, GivesUpAfterThreeFruitlessJoins) {
  StartServer(TinySyntheticSpec());
  v1::PushReply fenced;
  fenced.mutable_ack()->set_outcome(v1::Ack::FENCED);
  server_->Change([&](Script* s) { s->pushes.header_replies.assign(1000, fenced); });
  const absl::Status status = RunWorker(options_, Never);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "joined 3 times in term 1")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "another process holds part 0")) << status;
  EXPECT_EQ(server_->seen().joins.size(), 3u);
}

TEST_F(RunWorkerTest, CompletesTheLastStepDespiteAnInterrupt) {
  StartServer(TinySyntheticSpec());
  const absl::Status status = RunWorker(options_, [&] {
    const Seen seen = server_->seen();
    return !seen.headers.empty() && seen.headers.back().key().step() == kSteps;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(server_->seen().begins.size(), kSteps + 1);
}

TEST_F(RunWorkerTest, RefusesDataOfAnotherJob) {
  StartServer(TinyGpt2Spec());
  const std::string shorter = WriteText("shorter.txt", text_.substr(1));
  const std::string other = WriteText("other.txt", std::string(500, 'a') + std::string(500, 'c'));
  const struct {
    std::vector<std::string> paths;
    std::vector<std::string> texts;
  } cases[] = {
      {{}, {"data.path"}},
      {{shorter}, {"data.path", shorter, "999 tokens", "1000"}},
      {{other}, {"data.path", other, "SHA-256", spec_.data.sha256}},
  };
  for (const auto& c : cases) {
    options_.config.data.path = c.paths;
    const absl::Status status = RunWorker(options_, Never);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    for (const std::string& text : c.texts) {
      EXPECT_TRUE(absl::StrContains(status.message(), text)) << status << " lacks " << text;
    }
  }
  EXPECT_TRUE(server_->seen().begins.empty());
}

TEST_F(RunWorkerTest, EvaluatesTheConfiguredHeldOutData) {
  StartServer(TinyGpt2Spec());
  options_.config.training.eval_steps = 2;
  options_.config.data.eval_path = {WriteText("held_out.txt", std::string(3 * 32 + 5, 'c'))};
  const absl::Status status = RunWorker(options_, Never);
  ASSERT_TRUE(status.ok()) << status;
  std::vector<uint64_t> borders;
  for (const v1::BeginStepRequest& request : server_->seen().reports) {
    if (request.evaluations_size() == 0) continue;
    borders.push_back(request.step() - 1);
    // Part 0, which this worker hosts, has the first of two micro-batches of 2 and 1 samples.
    EXPECT_EQ(request.evaluations(0).tokens(), 2u * 32);
    EXPECT_GT(request.evaluations(0).loss_sum(), 0.0);
  }
  EXPECT_EQ(borders, (std::vector<uint64_t>{2, 3}));
}

TEST_F(RunWorkerTest, RefusesUnusableHeldOutData) {
  StartServer(TinyGpt2Spec());
  options_.config.training.eval_steps = 2;
  const std::string few = WriteText("few.txt", std::string(32, 'c'));
  const std::string enough = WriteText("enough.txt", std::string(100, 'c'));
  const struct {
    std::vector<std::string> paths;
    uint64_t samples;
    std::string text;
  } cases[] = {
      {{}, 0, "data.eval_path names no held-out data"},
      {{few}, 0, "32 tokens"},
      {{enough}, 4, "holds 3 whole samples"},
      {{"/nonexistent/x"}, 0, "data.eval_path"},
  };
  for (const auto& c : cases) {
    options_.config.data.eval_path = c.paths;
    options_.config.training.eval_samples = c.samples;
    const absl::Status status = RunWorker(options_, Never);
    EXPECT_FALSE(status.ok()) << c.text;
    EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << status;
  }
  EXPECT_TRUE(server_->seen().begins.empty());
}

TEST_F(RunWorkerTest, NamesAnAbsentServer) {
  StartServer(TinySyntheticSpec());
  server_->Stop();
  options_.config.worker.rpc_timeout_ms = 300;
  options_.config.worker.join_timeout_ms = 300;
  const absl::Status status = RunWorker(options_, Never);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), options_.servers[0])) << status;
}

}  // namespace
}  // namespace eps
