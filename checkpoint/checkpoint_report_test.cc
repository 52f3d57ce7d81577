#include "checkpoint/checkpoint_report.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/files/safetensors_folder.h"
#include "base/testing/test_specs.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_export.h"
#include "checkpoint/checkpoint_folders.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;

class CheckpointReportTest : public testing::Test {
 protected:
  CheckpointReportTest() : spec_(TinyGpt2Spec()) {
    root_ =
        absl::StrCat(testing::TempDir(), "/report-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    fs::remove_all(root_);
  }
  ~CheckpointReportTest() override { fs::remove_all(root_); }

  // The values of a tensor in one field of the state: 0 the weights.
  std::vector<float> ValuesOf(size_t field, size_t tensor) const {
    std::vector<float> values(spec_.tensors[tensor].elements());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = scale_ * static_cast<float>((tensor * 37 + field * 11 + i) % 4099) / 64;
    }
    return values;
  }

  // Writes root_/checkpoint-<step>, in chunks of the job's size.
  void Write(uint64_t step) {
    const ChunkMap chunks = ChunkMap::Build(spec_);
    auto writer = CheckpointWriter::Create(root_, step, spec_, chunks);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const Chunk& chunk : chunks.chunks()) {
      std::vector<float> state(StateBytes(spec_, chunk) / sizeof(float));
      for (size_t field = 0; field < StateFiles(spec_).size(); ++field) {
        for (const Segment& s : chunk.segments) {
          const std::vector<float> values = ValuesOf(field, s.tensor.value());
          std::memcpy(&state[field * chunk.elements + s.offset], &values[s.tensor_offset],
                      s.elements() * sizeof(float));
        }
      }
      ASSERT_TRUE((*writer)
                      ->WriteChunk(chunk.id, ChunkState(reinterpret_cast<const char*>(state.data()),
                                                        state.size() * sizeof(float)))
                      .ok());
    }
    SmallFiles files = FilesOfJob(spec_);
    files["trainer_state.json"] = "{}";
    files["eps/config.yaml"] = "model:\n";
    ASSERT_TRUE((*writer)->Commit({step, step, step, 1, 0.5}, files).ok());
  }
  std::string Checkpoint(uint64_t step) const { return absl::StrCat(root_, "/checkpoint-", step); }

  absl::StatusOr<ExportSummary> Export(const std::string& dtype, uint64_t shard_bytes) const {
    ExportOptions options;
    options.checkpoint = Checkpoint(5);
    options.out = root_ + "/out";
    options.dtype = dtype;
    options.max_shard_bytes = shard_bytes;
    return ExportCheckpoint(options);
  }

  // Puts a file in the place of one of a checkpoint and makes the manifest agree.
  void Forge(const std::string& name, const std::string& content) {
    std::ofstream(Checkpoint(5) + "/" + name, std::ios::binary | std::ios::trunc) << content;
    auto manifest = *ReadManifest(Checkpoint(5));
    manifest.files[name] = *SumFile(Checkpoint(5) + "/" + name);
    std::ofstream(Checkpoint(5) + "/" + kManifestFile, std::ios::trunc) << ManifestText(manifest);
  }

  void ExpectDamage(const std::string& says) {
    std::string report;
    const absl::Status status = VerifyCheckpoint(Checkpoint(5), &report);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), says)) << says << ": " << status;
  }

  JobSpec spec_;
  float scale_ = 1;
  std::string root_;
};

TEST_F(CheckpointReportTest, DigestsFloatsInTheSpecsOrder) {
  Write(5);
  Sha256 weights, state;
  for (size_t field = 0; field < 3; ++field) {
    for (size_t t = 0; t < spec_.tensors.size(); ++t) {
      const std::vector<float> values = ValuesOf(field, t);
      const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                    values.size() * sizeof(float));
      (field == 0 ? weights : state).Update(bytes);
    }
  }
  const std::string expected = absl::StrCat("weights sha256:", ToHex(weights.Finish()),
                                            "\nstate sha256:", ToHex(state.Finish()), "\n");
  const auto digest = CheckpointDigest(Checkpoint(5));
  ASSERT_TRUE(digest.ok()) << digest.status();
  EXPECT_EQ(*digest, expected);
  spec_.chunk_elements /= 4;
  Write(6);
  EXPECT_EQ(*CheckpointDigest(Checkpoint(6)), expected) << "chunks are no part of it";
  // What is exported has the same weights, however it is cut into files.
  for (const uint64_t shard_bytes : {uint64_t{1} << 40, uint64_t{100'000}, uint64_t{1}}) {
    fs::remove_all(root_ + "/out");
    ASSERT_TRUE(Export("f32", shard_bytes).ok());
    const auto exported = CheckpointDigest(root_ + "/out");
    ASSERT_TRUE(exported.ok()) << exported.status();
    EXPECT_EQ(*exported + "state ", expected.substr(0, expected.find("state ") + 6)) << shard_bytes;
  }
  scale_ = 2;
  Write(7);
  EXPECT_NE(*CheckpointDigest(Checkpoint(7)), expected);
}

TEST_F(CheckpointReportTest, ExportsShardsThatFitAndAnIndex) {
  Write(5);
  const uint64_t limit = 100'000;  // the embedding alone is 65,536 bytes
  const auto summary = Export("f32", limit);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_GT(summary->shards, 2u);
  EXPECT_EQ(summary->elements, spec_.total_elements());
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(root_ + "/out")) {
    names.insert(entry.path().filename().string());
  }
  for (uint64_t s = 1; s <= summary->shards; ++s) {
    const std::string name =
        absl::StrCat("model-0000", s, "-of-0000", summary->shards, ".safetensors");
    EXPECT_EQ(names.erase(name), 1u) << name;
    const auto shard = SafetensorsReader::Open(root_ + "/out/" + name);
    ASSERT_TRUE(shard.ok()) << shard.status();
    uint64_t bytes = 0;
    for (const SafetensorsEntry& entry : (*shard)->entries()) bytes += entry.bytes;
    EXPECT_TRUE(bytes <= limit || (*shard)->entries().size() == 1) << name << ": " << bytes;
  }
  EXPECT_EQ(names, (std::set<std::string>{"config.json", "generation_config.json",
                                          "model.safetensors.index.json", "tokenizer.json",
                                          "tokenizer_config.json"}));
  const auto index =
      nlohmann::json::parse(*ReadTextFile(root_ + "/out/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], spec_.total_elements() * 4);
  EXPECT_EQ(index["weight_map"].size(), spec_.tensors.size());
  EXPECT_FALSE(fs::exists(root_ + "/.out.eps-export.tmp"));
}

TEST_F(CheckpointReportTest, ExportsRoundedFloatsAndTheirDtype) {
  Write(5);
  struct Case {
    std::string dtype, in_file, in_config;
    float step;  // between neighbours of the largest values here, 32 to 64
  };
  for (const Case& c :
       {Case{"bf16", "BF16", "bfloat16", 0.25f}, Case{"f16", "F16", "float16", 0.03125f}}) {
    fs::remove_all(root_ + "/out");
    const auto summary = Export(c.dtype, uint64_t{1} << 40);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->bytes, spec_.total_elements() * 2);
    const auto folder = SafetensorsFolder::Open(root_ + "/out");
    ASSERT_TRUE(folder.ok()) << folder.status();
    for (size_t t = 0; t < spec_.tensors.size(); ++t) {
      const auto tensor = (*folder)->Find(spec_.tensors[t].name);
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      EXPECT_EQ(tensor->entry->dtype, c.in_file);
      const std::vector<float> exact = ValuesOf(0, t);
      std::vector<float> found(exact.size());
      ASSERT_TRUE(tensor->Read(0, found.size(), found.data()).ok());
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_LE(std::abs(found[i] - exact[i]), exact[i] < 64 ? c.step / 2 : c.step) << t;
      }
    }
    const auto config = nlohmann::json::parse(*ReadTextFile(root_ + "/out/config.json"));
    EXPECT_EQ(config["torch_dtype"], c.in_config);
    EXPECT_EQ(config["model_type"], "gpt2");
  }
}

TEST_F(CheckpointReportTest, ARefusedExportLeavesNothing) {
  scale_ = 2000;  // beyond what a half can hold
  Write(5);
  absl::Status status = Export("f16", 1'000'000).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "too large for F16; export with --dtype=bf16"))
      << status;
  EXPECT_FALSE(fs::exists(root_ + "/out"));
  EXPECT_FALSE(fs::exists(root_ + "/.out.eps-export.tmp"));
  EXPECT_EQ(Export("fp8", 1'000'000).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Export("f32", 0).status().code(), absl::StatusCode::kInvalidArgument);
  fs::create_directories(root_ + "/out");
  EXPECT_TRUE(Export("bf16", 1'000'000).ok()) << "an empty folder may be there";
  std::ofstream(root_ + "/out/mine") << "of the user";
  status = Export("f32", 1'000'000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_TRUE(fs::exists(root_ + "/out/mine"));
}

TEST_F(CheckpointReportTest, VerifyReadsEveryByteAndNamesDamage) {
  Write(5);
  std::string report;
  ASSERT_TRUE(VerifyCheckpoint(Checkpoint(5), &report).ok()) << report;
  EXPECT_TRUE(absl::StrContains(report, "ok: step 5, ")) << report;
  const auto manifest = *ReadManifest(Checkpoint(5));
  ASSERT_GE(manifest.files.size(), 10u);
  for (const auto& [name, sums] : manifest.files) {
    const std::string path = Checkpoint(5) + "/" + name;
    const std::string good = *ReadTextFile(path);
    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    for (const std::string& content : {bad, good + "x", good.substr(1)}) {
      std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
      ExpectDamage(name);
    }
    fs::remove(path);
    ExpectDamage(name + " is missing");
    std::ofstream(path, std::ios::binary | std::ios::trunc) << good;
  }
  EXPECT_TRUE(VerifyCheckpoint(Checkpoint(5), &report).ok());
  auto crc = manifest;
  crc.files["config.json"].crc32c ^= 1;
  std::ofstream(Checkpoint(5) + "/" + kManifestFile, std::ios::trunc) << ManifestText(crc);
  ExpectDamage("config.json: CRC32C ");
}

TEST_F(CheckpointReportTest, VerifyFindsWhatChecksumsCannot) {
  Write(5);
  std::ofstream(Checkpoint(5) + "/notes.txt") << "of the user";
  std::string report;
  ASSERT_TRUE(VerifyCheckpoint(Checkpoint(5), &report).ok()) << report;
  EXPECT_TRUE(absl::StrContains(report, "note: notes.txt is not in the manifest")) << report;

  const std::string weights = *ReadTextFile(Checkpoint(5) + "/model.safetensors");
  Forge("model.safetensors", "no tensors at all");
  ExpectDamage("model.safetensors: a header of ");
  std::string renamed = weights;
  renamed.replace(renamed.find("wpe"), 3, "xyz");
  Forge("model.safetensors", renamed);
  ExpectDamage("no tensor \"transformer.wpe.weight\"");
  std::string reshaped = weights;
  ASSERT_NE(reshaped.find("\"shape\":[64,192]"), std::string::npos);
  reshaped.replace(reshaped.find("\"shape\":[64,192]"), 16, "\"shape\":[192,64]");
  Forge("model.safetensors", reshaped);
  ExpectDamage("c_attn.weight has not the type and shape of");
  Forge("model.safetensors", weights);

  JobSpec other = spec_;
  ++other.training.seed;
  const std::string spec = *ReadTextFile(Checkpoint(5) + "/eps/job_spec.txt");
  Forge("eps/job_spec.txt", other.ToText());
  ExpectDamage("eps/job_spec.txt: digest ");
  Forge("eps/job_spec.txt", spec + "more = 1\n");
  ExpectDamage("eps/job_spec.txt: ");
  Forge("eps/job_spec.txt", spec);
  EXPECT_TRUE(VerifyCheckpoint(Checkpoint(5), &report).ok());
  fs::remove(Checkpoint(5) + "/eps/manifest.json");
  ExpectDamage("has no eps/manifest.json");
  EXPECT_EQ(VerifyCheckpoint(root_ + "/nowhere", &report).code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointReportTest, TheTableMarksLatestAndIncomplete) {
  for (const uint64_t step : {10, 9}) Write(step);
  fs::create_directories(Checkpoint(11));
  const auto table = CheckpointTable(root_);
  ASSERT_TRUE(table.ok()) << table.status();
  const size_t nine = table->find("           9  ");
  const size_t ten = table->find("          10  ");
  const size_t eleven = table->find("          11  ");
  ASSERT_NE(eleven, std::string::npos) << *table;
  EXPECT_LT(nine, ten) << *table;
  EXPECT_LT(ten, eleven) << *table;
  EXPECT_TRUE(absl::StrContains(table->substr(nine, ten - nine), "  complete, latest\n")) << *table;
  EXPECT_TRUE(absl::StrContains(table->substr(ten, eleven - ten), "  complete\n")) << *table;
  EXPECT_TRUE(absl::StrContains(table->substr(eleven), "not complete: ")) << *table;
  std::ofstream(root_ + "/latest", std::ios::trunc) << "checkpoint-12\n";
  EXPECT_TRUE(
      absl::StrContains(*CheckpointTable(root_), "names checkpoint-12, which is not there"));
  fs::create_directories(root_ + "/empty");
  EXPECT_TRUE(absl::StrContains(*CheckpointTable(root_ + "/empty"), "no checkpoints in "));
  EXPECT_EQ(CheckpointTable(root_ + "/nowhere").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace eps
