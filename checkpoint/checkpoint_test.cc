#include "checkpoint/checkpoint.h"
#include "base/job/optimizers.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;

// A state in which every float of the job tells its tensor, place and field.
ChunkState StateOf(const Chunk& chunk, int salt = 0, int fields = 3) {
  std::vector<float> values(chunk.elements * fields);
  for (int field = 0; field < fields; ++field) {
    for (const Segment& s : chunk.segments) {
      for (uint64_t i = 0; i < s.elements(); ++i) {
        values[field * chunk.elements + s.offset + i] = static_cast<float>(
            field * 0.25 + s.tensor.value() * 100000.0 + (s.tensor_offset + i) + salt);
      }
    }
  }
  return ChunkState(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : spec_(TinyGpt2Spec()), chunks_(ChunkMap::Build(spec_)) {
    root_ =
        absl::StrCat(testing::TempDir(), "/checkpoints-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    fs::remove_all(root_);
  }
  ~CheckpointTest() override { fs::remove_all(root_); }

  absl::Status Write(uint64_t step, int salt = 0, const ChunkId* leave_out = nullptr,
                     const CheckpointOrigin& origin = {}) {
    auto writer = CheckpointWriter::Create(root_, step, spec_, chunks_);
    if (!writer.ok()) return writer.status();
    for (const Chunk& chunk : chunks_.chunks()) {
      if (leave_out != nullptr && chunk.id == *leave_out) continue;
      const int fields = 1 + static_cast<int>(StateFields(spec_.optimizer).size());
      const absl::Status status = (*writer)->WriteChunk(chunk.id, StateOf(chunk, salt, fields));
      if (!status.ok()) return status;
    }
    const Border border = {step, step - 1, step - 1, 2, 0.1 + 0.2};
    return (*writer)->Commit(border, FilesOfJob(spec_), origin);
  }
  std::string Read(const std::string& name) {
    const auto text = ReadTextFile(root_ + "/" + name);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? *text : "";
  }

  JobSpec spec_;
  ChunkMap chunks_;
  std::string root_;
};

TEST_F(CheckpointTest, ReadsBackEveryBitWithOtherChunks) {
  ASSERT_TRUE(Write(9).ok());
  EXPECT_EQ(Read("latest"), "checkpoint-9\n");
  const auto reader = CheckpointReader::Open(root_ + "/checkpoint-9");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->border().step, 9u);
  EXPECT_EQ((*reader)->border().version, 8u);
  EXPECT_EQ((*reader)->border().update, 8u);
  EXPECT_EQ((*reader)->border().term, 2u);
  EXPECT_EQ((*reader)->border().lagged_norm, 0.1 + 0.2);
  EXPECT_EQ((*reader)->spec().ToText(), spec_.ToText());

  JobSpec other = spec_;
  other.chunk_elements = spec_.chunk_elements / 4;
  const ChunkMap other_chunks = ChunkMap::Build(other);
  ASSERT_NE(other_chunks.chunks().size(), chunks_.chunks().size());
  ASSERT_TRUE((*reader)->CheckFits(other).ok());
  for (const ChunkMap* chunks : std::vector<const ChunkMap*>{&chunks_, &other_chunks}) {
    for (const Chunk& chunk : chunks->chunks()) {
      const auto state = (*reader)->ReadChunk(other, chunk);
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_TRUE(*state == StateOf(chunk)) << chunk.id;
    }
  }
}

// The rule D7 of docs/protocol.md.
TEST_F(CheckpointTest, ARefusedCheckpointGetsNoName) {
  ASSERT_TRUE(Write(9).ok());
  CheckpointOrigin origin;
  origin.driver = {1, 5};
  origin.confirm = [this] {
    EXPECT_TRUE(fs::exists(root_ + "/.checkpoint-10.tmp/eps/manifest.json")) << "it is complete";
    return absl::AbortedError("the lease is over");
  };
  EXPECT_EQ(Write(10, 0, nullptr, origin).code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(fs::exists(root_ + "/checkpoint-10"));
  EXPECT_EQ(Read("latest"), "checkpoint-9\n");
  origin.confirm = [] { return absl::OkStatus(); };
  ASSERT_TRUE(Write(10, 0, nullptr, origin).ok());
  EXPECT_EQ(Read("latest"), "checkpoint-10\n");
  const auto manifest = ReadManifest(root_ + "/checkpoint-10");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->driver, origin.driver);
}

TEST_F(CheckpointTest, HoldsTheFilesThatHuggingFaceLoads) {
  ASSERT_TRUE(Write(3).ok());
  const auto weights = SafetensorsReader::Open(root_ + "/checkpoint-3/model.safetensors");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->entries().size(), spec_.tensors.size());
  EXPECT_EQ((*weights)->metadata().at("format"), "pt");
  EXPECT_TRUE((*weights)->Find("transformer.wte.weight").ok());
  EXPECT_FALSE((*weights)->Find("lm_head.weight").ok()) << "a tied tensor is stored once";
  const auto bias = (*weights)->Find("transformer.h.0.ln_1.bias");
  ASSERT_TRUE(bias.ok());
  EXPECT_EQ((*bias)->shape.size(), 1u);

  EXPECT_EQ(nlohmann::json::parse(Read("checkpoint-3/config.json"))["model_type"], "gpt2");
  EXPECT_TRUE(nlohmann::json::parse(Read("checkpoint-3/generation_config.json")).is_object());
  const auto manifest = nlohmann::json::parse(Read("checkpoint-3/eps/manifest.json"));
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors",
                           "tokenizer.json", "tokenizer_config.json", "eps/exp_avg.safetensors",
                           "eps/exp_avg_sq.safetensors", "eps/job_spec.txt"}) {
    ASSERT_TRUE(manifest["files"].contains(name)) << name;
    EXPECT_EQ(manifest["files"][name]["bytes"], fs::file_size(root_ + "/checkpoint-3/" + name));
    EXPECT_EQ(manifest["files"][name]["sha256"].get<std::string>(),
              ToHex(Sha256Of(Read(absl::StrCat("checkpoint-3/", name)))));
  }
}

TEST_F(CheckpointTest, HoldsOnlyTheFieldsOfTheOptimizer) {
  for (const double momentum : {0.0, 0.9}) {
    SCOPED_TRACE(momentum);
    fs::remove_all(root_);
    spec_.optimizer = OptimizerSpec();
    spec_.optimizer.name = OptimizerName::kSgd;
    spec_.optimizer.momentum = momentum;
    const int arrays = momentum > 0 ? 2 : 1;
    ASSERT_TRUE(Write(4).ok());
    EXPECT_EQ(fs::exists(root_ + "/checkpoint-4/eps/momentum_buffer.safetensors"), momentum > 0);
    EXPECT_FALSE(fs::exists(root_ + "/checkpoint-4/eps/exp_avg.safetensors"));
    const auto reader = CheckpointReader::Open(root_ + "/checkpoint-4");
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (const Chunk& chunk : chunks_.chunks()) {
      const auto state = (*reader)->ReadChunk(spec_, chunk);
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_TRUE(*state == StateOf(chunk, 0, arrays));
    }
    EXPECT_TRUE((*reader)->CheckFits(spec_).ok());
    JobSpec other = spec_;
    other.optimizer.momentum = 0.9 - momentum;  // with one field more, or one less
    const absl::Status status = (*reader)->CheckFits(other);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(status.message(), "optimizer.momentum")) << status;
  }
}

TEST_F(CheckpointTest, AStateBelongsToOnePlugin) {
  spec_.optimizer.name = OptimizerName::kPlugin;
  spec_.optimizer.plugin = {"rmsprop", std::string(64, 'a'), {"square_avg"}, {{"alpha", 0.5}}};
  ASSERT_TRUE(Write(4).ok());
  EXPECT_TRUE(fs::exists(root_ + "/checkpoint-4/eps/square_avg.safetensors"));
  const auto reader = CheckpointReader::Open(root_ + "/checkpoint-4");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->spec().optimizer.plugin, spec_.optimizer.plugin);
  JobSpec rebuilt = spec_;
  rebuilt.optimizer.plugin.sha256 = std::string(64, 'b');
  rebuilt.optimizer.plugin.parameters[0].second = 0.25;
  EXPECT_TRUE((*reader)->CheckFits(rebuilt).ok()) << (*reader)->CheckFits(rebuilt);
  JobSpec other = spec_;
  other.optimizer.plugin.name = "other";
  const absl::Status status = (*reader)->CheckFits(other);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "plug-in updater rmsprop, and")) << status;
}

TEST_F(CheckpointTest, TheTokenizerMapsEveryByteToItself) {
  const std::string text = FilesOfJob(spec_).at("tokenizer.json");
  const auto tokenizer = nlohmann::json::parse(text);
  const auto& vocabulary = tokenizer["model"]["vocab"];
  ASSERT_EQ(vocabulary.size(), 256u);
  EXPECT_EQ(vocabulary["A"], 65);
  EXPECT_EQ(vocabulary["\u0120"], 32) << "a space is shown as G with a dot above";
  EXPECT_EQ(vocabulary["\u010a"], 10);
  EXPECT_EQ(vocabulary["\u0100"], 0);
  EXPECT_EQ(vocabulary["\u0143"], 0xad) << "the last one that is not printable";
  EXPECT_EQ(vocabulary["\u00ff"], 255);
}

TEST_F(CheckpointTest, AnIncompleteStateLeavesNothingBehind) {
  const ChunkId left_out = chunks_.chunks()[1].id;
  const absl::Status status = Write(5, 0, &left_out);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(fs::is_empty(root_)) << "neither a folder nor `latest` may appear";
  auto writer = CheckpointWriter::Create(root_, 5, spec_, chunks_);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->WriteChunk(left_out, "short").code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, ReplacesOlderOnesAndRemovesLeftovers) {
  ASSERT_TRUE(Write(5, /*salt=*/1).ok());
  std::ofstream(root_ + "/checkpoint-5/stray") << "of the older one";
  fs::create_directories(root_ + "/.checkpoint-4.tmp/eps");
  ASSERT_TRUE(Write(5, /*salt=*/2).ok());
  EXPECT_FALSE(fs::exists(root_ + "/checkpoint-5/stray"));
  EXPECT_FALSE(fs::exists(root_ + "/.checkpoint-4.tmp"));
  EXPECT_FALSE(fs::exists(root_ + "/.checkpoint-5.tmp"));
  const auto reader = CheckpointReader::Open(root_ + "/checkpoint-5");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(*(*reader)->ReadChunk(spec_, chunks_.chunks()[0]) == StateOf(chunks_.chunks()[0], 2));
}

TEST_F(CheckpointTest, NamesTheFileWithAFlippedBit) {
  for (const std::string name : {"model.safetensors", "eps/exp_avg.safetensors", "config.json",
                                 "eps/exp_avg_sq.safetensors", "eps/job_spec.txt"}) {
    ASSERT_TRUE(Write(5).ok());
    const std::string path = root_ + "/checkpoint-5/" + name;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(fs::file_size(path) / 2));
    const char byte = static_cast<char>(file.peek());
    file.seekp(static_cast<std::streamoff>(fs::file_size(path) / 2));
    file.put(static_cast<char>(byte ^ 4));
    file.close();
    const absl::Status status = CheckpointReader::Open(root_ + "/checkpoint-5").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), name)) << status;
  }
}

TEST_F(CheckpointTest, RefusesMissingShortAndForeignFiles) {
  ASSERT_TRUE(Write(5).ok());
  const std::string folder = root_ + "/checkpoint-5";
  fs::resize_file(folder + "/model.safetensors", 100);
  EXPECT_EQ(CheckpointReader::Open(folder).status().code(), absl::StatusCode::kDataLoss);
  fs::remove(folder + "/model.safetensors");
  EXPECT_EQ(CheckpointReader::Open(folder).status().code(), absl::StatusCode::kDataLoss);
  for (const std::string manifest :
       {"", "{}", "[]", "{\"format\":\"eps-checkpoint\"}", "not json",
        R"({"format":"eps-checkpoint","format_version":2,"step":1,"version":1,"update":1,)"
        R"("term":1,"lagged_norm":0,"files":{}})",
        R"({"format":"eps-checkpoint","format_version":1,"step":1,"version":1,"update":1,)"
        R"("term":1,"lagged_norm":0,"files":{}})",
        R"({"format":"eps-checkpoint","format_version":1,"step":1,"version":1,"update":1,)"
        R"("term":1,"lagged_norm":0,"files":{"../../x":{"bytes":1,"crc32c":"","sha256":""}}})"}) {
    std::ofstream(folder + "/eps/manifest.json", std::ios::trunc) << manifest;
    EXPECT_EQ(CheckpointReader::Open(folder).status().code(), absl::StatusCode::kDataLoss)
        << manifest;
  }
  EXPECT_EQ(CheckpointReader::Open(root_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, RefusesAnotherModelByDifferingLine) {
  ASSERT_TRUE(Write(5).ok());
  const auto reader = CheckpointReader::Open(root_ + "/checkpoint-5");
  ASSERT_TRUE(reader.ok());
  const absl::Status status = (*reader)->CheckFits(TinySyntheticSpec());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "model")) << status;
}

}  // namespace
}  // namespace eps
