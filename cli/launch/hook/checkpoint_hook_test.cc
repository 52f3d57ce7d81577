#include "cli/launch/hook/checkpoint_hook.h"

#include <cstdlib>
#include <string>

#include "base/files/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

class CheckpointHookTest : public ::testing::Test {
 protected:
  // Runs the command to its end.
  absl::Status Run(const std::string& command,
                   std::chrono::milliseconds limit = std::chrono::milliseconds(0)) {
    CheckpointHook hook(command, limit, log_);
    absl::Status end = hook.Start("/out/checkpoint-7", 7);
    if (!end.ok()) return end;
    while (hook.Runs(&end)) {
      EXPECT_GE(hook.seconds(), 0);
    }
    return end;
  }

  const std::string log_ = ::testing::TempDir() + "/on_saved.log";
};

TEST_F(CheckpointHookTest, TellsTheCommandWhichCheckpoint) {
  setenv("EPS_STEP", "of a hook around this one", 1);
  const absl::Status status = Run("echo \"$EPS_CHECKPOINT after $EPS_STEP\" && echo error >&2");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(*ReadTextFile(log_), "/out/checkpoint-7 after 7\nerror\n");
}

TEST_F(CheckpointHookTest, ReportsHowTheCommandEnded) {
  const absl::Status failed = Run("echo no such bucket; exit 3");
  EXPECT_THAT(std::string(failed.message()), HasSubstr("no such bucket"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("3"));
  EXPECT_FALSE(Run("kill -9 $$").ok());
  EXPECT_FALSE(Run("/no/such/program").ok());
}

TEST_F(CheckpointHookTest, StopsACommandAfterTheLimit) {
  const absl::Status status = Run("exec sleep 1000", std::chrono::milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoint.on_saved_timeout"));
}

TEST_F(CheckpointHookTest, NoCommandIsNoProcess) {
  absl::Status end;
  CheckpointHook hook("", std::chrono::milliseconds(0), log_);
  EXPECT_TRUE(hook.Start("/out/checkpoint-7", 7).ok());
  EXPECT_FALSE(hook.Runs(&end));
}

}  // namespace
}  // namespace eps
