// Checkpoints of a model whose files hold its tensors otherwise than the job: under other names, in
// more dimensions, as several tensors, or not at all.

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "base/files/safetensors.h"
#include "base/job/initial_values.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/model_program.h"
#include "base/job/optimizers.h"
#include "base/testing/test_programs.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_export.h"
#include "checkpoint/initial_weights.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint32_t kRenamed = 1, kStacked = 7, kNew = 11, kTied = 0;

float ValueOf(uint32_t tensor, uint64_t element) {
  return static_cast<float>(tensor * 10000 + element % 9973);
}

class ExportedModelTest : public testing::Test {
 protected:
  ExportedModelTest() {
    root_ = absl::StrCat(testing::TempDir(), "/exported-", getpid());
    fs::remove_all(root_);
    json root = json::parse(LlamaProgram(LlamaShape()));
    json& tensors = root["tensors"];
    EXPECT_EQ(tensors[kRenamed]["shape"], json({32, 32}));
    tensors[kRenamed]["files"]["names"] = {"encoder.gamma"};
    EXPECT_EQ(tensors[kStacked]["shape"], json({32, 48}));
    tensors[kStacked]["shape"] = {2, 16, 48};
    tensors[kStacked]["files"] = {{"kind", "stack"},
                                  {"names", {"w.0.a", "w.0.b", "w.1.a", "w.1.b"}}};
    tensors[kNew]["files"] = {{"kind", "new"}, {"names", {"score.weight"}}};
    tensors[kTied]["aliases"] = {"also.called.weight"};
    tensors[3]["shape"] = {4, 4, 32};  // stored as 16 x 32
    spec_.model = ModelOf(root.dump());
    spec_.training.steps = 3;
    spec_.training.seq_len = 16;
    spec_.data.tokens = 1000;
    spec_.data.sha256 = std::string(64, 'a');
    // Panels of 32 rows of the stack cross the borders of its parts, of 8 rows each.
    spec_.chunk_elements = 1;
    EXPECT_TRUE(BuildLayout(0.01, &spec_).ok());
    EXPECT_TRUE(spec_.Validate().ok()) << spec_.Validate();
    chunks_ = ChunkMap::Build(spec_);
  }
  ~ExportedModelTest() override { fs::remove_all(root_); }

  std::string WriteCheckpoint() {
    auto writer = CheckpointWriter::Create(root_, 2, spec_, chunks_);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const Chunk& chunk : chunks_.chunks()) {
      EXPECT_TRUE((*writer)->WriteChunk(chunk.id, StateOf(chunk)).ok());
    }
    const SmallFiles of_model = {{"config.json", "{}"}, {"tokenizer.json", "mine"}};
    const absl::Status status = (*writer)->Commit({2, 2, 2, 1, 0}, FilesOfJob(spec_, of_model));
    EXPECT_TRUE(status.ok()) << status;
    return root_ + "/checkpoint-2";
  }

  // The weights are ValueOf, the fields of the optimizer 1 and 2 more.
  ChunkState StateOf(const Chunk& chunk) const {
    const size_t fields = 1 + StateFields(spec_.optimizer).size();
    std::vector<float> values(fields * chunk.elements);
    for (size_t f = 0; f < fields; ++f) {
      for (const Segment& s : chunk.segments) {
        for (uint64_t i = 0; i < s.elements(); ++i) {
          values[f * chunk.elements + s.offset + i] =
              ValueOf(s.tensor.value(), s.tensor_offset + i) + static_cast<float>(f);
        }
      }
    }
    return ChunkState(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }

  std::string root_;
  JobSpec spec_;
  ChunkMap chunks_;
};

TEST_F(ExportedModelTest, WeightsHaveTheNamesOfTheirFiles) {
  const std::string folder = WriteCheckpoint();
  const auto weights = SafetensorsReader::Open(folder + "/model.safetensors");
  ASSERT_TRUE(weights.ok()) << weights.status();
  const struct {
    const char* name;
    std::vector<uint64_t> shape;
    uint32_t tensor;
    uint64_t first;
  } cases[] = {
      {"encoder.gamma", {32, 32}, kRenamed, 0},
      {"w.0.a", {8, 48}, kStacked, 0},
      {"w.1.a", {8, 48}, kStacked, 2 * 8 * 48},
      {"score.weight", {16, 32}, kNew, 0},
      {"model.layers.0.self_attn.v_proj.weight", {4, 4, 32}, 3, 0},
  };
  for (const auto& c : cases) {
    const auto entry = (*weights)->Find(c.name);
    ASSERT_TRUE(entry.ok()) << c.name;
    EXPECT_EQ((*entry)->shape, c.shape) << c.name;
    std::vector<float> values((*entry)->elements());
    ASSERT_TRUE((*weights)->Read(**entry, 0, values.size(), values.data()).ok());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], ValueOf(c.tensor, c.first + i)) << c.name << " " << i;
    }
  }
  EXPECT_FALSE((*weights)->Find(spec_.tensors[kStacked].name).ok());
  EXPECT_FALSE((*weights)->Find("also.called.weight").ok());
  // The optimizer's state has the job's names and shapes.
  const auto state = SafetensorsReader::Open(folder + "/eps/exp_avg.safetensors");
  ASSERT_TRUE(state.ok());
  EXPECT_EQ((*(*state)->Find(spec_.tensors[kStacked].name))->shape,
            (std::vector<uint64_t>{32, 48}));
}

TEST_F(ExportedModelTest, ReadsBackEveryBit) {
  const std::string folder = WriteCheckpoint();
  const auto reader = CheckpointReader::Open(folder);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->spec().ToText(), spec_.ToText());
  for (const Chunk& chunk : chunks_.chunks()) {
    const auto state = (*reader)->ReadChunk(spec_, chunk);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_TRUE(*state == StateOf(chunk)) << chunk.id;
  }
  const auto text = ReadTextFile(folder + "/tokenizer.json");
  EXPECT_EQ(*text, "mine");
  EXPECT_EQ(*ReadTextFile(folder + "/eps/program.json"), spec_.model.program->text);
}

TEST_F(ExportedModelTest, ExportsToShardsAndReadsThem) {
  ExportOptions options;
  options.checkpoint = WriteCheckpoint();
  options.out = root_ + "/plain";
  options.max_shard_bytes = 3000;
  const auto summary = ExportCheckpoint(options);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->tensors, spec_.tensors.size() + 3);
  const auto reader = WeightsReader::Open(options.out, spec_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->notes().empty());
  for (uint32_t t = 0; t < spec_.tensors.size(); ++t) {
    std::vector<float> values(spec_.tensors[t].elements() - 5);
    ASSERT_TRUE((*reader)->Read(TensorId(t), 5, values.size(), values.data()).ok());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], ValueOf(t, i + 5)) << t;
  }
}

// Writes the files of a model that somebody else saved.
std::string WriteWeights(const std::string& folder, const WeightLayout& layout,
                         const std::string& without, float alias) {
  fs::create_directories(folder);
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsEntry& entry : layout.entries()) {
    if (entry.name != without) entries.push_back(entry);
  }
  SafetensorsEntry copy = layout.entries()[layout.first_entry(TensorId(kTied))];
  copy.name = "also.called.weight";
  entries.push_back(copy);
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors", entries);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (size_t e = 0; e < entries.size(); ++e) {
    std::vector<float> values(entries[e].elements(), 0.5f);
    if (e + 1 == entries.size()) values[3] = alias;
    EXPECT_TRUE((*writer)->Write(e, 0, values).ok());
  }
  EXPECT_TRUE((*writer)->Finish().ok());
  return folder;
}

TEST_F(ExportedModelTest, NewTensorsBeginWithTheirInitialValues) {
  const std::string folder =
      WriteWeights(root_ + "/new", WeightLayout(spec_), "score.weight", 0.5f);
  const auto reader = WeightsReader::Open(folder, spec_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ((*reader)->notes().size(), 1u);
  EXPECT_TRUE(absl::StrContains((*reader)->notes()[0], "score.weight")) << (*reader)->notes()[0];
  std::vector<float> found(100), expected(100);
  ASSERT_TRUE((*reader)->Read(TensorId(kNew), 7, 100, found.data()).ok());
  FillInitialValues(spec_, TensorId(kNew), 7, absl::MakeSpan(expected));
  EXPECT_EQ(found, expected);
}

TEST_F(ExportedModelTest, RefusesAMissingPartAndAnotherCopy) {
  const WeightLayout layout(spec_);
  const absl::Status missing =
      WeightsReader::Open(WriteWeights(root_ + "/part", layout, "w.1.a", 0.5f), spec_).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(missing.message(), "w.1.a")) << missing;
  const absl::Status other =
      WeightsReader::Open(WriteWeights(root_ + "/tie", layout, "", 0.25f), spec_).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(other.message(), "also.called.weight differs at element 3"))
      << other;
}

}  // namespace
}  // namespace eps
