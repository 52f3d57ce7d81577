#include "base/files/files.h"

#include <fstream>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(ScratchFolder, RemovesOldContent) {
  const ScratchFolder scratch = {testing::TempDir() + "/scratch"};
  ASSERT_TRUE(scratch.MakeEmpty().ok());
  std::ofstream(scratch.path + "/old") << "old";
  ASSERT_TRUE(scratch.MakeEmpty().ok());
  EXPECT_EQ(ReadTextFile(scratch.path + "/old").status().code(), absl::StatusCode::kNotFound);
}

// Nobody can remove the folders of procfs.
TEST(ScratchFolder, ReportsContentThatStays) {
  const ScratchFolder scratch = {"/proc/self/task"};
  const absl::Status status = scratch.MakeEmpty();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_NE(status.message().find("cannot remove /proc/self/task"), std::string::npos) << status;
}

}  // namespace
}  // namespace eps
