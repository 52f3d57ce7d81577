// The power fails while the contribution log is created; the next process needs no help.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/testing/manual_executor.h"
#include "gtest/gtest.h"
#include "storage/log/contribution_log.h"
#include "storage/log/log_format.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

constexpr uint64_t kNever = uint64_t{1} << 60;
constexpr LogRoom kRoom = {/*steps=*/2, /*step_bytes=*/12000, /*entry_bytes=*/6000};

// A disk, and processes that open the log on it. The catalogue has a log, so the file is needed.
class LogBirthTest : public testing::Test {
 protected:
  LogBirthTest() : disk_(OptionsOf(&executor_)) { EXPECT_TRUE(disk_.CreateFolder("/job").ok()); }

  static SimulatedDisk::Options OptionsOf(Executor* executor) {
    SimulatedDisk::Options options;
    options.executor = executor;
    return options;
  }
  absl::Status Open() {
    return ContributionLog::Open(disk_.blocking(), &disk_, "/job", ExtentIdentity(), kRoom,
                                 /*live=*/true, &executor_, &account_,
                                 [](ContributionLog::Done then) { return then; })
        .status();
  }

  std::vector<std::string> Names() { return *disk_.List("/job"); }

  ManualExecutor executor_;
  MemoryAccount account_;
  SimulatedDisk disk_;
};

TEST_F(LogBirthTest, EveryPowerCutLeavesTheLogCreatable) {
  int cuts = 0;
  int leftovers = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    for (uint64_t call = 1;; ++call) {
      for (const std::string& name : Names()) {
        ASSERT_TRUE(disk_.Remove("/job/" + name).ok());
      }
      disk_.CutPowerAtCall(call, seed * 1000 + call);
      const absl::Status interrupted = Open();
      if (disk_.on()) {
        ASSERT_TRUE(interrupted.ok()) << interrupted;
        disk_.CutPowerAtCall(kNever, 0);
        break;
      }
      ++cuts;
      disk_.PowerOn();
      for (const std::string& name : Names()) {
        leftovers += absl::EndsWith(name, log_format::kFreshSuffix);
      }
      const absl::Status again = Open();
      ASSERT_TRUE(again.ok()) << "call " << call << ", seed " << seed << ": " << again;
      EXPECT_EQ(Names(), std::vector<std::string>{log_format::kFileName});
    }
  }
  EXPECT_GT(cuts, 40 * 8);
  EXPECT_GT(leftovers, 40);
}

}  // namespace
}  // namespace eps
