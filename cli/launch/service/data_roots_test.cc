#include "cli/launch/service/data_roots.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

class DataRootsTest : public testing::Test {
 protected:
  DataRootsTest() {
    folder_ = fs::path(testing::TempDir()) / "data_roots";
    fs::remove_all(folder_);
    for (const char* name : {"root/texts/below", "root/model", "rootless"}) {
      fs::create_directories(folder_ / name);
    }
    for (const char* name : {"root/texts/a.txt", "root/model/config.json", "rootless/b.txt"}) {
      std::ofstream(folder_ / name) << "{}";
    }
    roots_ = {(folder_ / "root").string()};
  }

  absl::Status CheckData(const std::string& path) {
    Config config;
    config.data.path = {path};
    return DataRoots::Open(roots_)->Check(config);
  }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
  std::vector<std::string> roots_;
};

TEST_F(DataRootsTest, AllowsWhatIsBelowARoot) {
  EXPECT_TRUE(CheckData(Path("root/texts/a.txt")).ok());
  EXPECT_TRUE(CheckData(Path("root/texts")).ok());
  EXPECT_TRUE(CheckData(Path("root/missing.txt")).ok());
  Config config;
  config.data.eval_path = {Path("root/texts/a.txt")};
  config.model.path = Path("root/model");
  const absl::Status status = DataRoots::Open(roots_)->Check(config);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(DataRootsTest, RefusesPathsElsewhere) {
  for (const char* name : {"rootless/b.txt", "root/../rootless/b.txt", "elsewhere.txt"}) {
    const absl::Status status = CheckData(Path(name));
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << name << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "data.path: ")) << status;
  }
  Config config;
  config.model.path = Path("rootless");
  const absl::Status status = DataRoots::Open(roots_)->Check(config);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
}

TEST_F(DataRootsTest, ResolvesLinks) {
  fs::create_symlink(Path("rootless/b.txt"), Path("root/link.txt"));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckData(Path("root/link.txt"))));
  fs::create_symlink(Path("rootless/b.txt"), Path("root/texts/below/link.txt"));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckData(Path("root/texts"))));
  // Weights beside the description of a model are read, too.
  fs::create_symlink(Path("rootless/b.txt"), Path("root/model/model.safetensors"));
  Config config;
  config.model.path = Path("root/model/config.json");
  EXPECT_TRUE(absl::IsPermissionDenied(DataRoots::Open(roots_)->Check(config)));
  // A link within the root is no way out, and a circle has an end.
  fs::create_directory(Path("root/round"));
  fs::create_directory_symlink(Path("root/round"), Path("root/round/again"));
  EXPECT_TRUE(CheckData(Path("root/round")).ok());
}

TEST_F(DataRootsTest, TheWorkingFolderIsTheDefault) {
  roots_ = {};
  EXPECT_TRUE(CheckData("some.txt").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(CheckData("../some.txt")));
  EXPECT_TRUE(absl::IsNotFound(DataRoots::Open({Path("nowhere")}).status()));
}

}  // namespace
}  // namespace eps
