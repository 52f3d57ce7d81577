#include "cli/launch/output_folder.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

class OutputFolderTest : public testing::Test {
 protected:
  OutputFolderTest() {
    config_.dir = absl::StrCat(testing::TempDir(), "/output-",
                               testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(config_.dir);
  }
  ~OutputFolderTest() override { fs::remove_all(config_.dir); }

  void Write(const std::string& name, const std::string& text) const {
    const fs::path path = config_.dir + "/" + name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  // Claims the folder, gives it back, and returns the refusal, or an empty text.
  std::string Refusal(bool overwrite = false) const {
    const auto folder = OutputFolder::Claim(config_, overwrite);
    if (folder.ok()) return "";
    EXPECT_EQ(folder.status().code(), absl::StatusCode::kInvalidArgument) << folder.status();
    EXPECT_TRUE(absl::StrContains(folder.status().message(), config_.dir)) << folder.status();
    return std::string(folder.status().message());
  }

  CheckpointConfig config_;
};

TEST_F(OutputFolderTest, OneRunAtATimeHasIt) {
  {
    const auto first = OutputFolder::Claim(config_, /*overwrite=*/false);
    ASSERT_TRUE(first.ok()) << first.status();
    const std::string refusal = Refusal();
    EXPECT_TRUE(absl::StrContains(refusal, absl::StrCat("in use by process ", getpid())))
        << refusal;
    EXPECT_TRUE(absl::StrContains(refusal, "started 2")) << refusal;
    EXPECT_TRUE(absl::StrContains(refusal, "output_folder_test")) << refusal;
  }
  EXPECT_EQ(Refusal(), "");
}

TEST_F(OutputFolderTest, AKilledRunGivesItBack) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto folder = OutputFolder::Claim(config_, /*overwrite=*/false);
    const char ok = folder.ok() ? 'y' : 'n';
    if (write(ready[1], &ok, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char ok = 0;
  ASSERT_EQ(read(ready[0], &ok, 1), 1);
  EXPECT_EQ(ok, 'y');
  EXPECT_TRUE(absl::StrContains(Refusal(), absl::StrCat("process ", child)));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(Refusal(), "");
  close(ready[0]);
  close(ready[1]);
}

TEST_F(OutputFolderTest, AnOldRunNeedsAWord) {
  EXPECT_EQ(Refusal(), "");
  Write("metrics.jsonl", "{}\n");
  EXPECT_TRUE(absl::StrContains(Refusal(), "unfinished run without a checkpoint; --overwrite"));
  EXPECT_EQ(Refusal(/*overwrite=*/true), "");
  config_.resume = "latest";
  EXPECT_EQ(Refusal(), "");
  EXPECT_TRUE(absl::StrContains(Refusal(/*overwrite=*/true), "exclude each other"));
}

TEST_F(OutputFolderTest, ACheckpointContinuesALog) {
  Write("metrics.jsonl", "{}\n");
  config_.resume = config_.dir + "/checkpoint-4";
  EXPECT_EQ(Refusal(), "");
  config_.resume = config_.dir + "-other/checkpoint-4";
  EXPECT_EQ(Refusal(), "");
}

TEST_F(OutputFolderTest, WithoutAFolderNothingIsClaimed) {
  config_.dir = "";
  const auto folder = OutputFolder::Claim(config_, /*overwrite=*/true);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_FALSE((*folder)->overwrites());
  EXPECT_TRUE((*folder)->RemoveOldRun().ok());
}

}  // namespace
}  // namespace eps
