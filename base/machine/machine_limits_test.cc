#include "base/machine/machine_limits.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// A tree of files as a machine has them; the destructor removes it.
class Machine {
 public:
  explicit Machine(const std::map<std::string, std::string>& files)
      : root_(testing::TempDir() + "/machine_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n"
          "MemAvailable:    8388608 kB\nBuffers:           10000 kB\n");
    for (const auto& [path, text] : files) Write(path, text);
  }
  ~Machine() { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string& root() const { return root_; }

 private:
  const std::string root_;
};

// /proc/self/mountinfo of a machine with systemd, where version 2 has all controllers.
constexpr char kMountsTwo[] =
    "22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw\n"
    "29 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 "
    "rw,nsdelegate,memory_recursiveprot\n";
// The same of one where each controller of version 1 has its own hierarchy.
constexpr char kMountsOne[] =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

TEST(MachineLimitsTest, UsesTheMachineWithoutGroups) {
  const Machine machine({});
  EXPECT_EQ(UsableProcessors(machine.root(), 96), 96u);
  EXPECT_EQ(*AvailableMemory(machine.root()), 8 * kGiB);
  EXPECT_EQ(*MemoryCapacity(machine.root()), 16 * kGiB);
}

TEST(MachineLimitsTest, ObeysVersionTwo) {
  const Machine machine({{"/proc/self/mountinfo", kMountsTwo},
                         {"/proc/self/cgroup", "0::/job.slice/run\n"},
                         {"/sys/fs/cgroup/job.slice/run/cpu.max", "400000 100000\n"},
                         {"/sys/fs/cgroup/job.slice/run/memory.max", "4294967296\n"},
                         {"/sys/fs/cgroup/job.slice/run/memory.high", "max\n"},
                         {"/sys/fs/cgroup/job.slice/run/memory.current", "3221225472\n"}});
  EXPECT_EQ(UsableProcessors(machine.root(), 96), 4u);
  EXPECT_EQ(UsableProcessors(machine.root(), 2), 2u);
  EXPECT_EQ(*AvailableMemory(machine.root()), kGiB);
  EXPECT_EQ(*MemoryCapacity(machine.root()), 4 * kGiB);
}

TEST(MachineLimitsTest, OuterGroupsLimitInnerOnes) {
  const Machine machine({{"/proc/self/mountinfo", kMountsTwo},
                         {"/proc/self/cgroup", "0::/outer/middle/inner\n"},
                         {"/sys/fs/cgroup/outer/cpu.max", "250000 100000\n"},
                         {"/sys/fs/cgroup/outer/middle/cpu.max", "max 100000\n"},
                         {"/sys/fs/cgroup/outer/middle/inner/cpu.max", "800000 100000\n"},
                         {"/sys/fs/cgroup/outer/memory.max", "max\n"},
                         {"/sys/fs/cgroup/outer/middle/memory.high", "2147483648\n"},
                         {"/sys/fs/cgroup/outer/middle/memory.max", "3221225472\n"},
                         {"/sys/fs/cgroup/outer/middle/memory.current", "1073741824\n"},
                         {"/sys/fs/cgroup/outer/middle/inner/memory.max", "max\n"}});
  EXPECT_EQ(UsableProcessors(machine.root(), 96), 2u) << "2.5 processors of time";
  EXPECT_EQ(*AvailableMemory(machine.root()), kGiB);
  EXPECT_EQ(*MemoryCapacity(machine.root()), 2 * kGiB);
}

TEST(MachineLimitsTest, ObeysVersionOne) {
  const Machine machine(
      {{"/proc/self/mountinfo", kMountsOne},
       {"/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "50000\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n"},
       {"/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n"},
       {"/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "2147483648\n"},
       {"/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "2147483648\n"},
       {"/sys/fs/cgroup/memory/docker/abc/memory.stat",
        "cache 1073741824\ninactive_file 1\ntotal_inactive_file 536870912\n"}});
  EXPECT_EQ(UsableProcessors(machine.root(), 96), 1u) << "half a processor of time";
  EXPECT_EQ(*AvailableMemory(machine.root()), kGiB / 2) << "the idle page cache";
  EXPECT_EQ(*MemoryCapacity(machine.root()), 2 * kGiB);
}

// A container mounts its own group as the root, while /proc/self/cgroup names it from outside.
TEST(MachineLimitsTest, FindsTheGroupOfAContainer) {
  const Machine machine(
      {{"/proc/self/mountinfo",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "36 31 0:33 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"},
       {"/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu:/docker/abc/inner\n"},
       {"/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "300000\n"},
       {"/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n"},
       {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "3221225472\n"},
       {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n"}});
  EXPECT_EQ(UsableProcessors(machine.root(), 96), 3u);
  EXPECT_EQ(*AvailableMemory(machine.root()), 3 * kGiB);
}

TEST(MachineLimitsTest, GroupOutsideTheMountIsTheMount) {
  const Machine machine({{"/proc/self/mountinfo", kMountsTwo},
                         {"/proc/self/cgroup", "0::/../../elsewhere\n"},
                         {"/sys/fs/cgroup/cpu.max", "700000 100000\n"},
                         {"/sys/fs/cgroup/memory.max", "1073741824\n"}});
  EXPECT_EQ(UsableProcessors(machine.root(), 96), 7u);
  EXPECT_EQ(*AvailableMemory(machine.root()), kGiB);
}

TEST(MachineLimitsTest, FullGroupHasNothingLeft) {
  const Machine machine({{"/proc/self/mountinfo", kMountsTwo},
                         {"/proc/self/cgroup", "0::/\n"},
                         {"/sys/fs/cgroup/memory.max", "1073741824\n"},
                         {"/sys/fs/cgroup/memory.current", "1073745920\n"}});
  EXPECT_EQ(*AvailableMemory(machine.root()), 0u);
}

TEST(MachineLimitsTest, NamesTheMissingFigure) {
  Machine machine({});
  machine.Write("/proc/meminfo", "MemFree: 10 kB\n");
  EXPECT_EQ(AvailableMemory(machine.root()).status().message(),
            "/proc/meminfo has no MemAvailable; set servers.memory_limit");
}

TEST(MachineLimitsTest, ReadsThisMachine) {
  EXPECT_GE(UsableProcessors(), 1u);
  EXPECT_GT(*AvailableMemory(), 0u);
  EXPECT_LE(*AvailableMemory(), *MemoryCapacity());
}

TEST(MachineLimitsTest, ServersDivideWhatWorkersLeave) {
  EXPECT_EQ(ServerThreads(96, 8, 2), 44u);
  EXPECT_EQ(ServerThreads(2, 1, 2), 1u);
  EXPECT_EQ(ServerThreads(8, 16, 1), 1u);
  EXPECT_EQ(ServerThreads(8, 0, 1), 8u);
  EXPECT_EQ(ServerThreads(8, 0, 0), 8u);
}

}  // namespace
}  // namespace eps
