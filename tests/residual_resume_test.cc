// Residuals of sparse gradients survive a checkpoint: with real processes, a resume on other
// servers trains to the same bits as a run without interruption.

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/job/layout/chunk_map.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/checkpoint_report.h"
#include "cli/launch/child_process.h"
#include "eps_server/server.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "wire/control_client.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Arguments = std::vector<std::string>;

constexpr std::chrono::seconds kPatience{600};

std::string ReadFile(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

void WriteFile(const std::string& path, const std::string& content) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

// The exit code and output of a program.
struct Result {
  int code = -1;
  std::string out;  // stdout and stderr
};

// Runs `eps` in a temporary folder with a small model.
class ResidualResumeTest : public testing::Test {
 protected:
  ResidualResumeTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/residual-",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    WriteFile(folder_ + "/model/config.json",
              R"({"model_type": "eps-synthetic", "n_layer": 5, "n_embd": 128, "tied": true})");
  }
  ~ResidualResumeTest() override { fs::remove_all(folder_); }

  std::unique_ptr<ChildProcess> Start(const Arguments& arguments, bool read_stdout) {
    ChildOptions options;
    options.name = "eps";
    options.argv = {fs::absolute("cli/eps").string()};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.environment = {"PATH=/usr/bin:/bin", "TMPDIR=" + folder_};
    options.log_path = absl::StrCat(folder_, "/output-", ++runs_);
    options.read_stdout = read_stdout;
    auto child = ChildProcess::Start(std::move(options));
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }

  static int CodeOf(ChildProcess* child) {
    EXPECT_TRUE(child->WaitExit(Clock::now() + kPatience)) << "it hangs";
    if (child->Running() || WIFSIGNALED(child->wait_status())) return -1;
    return WEXITSTATUS(child->wait_status());
  }

  Result Run(const Arguments& arguments) {
    const auto child = Start(arguments, /*read_stdout=*/false);
    Result result;
    result.code = CodeOf(child.get());
    result.out = ReadFile(child->log_path());
    return result;
  }

  // Twelve steps of three parts, whose inner layers send 5 % of their gradients.
  Arguments Train(const std::string& out, const Arguments& more) const {
    Arguments arguments = {"train",
                           "--model=" + folder_ + "/model",
                           "--out=" + folder_ + "/" + out,
                           "--training.steps=12",
                           "--training.parts=3",
                           "--training.mode=eager",
                           "--training.clip=none",
                           "--quantization.weights=mx6",
                           "--quantization.gradients=topk:0.05"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  std::string Checkpoint(const std::string& out, int step) const {
    return absl::StrCat(folder_, "/", out, "/checkpoint-", step);
  }
  std::string Digest(const std::string& out, int step) const {
    const auto digest = CheckpointDigest(Checkpoint(out, step));
    EXPECT_TRUE(digest.ok()) << digest.status();
    return digest.ok() ? *digest : "";
  }
  std::vector<double> Losses(const std::string& out) const {
    std::vector<double> losses;
    std::ifstream metrics(folder_ + "/" + out + "/metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      losses.push_back(nlohmann::json::parse(line)["loss"].get<double>());
    }
    return losses;
  }

  // Resumes from the checkpoint of step 6 and trains to the end.
  Result ResumeAtSix(const std::string& out, const Arguments& more) {
    fs::remove_all(Checkpoint(out, 12));
    WriteFile(folder_ + "/" + out + "/latest", "checkpoint-6\n");
    Arguments arguments = {"train", "--out=" + folder_ + "/" + out, "--resume=latest"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }

  std::string folder_;
  int runs_ = 0;
};

class ResidualHomeTest : public ResidualResumeTest,
                         public testing::WithParamInterface<const char*> {};

TEST_P(ResidualHomeTest, ResumesBitForBitOnOtherServers) {
  const std::string home = absl::StrCat("--quantization.residual_home=", GetParam());
  const Result whole = Run(Train("whole", {home, "--servers=2", "--workers=2"}));
  ASSERT_EQ(whole.code, 0) << whole.out;
  const std::string expected = Digest("whole", 12);
  ASSERT_EQ(std::vector<std::string>(absl::StrSplit(expected, '\n')).size(), 4u) << expected;

  const Result parts =
      Run(Train("parts", {home, "--servers=2", "--workers=2", "--checkpoint.save_steps=6"}));
  ASSERT_EQ(parts.code, 0) << parts.out;
  EXPECT_EQ(Digest("parts", 12), expected) << "an intermediate checkpoint changes nothing";
  for (int part = 0; part < 3; ++part) {
    const std::string name = absl::StrCat("eps/residual-0000", part, ".safetensors");
    const auto file = SafetensorsReader::Open(Checkpoint("parts", 6) + "/" + name);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->entries().size(), 3u) << "only the inner layers are sparse";
    std::vector<float> values((*file)->entries()[0].elements());
    ASSERT_TRUE((*file)->Read((*file)->entries()[0], 0, values.size(), values.data()).ok());
    size_t left_out = 0;
    for (const float value : values) left_out += value != 0 ? 1 : 0;
    EXPECT_GT(left_out, values.size() / 2);
  }

  // One server less, fewer workers, and other chunk sizes. A layer is still one chunk, because topk
  // chooses within chunks.
  const Result resumed =
      ResumeAtSix("parts", {"--servers=1", "--workers=1", "--training.chunk_elements=16384"});
  ASSERT_EQ(resumed.code, 0) << resumed.out;
  EXPECT_TRUE(absl::StrContains(resumed.out, "training.chunk_elements")) << resumed.out;
  EXPECT_TRUE(absl::StrContains(resumed.out, "done: 6 steps")) << resumed.out;
  EXPECT_FALSE(absl::StrContains(resumed.out, "starts at zero")) << resumed.out;
  EXPECT_EQ(Digest("parts", 12), expected);
  ASSERT_EQ(Losses("whole").size(), 12u);
  EXPECT_EQ(Losses("parts"), Losses("whole"));

  // Without the residuals the same resume leads to other bits, and warns about it.
  CheckpointManifest manifest = *ReadManifest(Checkpoint("parts", 6));
  for (uint32_t part = 0; part < 3; ++part) manifest.files.erase(ResidualFile(part));
  WriteFile(Checkpoint("parts", 6) + "/" + kManifestFile, ManifestText(manifest));
  const Result without = ResumeAtSix("parts", {"--servers=2"});
  ASSERT_EQ(without.code, 0) << without.out;
  EXPECT_TRUE(absl::StrContains(without.out, "starts at zero: the checkpoint does not hold it"))
      << without.out;
  EXPECT_NE(Digest("parts", 12), expected);
}

TEST_P(ResidualHomeTest, AnInterruptLeavesACheckpointWithResiduals) {
  const std::string home = absl::StrCat("--quantization.residual_home=", GetParam());
  // The rate must not depend on the number of steps.
  const std::string constant = "--lr_scheduler.name=constant";
  const auto eps = Start(Train("o", {home, constant, "--training.steps=1000000", "--servers=2",
                                     "--metrics.log_every_steps=1"}),
                         /*read_stdout=*/true);
  ASSERT_TRUE(eps->WaitForLine("step: 4/", Clock::now() + kPatience).ok());
  eps->Signal(SIGINT);
  const auto checkpoint = eps->WaitForLine("checkpoint: ", Clock::now() + kPatience);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(CodeOf(eps.get()), 130) << ReadFile(eps->log_path());
  const std::string step = checkpoint->substr(checkpoint->rfind('-') + 1);
  // The checkpoint equals that of a run that ends at the same step.
  const Result ends = Run(Train("ends", {home, constant, "--training.steps=" + step}));
  ASSERT_EQ(ends.code, 0) << ends.out;
  EXPECT_EQ(Digest("o", std::stoi(step)), Digest("ends", std::stoi(step)));
}

INSTANTIATE_TEST_SUITE_P(Homes, ResidualHomeTest, testing::Values("server", "worker"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(ResidualResumeTest, NoResidualsWithoutErrorFeedback) {
  const Result run =
      Run(Train("o", {"--quantization.error_feedback=false", "--training.steps=2", "--servers=2"}));
  ASSERT_EQ(run.code, 0) << run.out;
  EXPECT_FALSE(fs::exists(Checkpoint("o", 2) + "/eps/residual-00000.safetensors"));
  const std::string digest = Digest("o", 2);
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(digest, '\n')).size(), 3u) << digest;
}

// Sends a checkpoint's state to three servers of a job whose layers are cut into four chunks, and
// writes the state that they then hold as another checkpoint. Returns the number of residuals
// without bytes.
size_t SendAndFetch(const CheckpointReader& reader, const std::string& out) {
  JobSpec spec = reader.spec();
  spec.training.steps = 12;
  spec.chunk_elements = 4096;
  const ChunkMap chunks = ChunkMap::Build(spec);
  EXPECT_GT(chunks.chunks().size(), 2 * ChunkMap::Build(reader.spec()).chunks().size());
  const auto residuals =
      ResidualImport::Create(reader.residuals_or_null(), reader.spec(), spec, chunks);
  EXPECT_TRUE(residuals.ok()) << residuals.status();
  EXPECT_EQ((*residuals)->note(), "");

  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::string> addresses;
  for (int i = 0; i < 3; ++i) {
    ServerOptions options;
    options.threads = 1;
    options.memory_limit_bytes = uint64_t{1} << 28;
    servers.push_back(*Server::Start(options));
    addresses.push_back(servers.back()->address());
  }
  const auto client = *ControlClient::Connect(addresses, Clock::now() + kPatience);
  const auto job = client->CreateJob(spec);
  EXPECT_TRUE(job.ok()) << job.status();
  const std::vector<ShardId> placement = chunks.Place(3);
  for (uint32_t s = 0; s < 3; ++s) {
    ControlClient::ImportSource source;
    source.border = reader.border();
    for (const Chunk& chunk : chunks.chunks()) {
      if (placement[chunk.id.value()] != ShardId(s)) continue;
      source.chunks.push_back(chunk.id);
      for (const ResidualPlace& place : (*residuals)->PlacesOf(chunk.id)) {
        source.residuals.push_back(place);
      }
    }
    EXPECT_FALSE(source.residuals.empty());
    source.read = [&](ChunkId id) { return reader.ReadChunk(spec, chunks.chunk(id)); };
    source.read_residual = [&](const ResidualPlace& place) { return (*residuals)->Read(place); };
    const absl::Status status = client->Import(ShardId(s), source);
    EXPECT_TRUE(status.ok()) << status;
  }

  size_t empty = 0;
  const auto writer = *CheckpointWriter::Create(out, reader.border().step, spec, chunks);
  for (uint32_t s = 0; s < 3; ++s) {
    const absl::Status status = client->Export(
        ShardId(s), reader.border().step, kPatience,
        [&](ChunkId chunk, const Border&, const ChunkState& state) {
          return writer->WriteChunk(chunk, state);
        },
        [&](const ResidualPlace& place, const std::string& encoded) {
          empty += encoded.empty() ? 1 : 0;
          return writer->WriteResidual(place, encoded);
        });
    EXPECT_TRUE(status.ok()) << status;
  }
  const absl::Status committed = writer->Commit(reader.border(), FilesOfJob(spec));
  EXPECT_TRUE(committed.ok()) << committed;
  return empty;
}

TEST_F(ResidualResumeTest, OtherChunksKeepTheSameResiduals) {
  const Result run = Run(Train("o", {"--training.steps=3", "--servers=2"}));
  ASSERT_EQ(run.code, 0) << run.out;
  const auto reader = CheckpointReader::Open(Checkpoint("o", 3));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(SendAndFetch(**reader, folder_ + "/again"), 0u);
  EXPECT_EQ(Digest("again", 3), Digest("o", 3));
}

TEST_F(ResidualResumeTest, NoResidualsDuringWarmUp) {
  const Result run =
      Run(Train("o", {"--training.steps=2", "--quantization.warmup_steps=5", "--servers=2"}));
  ASSERT_EQ(run.code, 0) << run.out;
  const auto reader = CheckpointReader::Open(Checkpoint("o", 2));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(SendAndFetch(**reader, folder_ + "/again"), 3u * 3 * 4) << "parts, layers, chunks";
  EXPECT_EQ(Digest("again", 2), Digest("o", 2));
}

}  // namespace
}  // namespace eps
