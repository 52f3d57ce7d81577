#include "worker/stash_room.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

class StashRoomTest : public testing::Test {
 protected:
  ~StashRoomTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // 8 GiB of the machine are available.
  void WriteMemory() {
    Write("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
  }
  // A container that may use 2 GiB, of which 1 GiB is in use.
  void EnterContainer() {
    Write("/proc/self/mountinfo",
          "29 24 0:26 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    Write("/proc/self/cgroup", "0::/pod/worker\n");
    Write("/sys/fs/cgroup/pod/memory.max", "2147483648\n");
    Write("/sys/fs/cgroup/pod/memory.current", "1073741824\n");
    Write("/sys/fs/cgroup/pod/worker/memory.max", "max\n");
    Write("/sys/fs/cgroup/pod/worker/memory.current", "1073741824\n");
  }

  const std::string root_ = testing::TempDir() + "/stash_room_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(StashRoomTest, IsTheConfiguredSize) {
  WriteMemory();
  EXPECT_EQ(StashRoom(123, /*workers=*/4, root_), 123u);
}

TEST_F(StashRoomTest, IsHalfOfWhatIsAvailable) {
  WriteMemory();
  EXPECT_EQ(StashRoom(0, /*workers=*/1, root_), 4 * kGiB);
  EXPECT_EQ(StashRoom(0, /*workers=*/4, root_), kGiB);
}

TEST_F(StashRoomTest, ObeysTheLimitOfAContainer) {
  WriteMemory();
  EnterContainer();
  EXPECT_EQ(StashRoom(0, /*workers=*/1, root_), kGiB / 2);
  EXPECT_EQ(StashRoom(0, /*workers=*/2, root_), kGiB / 4);
}

TEST_F(StashRoomTest, HasNoLimitOnAnUnknownSystem) {
  EXPECT_EQ(StashRoom(0, /*workers=*/1, root_), 0u);
}

}  // namespace
}  // namespace eps
