// Exports of checkpoints of a model with LoRA adapters. The oracle lora_test compares them with
// peft.

#include "checkpoint/weights/lora_weights.h"

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "base/files/safetensors.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/model_program.h"
#include "base/testing/test_programs.h"
#include "checkpoint/checkpoint_export.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kLayer[] = "model.layers.0.self_attn.q_proj";
constexpr uint32_t kRank = 16;
constexpr uint32_t kWidth = 32;
constexpr double kAlpha = 8;

// Whole numbers, whose sums of products are exact.
float ValueOf(uint32_t tensor, uint64_t element) {
  return static_cast<float>((tensor * 31 + element * 7) % 23) - 11.0f;
}

class LoraWeightsTest : public testing::Test {
 protected:
  // W is that of kLayer. The tensors of k_proj and v_proj become its adapter, and all others but
  // the last one are frozen.
  LoraWeightsTest() {
    root_ = absl::StrCat(testing::TempDir(), "/lora-", getpid());
    fs::remove_all(root_);
    program_ = json::parse(LlamaProgram(LlamaShape()));
    json& tensors = program_["tensors"];
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const std::string name = tensors[t]["name"];
      if (name == absl::StrCat(kLayer, ".weight")) w_ = t;
      if (name == "model.layers.0.self_attn.k_proj.weight") a_ = t;
      if (name == "model.layers.0.self_attn.v_proj.weight") b_ = t;
    }
    Rename(a_, absl::StrCat(kLayer, kLoraA), {kRank, kWidth});
    Rename(b_, absl::StrCat(kLayer, kLoraB), {kWidth, kRank});
    program_["lora"] = {{"r", kRank}, {"alpha", kAlpha}, {"dropout", 0.0}, {"targets", {"q_proj"}}};
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      if (t != a_ && t != b_) tensors[t]["frozen"] = true;
    }
  }
  ~LoraWeightsTest() override { fs::remove_all(root_); }

  void Rename(uint32_t tensor, const std::string& name, std::vector<uint32_t> shape) {
    json& renamed = program_["tensors"][tensor];
    renamed["name"] = name;
    renamed["shape"] = shape;
    renamed["files"]["names"] = {name};
  }

  // Writes a checkpoint whose weights are ValueOf.
  void WriteCheckpoint() {
    JobSpec spec;
    spec.model = ModelOf(program_.dump());
    spec.training.steps = 3;
    spec.training.seq_len = 16;
    spec.data.tokens = 1000;
    spec.data.sha256 = std::string(64, 'a');
    spec.chunk_elements = 1000;
    ASSERT_TRUE(BuildLayout(0.01, &spec).ok());
    ASSERT_TRUE(spec.Validate().ok()) << spec.Validate();
    const ChunkMap chunks = ChunkMap::Build(spec);
    auto writer = CheckpointWriter::Create(root_, 2, spec, chunks);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const Chunk& chunk : chunks.chunks()) {
      std::vector<float> values(StateBytes(spec, chunk) / sizeof(float));
      for (const Segment& s : chunk.segments) {
        for (uint64_t i = 0; i < s.elements(); ++i) {
          values[s.offset + i] = ValueOf(s.tensor.value(), s.tensor_offset + i);
        }
      }
      const ChunkState state(reinterpret_cast<const char*>(values.data()),
                             values.size() * sizeof(float));
      ASSERT_TRUE((*writer)->WriteChunk(chunk.id, state).ok());
    }
    const SmallFiles of_model = {{"config.json", "{}"}, {"tokenizer.json", "mine"}};
    const absl::Status status = (*writer)->Commit({2, 2, 2, 1, 0}, FilesOfJob(spec, of_model));
    ASSERT_TRUE(status.ok()) << status;
  }

  absl::Status Export(bool merge) {
    ExportOptions options;
    options.checkpoint = root_ + "/checkpoint-2";
    options.out = root_ + "/out";
    options.merge = merge;
    return ExportCheckpoint(options).status();
  }

  // The elements of an exported tensor.
  std::vector<float> Exported(const std::string& file, const std::string& name) const {
    const auto reader = SafetensorsReader::Open(root_ + "/out/" + file);
    EXPECT_TRUE(reader.ok()) << reader.status();
    const auto entry = (*reader)->Find(name);
    EXPECT_TRUE(entry.ok()) << entry.status();
    std::vector<float> values((*entry)->elements());
    EXPECT_TRUE((*reader)->Read(**entry, 0, values.size(), values.data()).ok());
    return values;
  }

  // Returns row `out`, column `in` of B A * alpha / r.
  double AdapterAt(uint32_t out, uint32_t in) const {
    double sum = 0;
    for (uint32_t k = 0; k < kRank; ++k) {
      sum += static_cast<double>(ValueOf(b_, out * kRank + k)) * ValueOf(a_, k * kWidth + in);
    }
    return sum * kAlpha / kRank;
  }

  // Exports merged weights; W must be what it was with `added` in each place.
  void ExpectMerged(const std::function<double(uint32_t row, uint32_t col)>& added) {
    const absl::Status status = Export(/*merge=*/true);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<float> merged =
        Exported("model.safetensors", absl::StrCat(kLayer, ".weight"));
    for (uint32_t i = 0; i < kWidth * kWidth; ++i) {
      ASSERT_EQ(merged[i], static_cast<float>(ValueOf(w_, i) + added(i / kWidth, i % kWidth))) << i;
    }
  }

  std::string root_;
  json program_;
  uint32_t w_ = 0, a_ = 0, b_ = 0;  // tensors
};

TEST_F(LoraWeightsTest, MergedWeightsHaveTheAdapterAdded) {
  WriteCheckpoint();
  ExpectMerged([this](uint32_t row, uint32_t col) { return AdapterAt(row, col); });
  const auto reader = SafetensorsReader::Open(root_ + "/out/model.safetensors");
  EXPECT_FALSE((*reader)->Find(absl::StrCat(kLayer, kLoraA)).ok());
  EXPECT_TRUE(fs::exists(root_ + "/out/config.json"));
}

TEST_F(LoraWeightsTest, AnInOutMatrixIsTransposed) {
  for (json& stage : program_["stages"]) {
    for (json& use : stage["uses"]) {
      if (use["tensor"] == w_) use["role"] = "linear_in_out";
    }
  }
  WriteCheckpoint();
  ExpectMerged([this](uint32_t row, uint32_t col) { return AdapterAt(col, row); });
}

TEST_F(LoraWeightsTest, AdaptersHaveTheNamesOfPeft) {
  WriteCheckpoint();
  const absl::Status status = Export(/*merge=*/false);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> a = Exported(
      "adapter_model.safetensors", absl::StrCat("base_model.model.", kLayer, ".lora_A.weight"));
  for (uint64_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], ValueOf(a_, i)) << i;
  const auto text = ReadTextFile(root_ + "/out/adapter_config.json");
  ASSERT_TRUE(text.ok()) << text.status();
  const json config = json::parse(*text);
  EXPECT_EQ(config["r"], kRank);
  EXPECT_EQ(config["lora_alpha"], kAlpha);
  EXPECT_EQ(config["fan_in_fan_out"], false);
  EXPECT_FALSE(fs::exists(root_ + "/out/config.json"));
  EXPECT_TRUE(fs::exists(root_ + "/out/tokenizer.json"));
}

TEST_F(LoraWeightsTest, AdaptersAloneWouldLoseAnotherTrainedTensor) {
  json& head = program_["tensors"].back();
  head.erase("frozen");
  WriteCheckpoint();
  const absl::Status status = Export(/*merge=*/false);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), head["name"].get<std::string>())) << status;
  EXPECT_TRUE(Export(/*merge=*/true).ok());
}

TEST_F(LoraWeightsTest, NamesAMatrixWithoutItsAdapter) {
  Rename(b_, "model.layers.0.self_attn.v_proj.weight", {kWidth, kRank});
  WriteCheckpoint();
  const absl::Status status = Export(/*merge=*/true);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "expected adapters [r, 32] and [32, r]"))
      << status;
}

}  // namespace
}  // namespace eps
