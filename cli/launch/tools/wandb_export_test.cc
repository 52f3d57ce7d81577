#include "cli/launch/tools/wandb_export.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "base/exit_code.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// A program in place of the Python that has wandb. Its arguments are -m, a module, and one more.
class WandbExportTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / "wandb_export";
    fs::remove_all(root_);
    fs::create_directories(root_);
    config_.metrics.wandb = true;
    config_.checkpoint.dir = (root_ / "run").string();
    WriteTool("echo \"called: $@\"\n");
  }
  void TearDown() override { unsetenv("EPS_PYTHON"); }

  void WriteTool(const std::string& text) const {
    std::ofstream(root_ / "tool") << "#!/bin/sh\n" << text;
    chmod((root_ / "tool").c_str(), 0755);
    setenv("EPS_PYTHON", (root_ / "tool").c_str(), 1);
  }

  fs::path root_;
  Config config_;
};

TEST_F(WandbExportTest, ReturnsTheLastLineOfTheTool) {
  ASSERT_TRUE(CheckWandb(config_).ok());
  const absl::StatusOr<std::string> line = WriteWandbRun(config_.checkpoint.dir);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(*line, "called: -m eps_metrics.wandb_run " + config_.checkpoint.dir + "\n");
}

TEST_F(WandbExportTest, NeedsAFolder) {
  config_.checkpoint.dir = "";
  const absl::Status status = CheckWandb(config_);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "checkpoint.dir")) << status;
  config_.metrics.wandb = false;
  EXPECT_TRUE(CheckWandb(config_).ok());
}

TEST_F(WandbExportTest, SaysWhatTheToolSays) {
  WriteTool("echo 'no package wandb' >&2; exit 66\n");
  const absl::Status status = CheckWandb(config_);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kNoInput) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "no package wandb")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "wandb.log")) << status;
}

}  // namespace
}  // namespace eps
