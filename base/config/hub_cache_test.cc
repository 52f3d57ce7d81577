#include "base/config/hub_cache.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/config/model_folder.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr char kCommit[] = "607a30d783dfa663caf39e06633721c8d4cfcd7e";
constexpr char kGpt2[] = R"({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8,
                             "n_positions": 8, "vocab_size": 256})";

// A cache of its own, with one model as huggingface_hub stores it: files are links to blobs.
class HubCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / "hub";
    fs::remove_all(folder_);
    setenv("HF_HUB_CACHE", folder_.c_str(), 1);
    Write(Model() / "refs/main", kCommit);
    Link("config.json", kGpt2);
    Link("model.safetensors", "weights");
  }
  void TearDown() override {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
  }

  fs::path Model() const { return folder_ / "models--org--small"; }
  fs::path Snapshot() const { return Model() / "snapshots" / kCommit; }

  static void Write(const fs::path& path, const std::string& content) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  void Link(const std::string& name, const std::string& content) const {
    Write(Model() / "blobs" / ("blob-of-" + name), content);
    fs::create_directories(Snapshot());
    fs::create_symlink("../../blobs/blob-of-" + name, Snapshot() / name);
  }
  // Expects a refusal that has all of `words`.
  static void ExpectMissing(const std::string& name, const std::vector<std::string>& words) {
    const absl::Status status = FindModel(name).status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    for (const std::string& word : words) {
      EXPECT_TRUE(absl::StrContains(status.message(), word)) << word << ": " << status;
    }
  }

  fs::path folder_;
};

TEST_F(HubCacheTest, NamesLeadToSnapshots) {
  for (const char* const name :
       {"org/small", "org/small@main", "org/small@607a30d783dfa663caf39e06633721c8d4cfcd7e"}) {
    const absl::StatusOr<ModelPlace> place = FindModel(name);
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(place->path, Snapshot());
    EXPECT_EQ(place->name, std::string("org/small@") + kCommit);
    EXPECT_EQ(FolderOfModel(name), Snapshot());
  }
  const absl::StatusOr<ModelSpec> model = ReadModelFolder("org/small");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(FilesOfModel(FolderOfModel("org/small")).count("config.json"), 1u);
}

TEST_F(HubCacheTest, FoldersWinOverNames) {
  const fs::path before = fs::current_path();
  fs::current_path(testing::TempDir());
  Write("org/small/config.json", kGpt2);
  const absl::StatusOr<ModelPlace> place = FindModel("org/small");
  fs::remove_all("org");
  fs::current_path(before);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->path, fs::path(testing::TempDir()) / "org/small");
  EXPECT_EQ(place->name, place->path);
}

TEST_F(HubCacheTest, AMissingModelNamesItsDownload) {
  ExpectMissing("org/other",
                {"model.path: cannot open org/other", folder_.string(), "hf download org/other"});
  ExpectMissing("org/small@v2", {"revision", "hf download org/small --revision v2"});
  Write(Model() / "refs/main", "../blobs");
  ExpectMissing("org/small", {"does not hold a model", "hf download org/small"});
  unsetenv("HF_HUB_CACHE");
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  unsetenv("HOME");
  ExpectMissing("org/small", {"HF_HUB_CACHE"});
  setenv("HOME", home.c_str(), 1);
}

TEST_F(HubCacheTest, AMissingFileIsNamed) {
  Link("tokenizer.json", "{}");
  fs::remove(Model() / "blobs/blob-of-tokenizer.json");
  ExpectMissing("org/small", {(Snapshot() / "tokenizer.json").string(), "hf download org/small"});
  fs::remove(Snapshot() / "tokenizer.json");
  fs::remove(Snapshot() / "model.safetensors");
  ExpectMissing("org/small", {(Snapshot() / "model.safetensors").string(), "save_pretrained"});
  Link("model.safetensors.index.json",
       R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  Link("one.safetensors", "weights");
  ExpectMissing("org/small", {(Snapshot() / "two.safetensors").string()});
  Link("two.safetensors", "weights");
  EXPECT_TRUE(FindModel("org/small").ok());
  fs::remove(Snapshot() / "config.json");
  ExpectMissing("org/small", {(Snapshot() / "config.json").string()});
}

TEST_F(HubCacheTest, VariablesChooseTheCache) {
  EXPECT_EQ(HubCacheFolder(), folder_);
  setenv("HF_HOME", "/hf", 1);
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(HubCacheFolder(), folder_);
  unsetenv("HF_HUB_CACHE");
  EXPECT_EQ(HubCacheFolder(), "/hf/hub");
  unsetenv("HF_HOME");
  EXPECT_EQ(HubCacheFolder(), "/xdg/huggingface/hub");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/a", 1);
  EXPECT_EQ(HubCacheFolder(), "/a/.cache/huggingface/hub");
  setenv("HF_HOME", "~/models", 1);
  EXPECT_EQ(HubCacheFolder(), "/a/models/hub");
}

TEST(HubName, LooksLikeOrganisationAndName) {
  for (const char* const name : {"gpt2", "org/small", "o/a.b-c_1", "gpt2@refs/pr/1"}) {
    EXPECT_TRUE(IsHubName(name)) << name;
  }
  for (const char* const text : {"", "/gpt2", "./gpt2", "a/b/c", "a--b", "a..b", "-a", "a/", "a b",
                                 "gpt2@", "gpt2@../x", "own.json", "gpt2@/x", "~/a"}) {
    EXPECT_FALSE(IsHubName(text)) << text;
  }
}

}  // namespace
}  // namespace eps
