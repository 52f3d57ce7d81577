// A fenced process can use what it has, and ends if it tries more.

#include "base/process/fence.h"

#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <tuple>

#include "gtest/gtest.h"

namespace eps {
namespace {

enum class End { kSucceeds, kIsRefused, kIsKilled };

// One attempt, and its end.
struct Attempt {
  const char* way;
  End end;
};

// Returns how the probe ended, as wait(2) does.
int Probe(const std::string& arguments) {
  return std::system(("exec base/process/fence_probe " + arguments).c_str());
}

void ExpectEnd(int status, End end) {
  if (end == End::kIsKilled) {
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);
    EXPECT_EQ(WTERMSIG(status), SIGSYS);
  } else {
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), end == End::kSucceeds ? 0 : 1);
  }
}

class FenceTest : public testing::TestWithParam<std::tuple<Attempt, const char*>> {};

TEST_P(FenceTest, AttemptEndsAsExpected) {
  const auto& [attempt, thread] = GetParam();
  ExpectEnd(Probe(std::string(attempt.way) + " " + thread + " 16"), attempt.end);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, FenceTest,
    testing::Combine(
        testing::Values(Attempt{"open", End::kIsKilled}, Attempt{"socket", End::kIsKilled},
                        Attempt{"fork", End::kIsKilled}, Attempt{"execve", End::kIsKilled},
                        Attempt{"ptrace", End::kIsKilled}, Attempt{"memfd", End::kIsKilled},
                        Attempt{"io_uring", End::kIsKilled},
                        Attempt{"read_process", End::kIsKilled},
                        Attempt{"map_shared", End::kIsRefused},
                        Attempt{"heap_32_MiB", End::kIsRefused},
                        Attempt{"heap_8_MiB", End::kSucceeds}, Attempt{"write", End::kSucceeds}),
        testing::Values("main", "thread")),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).way) + "_" + std::get<1>(info.param);
    });

class FenceLoadingTest : public testing::TestWithParam<std::tuple<Attempt, const char*>> {};

TEST_P(FenceLoadingTest, AttemptEndsAsExpected) {
  const auto& [attempt, thread] = GetParam();
  ExpectEnd(Probe(std::string(attempt.way) + " " + thread + " loading"), attempt.end);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, FenceLoadingTest,
    testing::Combine(
        testing::Values(Attempt{"open_for_writing", End::kIsKilled},
                        Attempt{"create", End::kIsKilled}, Attempt{"unlink", End::kIsKilled},
                        Attempt{"kill", End::kIsKilled}, Attempt{"socket", End::kIsKilled},
                        Attempt{"fork", End::kIsKilled}, Attempt{"execve", End::kIsKilled},
                        Attempt{"ptrace", End::kIsKilled}, Attempt{"io_uring", End::kIsKilled},
                        Attempt{"read_process", End::kIsKilled}, Attempt{"open", End::kSucceeds},
                        Attempt{"raise", End::kSucceeds}, Attempt{"load", End::kSucceeds},
                        Attempt{"map", End::kSucceeds}, Attempt{"memfd", End::kSucceeds},
                        Attempt{"start_thread", End::kSucceeds}),
        testing::Values("main", "thread")),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).way) + "_" + std::get<1>(info.param);
    });

TEST(FenceOptionsTest, LimitTheMemory) {
  EXPECT_EQ(WEXITSTATUS(Probe("heap_8_MiB main 4")), 1);
  EXPECT_EQ(WEXITSTATUS(Probe("heap_32_MiB main 64")), 0);
}

TEST(FenceOptionsTest, KillProcessesThatMap) {
  const int status = Probe("map_shared main strict");
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGSYS);
  EXPECT_EQ(WEXITSTATUS(Probe("heap_8_MiB main strict")), 0);
}

}  // namespace
}  // namespace eps
