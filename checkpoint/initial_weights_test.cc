#include "checkpoint/initial_weights.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/testing/test_specs.h"
#include "checkpoint/checkpoint.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// A value that every one of the dtypes holds exactly.
float ValueOf(size_t tensor, uint64_t element) {
  return static_cast<float>((tensor * 31 + element) % 100) / 8 - 6;
}

struct Named {
  SafetensorsEntry entry;
  size_t id;  // by which ValueOf tells its values
};

class WeightsReaderTest : public testing::Test {
 protected:
  WeightsReaderTest() : spec_(TinyGpt2Spec()), chunks_(ChunkMap::Build(spec_)) {
    folder_ =
        absl::StrCat(testing::TempDir(), "/weights-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~WeightsReaderTest() override { fs::remove_all(folder_); }

  // The model's tensors as transformers would save them.
  std::vector<Named> Model() const {
    std::vector<Named> tensors;
    for (const SafetensorsEntry& entry : EntriesOf(spec_))
      tensors.push_back({entry, tensors.size()});
    return tensors;
  }
  static Named Extra(const std::string& name, std::vector<uint64_t> shape, size_t id) {
    Named extra;
    extra.entry.name = name;
    extra.entry.shape = std::move(shape);
    extra.id = id;
    return extra;
  }

  void Save(const std::string& file, const std::vector<Named>& tensors) {
    std::vector<SafetensorsEntry> entries;
    for (const Named& tensor : tensors) entries.push_back(tensor.entry);
    auto writer = SafetensorsWriter::Create(folder_ + "/" + file, entries);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t t = 0; t < tensors.size(); ++t) {
      std::vector<float> values(entries[t].elements());
      for (size_t i = 0; i < values.size(); ++i) values[i] = ValueOf(tensors[t].id, i);
      ASSERT_TRUE((*writer)->Write(t, 0, values).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  // Whether every weight is read, and the optimizer's state is zero.
  void ExpectTheWeights(const std::string& what) {
    const auto reader = WeightsReader::Open(folder_, spec_);
    ASSERT_TRUE(reader.ok()) << what << ": " << reader.status();
    for (const Chunk& chunk : chunks_.chunks()) {
      std::vector<float> expected(StateBytes(spec_, chunk) / sizeof(float));
      for (const Segment& s : chunk.segments) {
        for (uint64_t i = 0; i < s.elements(); ++i) {
          expected[s.offset + i] = ValueOf(s.tensor.value(), s.tensor_offset + i);
        }
      }
      const auto state = (*reader)->ReadChunk(spec_, chunk);
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_EQ(std::memcmp(state->data(), expected.data(), state->size()), 0) << what;
    }
    notes_ = (*reader)->notes();
  }

  void ExpectRefusal(absl::StatusCode code, const std::vector<std::string>& says) {
    const absl::Status status = WeightsReader::Open(folder_, spec_).status();
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& text : says) {
      EXPECT_TRUE(absl::StrContains(status.message(), text)) << text << ": " << status;
    }
  }

  JobSpec spec_;
  const ChunkMap chunks_;
  std::string folder_;
  std::vector<std::string> notes_;
};

TEST_F(WeightsReaderTest, ReadsEveryDtypeAndOptionalPrefix) {
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    for (const bool prefix : {true, false}) {
      std::vector<Named> tensors = Model();
      for (Named& tensor : tensors) {
        tensor.entry.dtype = dtype;
        if (prefix) continue;
        tensor.entry.name = std::string(absl::StripPrefix(tensor.entry.name, "transformer."));
      }
      Save(kSafetensorsFile, tensors);
      ExpectTheWeights(absl::StrCat(dtype, prefix));
      EXPECT_TRUE(notes_.empty());
    }
  }
}

TEST_F(WeightsReaderTest, ReadsShards) {
  std::vector<Named> shards[2];
  std::map<std::string, std::string> index;
  for (const Named& tensor : Model()) {
    const int shard = tensor.id % 3 == 0 ? 1 : 0;
    shards[shard].push_back(tensor);
    index[tensor.entry.name] = absl::StrCat("model-0000", shard, ".safetensors");
  }
  Save("model-00000.safetensors", shards[0]);
  Save("model-00001.safetensors", shards[1]);
  std::ofstream(folder_ + "/" + kSafetensorsIndexFile) << SafetensorsIndexText(index, 0, 0);
  ExpectTheWeights("shards");
}

TEST_F(WeightsReaderTest, SkipsMasksAndNotesUnknownTensors) {
  std::vector<Named> tensors = Model();
  tensors.push_back(Extra("transformer.h.0.attn.bias", {1, 1, 4, 4}, 0));
  tensors.push_back(Extra("h.1.attn.masked_bias", {}, 0));
  Save(kSafetensorsFile, tensors);
  ExpectTheWeights("masks");
  EXPECT_TRUE(notes_.empty());
  tensors.push_back(Extra("score.weight", {2, 2}, 0));
  tensors.push_back(Extra("transformer.h.0.attn.rotary", {2}, 0));
  Save(kSafetensorsFile, tensors);
  ExpectTheWeights("strangers");
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(
      absl::StrContains(notes_[0], "2 tensors: \"score.weight\", \"transformer.h.0.attn.rotary\""))
      << notes_[0];
}

TEST_F(WeightsReaderTest, TakesATiedHeadOnlyIfEqual) {
  std::vector<Named> tensors = Model();
  ASSERT_EQ(tensors[0].entry.name, "transformer.wte.weight");
  Named head = tensors[0];
  head.entry.name = "lm_head.weight";
  tensors.push_back(head);
  Save(kSafetensorsFile, tensors);
  ExpectTheWeights("tied");
  EXPECT_TRUE(notes_.empty());
  tensors.back().id = 1;  // other values
  Save(kSafetensorsFile, tensors);
  ExpectRefusal(
      absl::StatusCode::kDataLoss,
      {"lm_head.weight differs at element 0 from transformer.wte.weight", "tie_word_embeddings"});
  tensors.back() = Extra("lm_head.weight", {3}, 0);
  Save(kSafetensorsFile, tensors);
  ExpectRefusal(absl::StatusCode::kDataLoss, {"lm_head.weight is [3], unlike"});
}

TEST_F(WeightsReaderTest, NamesMissingAndMisfittingTensors) {
  struct Case {
    std::function<void(std::vector<Named>*)> change;
    absl::StatusCode code;
    std::vector<std::string> says;
  };
  const auto kLoss = absl::StatusCode::kDataLoss;
  const std::vector<Case> cases = {
      {[](auto* t) { t->erase(t->begin() + 1, t->begin() + 3); },
       absl::StatusCode::kNotFound,
       {"2 tensors: \"transformer.wpe.weight\", \"transformer.h.0.ln_1.weight\""}},
      {[](auto* t) { t->resize(1); }, absl::StatusCode::kNotFound, {", …"}},
      {[](auto* t) { (*t)[0].entry.shape[0] = 7; },
       kLoss,
       {"transformer.wte.weight is [7, 64], config.json says [256, 64]"}},
      {[](auto* t) {
         for (Named& n : *t) {
           if (absl::EndsWith(n.entry.name, "h.0.attn.c_attn.weight")) n.entry.shape = {192, 64};
         }
       },
       kLoss,
       {"c_attn.weight is [192, 64], config.json says [64, 192]", "[in, out]"}},
      {[](auto* t) {
         t->push_back(Extra("wte.weight", {256, 64}, 0));
       },
       kLoss,
       {"transformer.wte.weight a second time, as wte.weight"}},
  };
  for (const Case& c : cases) {
    std::vector<Named> tensors = Model();
    c.change(&tensors);
    Save(kSafetensorsFile, tensors);
    ExpectRefusal(c.code, c.says);
  }
  std::vector<Named> tensors = Model();
  Save(kSafetensorsFile, tensors);
  std::fstream file(folder_ + "/" + kSafetensorsFile, std::ios::in | std::ios::out);
  std::string header(4000, '\0');
  file.read(&header[0], 4000);
  const size_t dtype = header.find("\"F32\"");
  file.seekp(static_cast<std::streamoff>(dtype));
  file << "\"I32\"";
  file.close();
  ExpectRefusal(kLoss, {"is I32, weights are read from"});
}

}  // namespace
}  // namespace eps
