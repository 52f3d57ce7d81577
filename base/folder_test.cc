#include "base/folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// The paths of the files and folders that the process syncs, in order.
std::vector<std::string>* synced = nullptr;

}  // namespace

// Takes the place of the C library's function.
extern "C" int fsync(int fd) {
  std::error_code gone;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), gone);
  if (synced != nullptr) synced->push_back(path.string());
  return 0;
}

namespace eps {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    root_ = fs::path(testing::TempDir()).lexically_normal().string() + "/folders-" +
            testing::UnitTest::GetInstance()->current_test_info()->name() + "-" +
            std::to_string(getpid());
    fs::remove_all(root_);
    fs::create_directories(root_);
    root_ = fs::canonical(root_).string();
    synced = &synced_;
  }
  ~FolderTest() override {
    synced = nullptr;
    fs::remove_all(root_);
  }

  std::string root_;
  std::vector<std::string> synced_;
};

TEST_F(FolderTest, SyncsTheFolderAboveEachNewFolder) {
  ASSERT_TRUE(CreateFolder(root_ + "/a/b/c").ok());
  EXPECT_TRUE(fs::is_directory(root_ + "/a/b/c"));
  EXPECT_THAT(synced_, ElementsAre(root_, root_ + "/a", root_ + "/a/b"));
}

TEST_F(FolderTest, SyncsTheFolderAboveAnExistingFolder) {
  // A killed process may have left it before its sync.
  fs::create_directories(root_ + "/a");
  for (const char* const name : {"/a", "/a/", "/a//"}) {
    synced_.clear();
    ASSERT_TRUE(CreateFolder(root_ + name).ok());
    EXPECT_THAT(synced_, ElementsAre(root_)) << name;
  }
  synced_.clear();
  ASSERT_TRUE(CreateFolder(root_ + "/a/b").ok());
  EXPECT_THAT(synced_, ElementsAre(root_ + "/a"));
}

TEST_F(FolderTest, RefusesAFileOfThatName) {
  std::ofstream(root_ + "/file") << "x";
  const absl::Status status = CreateFolder(root_ + "/file");
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(root_ + "/file"));
  EXPECT_FALSE(CreateFolder(root_ + "/file/below").ok());
}

TEST(FolderOf, IsTheFolderAbove) {
  for (const auto& [path, above] :
       std::vector<std::pair<std::string, std::string>>{{"", "."},
                                                        {".", "."},
                                                        {"a", "."},
                                                        {"a/", "."},
                                                        {"/", "/"},
                                                        {"/a", "/"},
                                                        {"//a", "/"},
                                                        {"a/b", "a"},
                                                        {"a/b/", "a"},
                                                        {"a//b", "a"},
                                                        {"/a/b", "/a"}}) {
    EXPECT_EQ(FolderOf(path), above) << path;
  }
}

}  // namespace
}  // namespace eps
