// The process of a device as the system sees it: the bytes that it moves, and what it shares. With
// a sanitizer, its runtime moves bytes of its own and there is no fence.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/csd/device.h"
#include "storage/csd/process/frames.h"
#include "storage/csd/process/testing/device_process_fixture.h"
#include "storage/disk/disk.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

// The counters that the kernel keeps for a process.
struct KernelLedger {
  explicit KernelLedger(pid_t pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/io"));
    std::string name;
    uint64_t value = 0;
    while (file >> name >> value) values[name] = value;
  }
  uint64_t Since(const KernelLedger& earlier, const std::string& name) const {
    return values.at(name) - earlier.values.at(name);
  }
  std::map<std::string, uint64_t> values;
};

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

using IsolationTest = DeviceProcessTest;

// The host, the device and the kernel count the same bytes, each on its own.
TEST_F(IsolationTest, ThreeLedgersAgree) {
  Start();
  const Place dram = *device_->Allocate(kManySlices);
  HostMemory memory(kManySlices);
  memory.Fill(5);
  ASSERT_TRUE(Sync().ok());
  const LinkBytes host_before = device_->link_bytes();
  const LinkBytes device_before = *device_->DeviceLedger();
  const KernelLedger kernel_before(device_->pid());
  ASSERT_TRUE(Write(&memory, kMedia).ok());
  ASSERT_TRUE(Write(&memory, dram, Purpose::kGradient).ok());
  ASSERT_TRUE(Read(kMedia, &memory, Purpose::kWeights).ok());
  ASSERT_TRUE(Copy(kMedia, dram, kManySlices).ok());
  ASSERT_TRUE(Copy(dram, kMedia.At(4 * kMiB), kManySlices).ok());
  ASSERT_TRUE(Sync().ok());
  const KernelLedger kernel_after(device_->pid());
  const LinkBytes device = device_->DeviceLedger()->Since(device_before);
  const LinkBytes host = device_->link_bytes().Since(host_before);

  LinkBytes expected;
  const auto add = [&](Link link, Direction direction, Purpose purpose) {
    expected.Add(link, direction, purpose, kManySlices);
  };
  add(Link::kHost, Direction::kWritten, Purpose::kState);
  add(Link::kHost, Direction::kWritten, Purpose::kGradient);
  add(Link::kHost, Direction::kRead, Purpose::kWeights);
  for (const Direction direction : {Direction::kRead, Direction::kWritten}) {
    add(Link::kInternal, direction, Purpose::kGradient);
    add(Link::kMedia, direction, Purpose::kGradient);
  }
  add(Link::kMedia, Direction::kWritten, Purpose::kState);
  add(Link::kMedia, Direction::kRead, Purpose::kWeights);
  EXPECT_TRUE(device == expected);
  EXPECT_TRUE(host == expected);

  constexpr uint64_t kCommands = 6;
  constexpr uint64_t kReplies = 5 + 3;  // the read has three slices
  EXPECT_EQ(kernel_after.Since(kernel_before, "rchar:"),
            device.of(Link::kHost, Direction::kWritten) +
                device.of(Link::kMedia, Direction::kRead) + kCommands * csd::kCommandBytes);
  EXPECT_EQ(kernel_after.Since(kernel_before, "wchar:"),
            device.of(Link::kHost, Direction::kRead) +
                device.of(Link::kMedia, Direction::kWritten) + kReplies * csd::kReplyBytes);
  // Blocks of the drive; writes include metadata of the file system.
  EXPECT_EQ(kernel_after.Since(kernel_before, "read_bytes:"),
            device.of(Link::kMedia, Direction::kRead))
      << "the medium must lie on a drive with direct I/O, not in memory";
  const uint64_t written = kernel_after.Since(kernel_before, "write_bytes:");
  EXPECT_GE(written, device.of(Link::kMedia, Direction::kWritten));
  EXPECT_LE(written, device.of(Link::kMedia, Direction::kWritten) * 1001 / 1000 + kDiskBlock);
}

TEST_F(IsolationTest, SharesOnlySocketsAndFiles) {
  Start();
  int sockets = 0;
  const std::string proc = absl::StrCat("/proc/", device_->pid());
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    const int fd = std::stoi(entry.path().filename());
    const std::string target = std::filesystem::read_symlink(entry.path());
    if (target.rfind("socket:", 0) == 0) ++sockets;
    if (fd < csd::kFirstLane || target.rfind("socket:", 0) == 0) continue;
    EXPECT_THAT(target, HasSubstr("/medium")) << "descriptor " << fd;
  }
  EXPECT_GE(sockets, csd::kLaneCount);
  for (const auto line : absl::StrSplit(ReadFile(proc + "/maps"), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    EXPECT_EQ(fields.at(1).at(3), 'p') << line;
  }
  EXPECT_THAT(ReadFile(proc + "/status"), HasSubstr("Seccomp:\t2"));
  EXPECT_THAT(ReadFile(proc + "/limits"), ::testing::Not(HasSubstr("Max address space         "
                                                                   "unlimited")));
}

}  // namespace
}  // namespace eps
