#include "base/files/safetensors_folder.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

class SafetensorsFolderTest : public testing::Test {
 protected:
  SafetensorsFolderTest() {
    folder_ =
        absl::StrCat(testing::TempDir(), "/folder-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~SafetensorsFolderTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // A file of tensors of two elements each: `first`, then `first` + 1.
  void WriteTensors(const std::string& file, const std::vector<std::string>& names, float first) {
    std::vector<SafetensorsEntry> entries;
    for (const std::string& name : names) {
      entries.emplace_back();
      entries.back().name = name;
      entries.back().shape = {2};
    }
    auto writer = SafetensorsWriter::Create(Path(file), entries);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < names.size(); ++i) {
      ASSERT_TRUE((*writer)->Write(i, 0, {first, first + 1}).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  void WriteIndex(const std::string& weight_map) {
    std::ofstream(Path(kSafetensorsIndexFile), std::ios::trunc)
        << "{\"metadata\":{\"total_size\":1},\"weight_map\":" << weight_map << "}";
  }
  static float SecondOf(const SafetensorsFolder& folder, const std::string& name) {
    const auto tensor = folder.Find(name);
    float value = -1;
    if (!tensor.ok() || !tensor->Read(1, 1, &value).ok()) ADD_FAILURE() << tensor.status();
    return value;
  }

  std::string folder_;
};

TEST_F(SafetensorsFolderTest, ReadsShardsOrOneFile) {
  WriteTensors("model-00001-of-00002.safetensors", {"a", "c"}, 10);
  WriteTensors("model-00002-of-00002.safetensors", {"b"}, 20);
  std::ofstream(Path(kSafetensorsIndexFile))
      << SafetensorsIndexText({{"a", "model-00001-of-00002.safetensors"},
                               {"b", "model-00002-of-00002.safetensors"},
                               {"c", "model-00001-of-00002.safetensors"}},
                              24, 6);
  for (const std::string& path : {folder_, Path(kSafetensorsIndexFile)}) {
    const auto folder = SafetensorsFolder::Open(path);
    ASSERT_TRUE(folder.ok()) << folder.status();
    EXPECT_EQ((*folder)->tensors().size(), 3u);
    EXPECT_EQ((*folder)->path(), Path(kSafetensorsIndexFile));
    EXPECT_EQ(SecondOf(**folder, "a"), 11);
    EXPECT_EQ(SecondOf(**folder, "b"), 21);
    EXPECT_EQ(SecondOf(**folder, "c"), 11);
    EXPECT_EQ((*folder)->Find("d").status().code(), absl::StatusCode::kNotFound);
  }
  WriteTensors(kSafetensorsFile, {"a"}, 30);
  const auto single = SafetensorsFolder::Open(folder_);
  ASSERT_TRUE(single.ok()) << single.status();
  EXPECT_EQ((*single)->tensors().size(), 1u) << "one file wins over an index";
  EXPECT_EQ(SecondOf(**single, "a"), 31);
}

TEST_F(SafetensorsFolderTest, RefusesAnIndexThatContradictsItsShards) {
  WriteTensors("x.safetensors", {"a", "b"}, 1);
  WriteTensors("y.safetensors", {"c"}, 2);
  WriteTensors("z.safetensors", {"c"}, 3);
  std::ofstream(Path("torn.safetensors")) << "short";
  std::ofstream(folder_ + "/../outside.safetensors") << "not to be opened";
  struct Case {
    std::string weight_map;
    absl::StatusCode code;
    std::string says;
  };
  const auto kLoss = absl::StatusCode::kDataLoss;
  const std::vector<Case> cases = {
      {R"({"a":"x.safetensors","b":"x.safetensors","d":"y.safetensors","c":"y.safetensors"})",
       kLoss, "tensor \"d\" should be in y.safetensors"},
      {R"({"a":"x.safetensors"})", kLoss, "x.safetensors: tensor \"b\" is in this shard"},
      {R"({"a":"x.safetensors","b":"y.safetensors","c":"y.safetensors"})", kLoss,
       "tensor \"b\" is in this shard"},
      {R"({"c":"y.safetensors","e":"z.safetensors"})", kLoss, "has it in y.safetensors"},
      {R"({"c":"y.safetensors","e":"none.safetensors"})", absl::StatusCode::kNotFound,
       "the shard none.safetensors is missing"},
      {R"({"c":"torn.safetensors"})", kLoss, "torn.safetensors: 5 bytes, too short"},
      {R"({"c":"../outside.safetensors"})", kLoss, "\"../outside.safetensors\" is not a plain"},
      {R"({"c":"/etc/x.safetensors"})", kLoss, "is not a plain name"},
      {R"({})", kLoss, "the weight_map is empty"},
  };
  for (const Case& c : cases) {
    WriteIndex(c.weight_map);
    const absl::Status status = SafetensorsFolder::Open(folder_).status();
    EXPECT_EQ(status.code(), c.code) << c.weight_map << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.weight_map << status;
    EXPECT_TRUE(absl::StrContains(status.message(), folder_)) << status;
  }
  fs::remove(folder_ + "/../outside.safetensors");
}

TEST_F(SafetensorsFolderTest, RefusesMoreShardsThanItWouldMap) {
  std::string map;
  for (size_t i = 0; i <= kMaxSafetensorsShards; ++i) {
    absl::StrAppend(&map, i == 0 ? "{" : ",", "\"", i, "\":\"", i, ".safetensors\"");
  }
  WriteIndex(map + "}");
  const absl::Status status = SafetensorsFolder::Open(folder_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(status.message(), "more than 4096 shards")) << status;
}

TEST_F(SafetensorsFolderTest, AFolderWithoutWeightsIsNotFound) {
  const absl::Status status = SafetensorsFolder::Open(folder_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(status.message(), kSafetensorsIndexFile)) << status;
  EXPECT_EQ(SafetensorsFolder::Open(Path("nowhere")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace eps
