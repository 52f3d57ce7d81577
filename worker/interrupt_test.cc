#include "worker/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace eps {
namespace {

// Each case runs in a process of its own, because the handler's state lasts as long as the process.
int CodeAfter(int first) {
  HandleInterrupts();
  if (Interrupted()) return 1;
  raise(first);
  return Interrupted() ? static_cast<int>(InterruptExitCode()) : 2;
}

void RaiseBoth(int first, int second) {
  CodeAfter(first);
  raise(second);
}

TEST(InterruptDeathTest, TheFirstSignalNamesTheExitCode) {
  EXPECT_EXIT(_exit(CodeAfter(SIGTERM)), testing::ExitedWithCode(143), "");
  EXPECT_EXIT(_exit(CodeAfter(SIGINT)), testing::ExitedWithCode(130), "");
}

TEST(InterruptDeathTest, ASecondSignalEndsTheProcess) {
  EXPECT_EXIT(RaiseBoth(SIGINT, SIGTERM), testing::ExitedWithCode(143), "");
  EXPECT_EXIT(RaiseBoth(SIGTERM, SIGINT), testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace eps
