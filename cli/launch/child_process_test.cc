#include "cli/launch/child_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

ChildOptions Shell(const std::string& script, bool read_stdout = false) {
  static int counter = 0;
  ChildOptions options;
  options.name = "child";
  options.argv = {"/bin/sh", "-c", script};
  options.environment = {"PATH=/usr/bin:/bin"};
  options.log_path = absl::StrCat(testing::TempDir(), "/child-", getpid(), "-", ++counter, ".log");
  options.read_stdout = read_stdout;
  return options;
}

std::unique_ptr<ChildProcess> StartShell(const std::string& script, bool read_stdout = false) {
  auto child = ChildProcess::Start(Shell(script, read_stdout));
  EXPECT_TRUE(child.ok()) << child.status();
  return *std::move(child);
}

Clock::time_point Soon() { return Clock::now() + std::chrono::seconds(20); }

// Waits until no process has this id any more. Returns false on a timeout.
bool Gone(pid_t pid) {
  const auto deadline = Soon();
  while (kill(pid, 0) == 0) {
    std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
    std::string id, name, state;
    if (stat >> id >> name >> state && state == "Z") return true;  // a zombie
    if (Clock::now() > deadline) return false;
    poll(nullptr, 0, 5);
  }
  return true;
}

TEST(ChildProcessTest, ReturnsTheAwaitedLine) {
  const auto child = StartShell("echo noise; echo listening: 1.2.3.4:5; exec sleep 100", true);
  const auto line = child->WaitForLine("listening: ", Soon());
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(*line, "1.2.3.4:5");
  EXPECT_TRUE(child->Running());
}

TEST(ChildProcessTest, WaitForLineEndsInTime) {
  const auto silent = StartShell("exec sleep 100", true);
  EXPECT_EQ(silent->WaitForLine("x", Clock::now() + std::chrono::milliseconds(50)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  const auto dead = StartShell("echo no memory >&2; exit 71", true);
  const absl::Status status = dead->WaitForLine("x", Soon()).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDoesNotFit);
  EXPECT_TRUE(absl::StrContains(status.message(), "child ended with exit code 71")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "no memory")) << status;
}

TEST(ChildProcessTest, FailuresCarryExitCodeAndLastLines) {
  struct Case {
    std::string script;
    ExitCode code;
    std::string says;
  };
  const std::vector<Case> cases = {
      {"exit 0", ExitCode::kOk, ""},
      {"exit 1", ExitCode::kDifferent, "exit code 1"},
      {"exit 64", ExitCode::kUsage, "exit code 64"},
      {"exit 65", ExitCode::kDataInvalid, "exit code 65"},
      {"exit 66", ExitCode::kNoInput, "exit code 66"},
      {"exit 69", ExitCode::kUnavailable, "exit code 69"},
      {"exit 70", ExitCode::kInternal, "exit code 70"},
      {"exit 71", ExitCode::kDoesNotFit, "exit code 71"},
      {"exit 74", ExitCode::kIo, "exit code 74"},
      {"exit 75", ExitCode::kFenced, "exit code 75"},
      {"exit 77", ExitCode::kNotAllowed, "exit code 77"},
      {"exit 130", ExitCode::kInterrupted, "exit code 130"},
      {"exit 143", ExitCode::kTerminated, "exit code 143"},
      {"exit 3", ExitCode::kInternal, "exit code 3"},
      {"kill -9 $$", ExitCode::kUnavailable, "signal 9"},
      {"kill -6 $$", ExitCode::kUnavailable, "signal 6"},
      {"for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; done; exit 70", ExitCode::kInternal,
       "line 3\nline 4"},
  };
  for (const Case& c : cases) {
    const auto child = StartShell(c.script);
    ASSERT_TRUE(child->WaitExit(Soon()));
    const absl::Status status = child->Failure();
    EXPECT_EQ(ExitCodeOf(status), c.code) << c.script << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.script << ": " << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "line 2\n")) << "ten lines are enough";
  }
}

TEST(ChildProcessTest, StopsAProcessThatIgnoresSigterm) {
  auto child = StartShell("trap '' TERM; echo ready; while :; do sleep 1; done", true);
  ASSERT_TRUE(child->WaitForLine("ready", Soon()).ok());
  const pid_t pid = child->pid();
  child->Stop(std::chrono::milliseconds(20));
  EXPECT_FALSE(child->Running());
  EXPECT_TRUE(Gone(pid));
}

TEST(ChildProcessTest, DestructorAndKillAllLeaveNoChild) {
  auto first = StartShell("exec sleep 100");
  const pid_t first_pid = first->pid();
  first.reset();
  EXPECT_TRUE(Gone(first_pid));
  const auto second = StartShell("exec sleep 100");
  KillAllChildren();
  EXPECT_TRUE(second->WaitExit(Soon()));
}

TEST(ChildProcessTest, ChildrenDieWithTheirParent) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const auto child = ChildProcess::Start(Shell("exec sleep 100"));
    const pid_t pid = child.ok() ? (*child)->pid() : -1;
    if (write(pipe_fds[1], &pid, sizeof(pid)) < 0) _exit(1);
    poll(nullptr, 0, 60'000);
    _exit(0);
  }
  pid_t grandchild = -1;
  ASSERT_EQ(read(pipe_fds[0], &grandchild, sizeof(grandchild)),
            static_cast<ssize_t>(sizeof(grandchild)));
  ASSERT_GT(grandchild, 0);
  EXPECT_EQ(kill(grandchild, 0), 0);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(Gone(grandchild));
}

TEST(ChildProcessTest, AMissingProgramIsNotFound) {
  ChildOptions options = Shell("");
  options.argv = {"/nowhere/eps-worker"};
  const absl::Status status = ChildProcess::Start(std::move(options)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
}

TEST(ChildProcessTest, HasAProcessGroupOfItsOwn) {
  const auto child = StartShell("echo group $(ps -o pgid= -p $$) me $$; exec sleep 100", true);
  const auto line = child->WaitForLine("group ", Soon());
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(absl::StrContains(*line, absl::StrCat("me ", child->pid())));
  EXPECT_TRUE(absl::StartsWith(*line, absl::StrCat(child->pid(), " "))) << *line;
}

}  // namespace
}  // namespace eps
