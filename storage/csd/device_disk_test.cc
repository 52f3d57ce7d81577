// Files in devices: what Disk promises, power cuts, damage, and the bytes that cross the links.

#include "storage/csd/device_disk.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/csd/device_core.h"
#include "storage/csd/file_table.h"
#include "storage/csd/testing/block.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMediaBytes = kFirstAreaOffset + 8 * kDiskBlock;

Purpose PurposeOf(const std::string& path) {
  return absl::StrContains(path, "gradient") ? Purpose::kGradient : Purpose::kState;
}

// Two devices at /a and /b, whose media are files of one simulated disk.
class DeviceDiskTest : public testing::Test {
 protected:
  DeviceDiskTest() { Start(); }

  absl::Status TryStart() {
    disk_.reset();
    devices_.clear();
    std::vector<DeviceMount> mounts;
    for (const char* const name : {"a", "b"}) {
      auto device = DeviceCore::Open({name, absl::StrCat("/medium-", name), kMediaBytes, 0},
                                     host_.blocking(), &pool_, &account_);
      if (!device.ok()) return device.status();
      devices_.push_back(*std::move(device));
      mounts.push_back({absl::StrCat("/", name), devices_.back().get()});
    }
    auto disk = DeviceDisk::Open(&host_, mounts, PurposeOf);
    if (disk.ok()) disk_ = *std::move(disk);
    return disk.status();
  }
  void Start() {
    const absl::Status status = TryStart();
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::Status Write(const std::string& path, uint64_t offset, uint8_t value) {
    const auto file = disk_->Open(path);
    if (!file.ok()) return file.status();
    Block block(value);
    const absl::Status status = WriteBlocking(file->get(), offset, block.span());
    return status.ok() ? SyncBlocking(file->get()) : status;
  }
  // Returns the value that every byte of a block has.
  int ReadAt(const std::string& path, uint64_t offset) {
    const auto file = disk_->Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return -1;
    Block block;
    const absl::Status status = ReadBlocking(file->get(), offset, block.span());
    EXPECT_TRUE(status.ok()) << status;
    for (const uint8_t byte : block.bytes) EXPECT_EQ(byte, block.bytes[0]);
    return block.bytes[0];
  }

  SimulatedDisk host_{SimulatedDisk::Options()};
  ThreadPool pool_{1};
  MemoryAccount account_;
  std::vector<std::unique_ptr<DeviceCore>> devices_;
  std::unique_ptr<DeviceDisk> disk_;
};

TEST_F(DeviceDiskTest, FilesLieInTheirDevices) {
  ASSERT_TRUE(disk_->CreateFolder("/a/job").ok());
  ASSERT_TRUE(disk_->CreateFolder("/b/job").ok());
  ASSERT_TRUE(disk_->CreateFolder("/host").ok());
  for (const char* const path : {"/a/job/slot", "/b/job/slot", "/host/slot"}) {
    ASSERT_TRUE(disk_->CreateFile(path, 2 * kDiskBlock).ok()) << path;
    EXPECT_EQ(ReadAt(path, kDiskBlock), 0) << "new files are zeros";
    ASSERT_TRUE(Write(path, kDiskBlock, static_cast<uint8_t>(path[1])).ok());
  }
  EXPECT_FALSE(absl::IsNotFound(host_.Open("/host/slot").status()));
  EXPECT_TRUE(absl::IsNotFound(host_.Open("/a/job/slot").status()));
  Start();
  for (const char* const path : {"/a/job/slot", "/b/job/slot", "/host/slot"}) {
    EXPECT_EQ(ReadAt(path, kDiskBlock), path[1]);
    EXPECT_EQ(ReadAt(path, 0), 0);
  }
  EXPECT_EQ(*disk_->FreeBytes("/a"), 6 * kDiskBlock);
}

TEST_F(DeviceDiskTest, NamesAreThoseOfADisk) {
  EXPECT_THAT(*disk_->List("/a"), IsEmpty());
  ASSERT_TRUE(disk_->CreateFolder("/a/x/y").ok());
  ASSERT_TRUE(disk_->CreateFile("/a/x/y/file", 2 * kDiskBlock).ok());
  ASSERT_TRUE(disk_->CreateFile("/a/x/other", kDiskBlock).ok());
  EXPECT_THAT(*disk_->List("/a"), ElementsAre("x"));
  EXPECT_THAT(*disk_->List("/a/x"), ElementsAre("other", "y"));
  EXPECT_EQ((*disk_->Open("/a/x/y/file"))->size(), 2 * kDiskBlock);
  EXPECT_TRUE(absl::IsInvalidArgument(disk_->CreateFile("/a/x/odd", 10)));
  EXPECT_TRUE(absl::IsAlreadyExists(disk_->CreateFile("/a/x/other", kDiskBlock)));
  EXPECT_TRUE(absl::IsNotFound(disk_->CreateFile("/a/missing/file", kDiskBlock)));
  EXPECT_TRUE(absl::IsFailedPrecondition(disk_->Remove("/a/x/y"))) << "not empty";
  ASSERT_TRUE(disk_->Rename("/a/x", "/a/z").ok());
  EXPECT_THAT(*disk_->List("/a/z/y"), ElementsAre("file"));
  EXPECT_TRUE(absl::IsNotFound(disk_->List("/a/x").status()));
  const FileIdentity other = (*disk_->Open("/a/z/other"))->identity();
  ASSERT_TRUE(disk_->Rename("/a/z/other", "/a/z/y/file").ok()) << "replaces a file";
  EXPECT_TRUE((*disk_->Open("/a/z/y/file"))->identity() == other);
  ASSERT_TRUE(disk_->Remove("/a/z/y/file").ok());
  ASSERT_TRUE(disk_->Remove("/a/z/y").ok());
  EXPECT_THAT(*disk_->List("/a/z"), IsEmpty());
  EXPECT_EQ(*disk_->FreeBytes("/a"), 8 * kDiskBlock);
  EXPECT_TRUE(absl::IsUnimplemented(disk_->Rename("/a/z", "/b/z")));
  const auto lock = disk_->TakeLock("/a/lock");
  ASSERT_TRUE(lock.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(disk_->TakeLock("/a/lock").status()));
}

TEST_F(DeviceDiskTest, AreasAreUsedAgainAndNeverTwice) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(disk_->CreateFile(absl::StrCat("/a/", i), 2 * kDiskBlock).ok());
    ASSERT_TRUE(Write(absl::StrCat("/a/", i), kDiskBlock, static_cast<uint8_t>(i + 1)).ok());
  }
  const absl::Status full = disk_->CreateFile("/a/more", kDiskBlock);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("0 are free"));
  ASSERT_TRUE(disk_->Remove("/a/1").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(disk_->CreateFile("/a/more", 3 * kDiskBlock)));
  ASSERT_TRUE(disk_->CreateFile("/a/more", 2 * kDiskBlock).ok());
  EXPECT_EQ(ReadAt("/a/more", kDiskBlock), 0);
  for (const int i : {0, 2, 3}) EXPECT_EQ(ReadAt(absl::StrCat("/a/", i), kDiskBlock), i + 1);
}

TEST_F(DeviceDiskTest, OnlyUsedAreasAreFilledWithZeros) {
  const auto control = [&] {
    return devices_[0]->link_bytes().of(Link::kHost, Direction::kWritten, Purpose::kControl);
  };
  ASSERT_TRUE(disk_->CreateFile("/a/first", 4 * kDiskBlock).ok());
  EXPECT_EQ(control(), kFileTableBytes);
  ASSERT_TRUE(Write("/a/first", 2 * kDiskBlock, 7).ok());
  ASSERT_TRUE(disk_->Remove("/a/first").ok());
  Start();  // what was used is in the table
  ASSERT_TRUE(disk_->CreateFile("/a/second", 4 * kDiskBlock).ok());
  EXPECT_EQ(control(), kFileTableBytes + 4 * kDiskBlock);
  EXPECT_EQ(ReadAt("/a/second", 2 * kDiskBlock), 0);
}

TEST_F(DeviceDiskTest, TransfersBeyondAFileAreRefused) {
  ASSERT_TRUE(disk_->CreateFile("/a/first", kDiskBlock).ok());
  ASSERT_TRUE(disk_->CreateFile("/a/second", kDiskBlock).ok());
  const absl::Status status = Write("/a/first", kDiskBlock, 1);
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/a/first: write"));
  EXPECT_EQ(ReadAt("/a/second", 0), 0);
}

// The host is the only way to a file, so its link carries what the medium does.
TEST_F(DeviceDiskTest, EveryByteCrossesTheHostLink) {
  ASSERT_TRUE(disk_->CreateFile("/b/state", 2 * kDiskBlock).ok());
  ASSERT_TRUE(disk_->CreateFile("/b/gradient", kDiskBlock).ok());
  const LinkBytes before = devices_[1]->link_bytes();
  ASSERT_TRUE(Write("/b/state", 0, 1).ok());
  ASSERT_TRUE(Write("/b/gradient", 0, 2).ok());
  EXPECT_EQ(ReadAt("/b/state", 0), 1);
  EXPECT_EQ(ReadAt("/b/state", kDiskBlock), 0);
  LinkBytes expected;
  for (const Link link : {Link::kHost, Link::kMedia}) {
    expected.Add(link, Direction::kWritten, Purpose::kState, kDiskBlock);
    expected.Add(link, Direction::kWritten, Purpose::kGradient, kDiskBlock);
    expected.Add(link, Direction::kRead, Purpose::kState, 2 * kDiskBlock);
  }
  EXPECT_TRUE(devices_[1]->link_bytes().Since(before) == expected);
}

// Cuts the power in each call of a change, and finds the change made or not made.
TEST_F(DeviceDiskTest, PowerCutsLeaveOneOfTwoTables) {
  ASSERT_TRUE(disk_->CreateFile("/a/kept", kDiskBlock).ok());
  ASSERT_TRUE(Write("/a/kept", 0, 9).ok());
  int old_tables = 0, new_tables = 0;
  for (uint64_t call = 1; call < 100; ++call) {
    host_.CutPowerAtCall(call, call);
    const bool made = disk_->CreateFile("/a/new", 2 * kDiskBlock).ok();
    if (host_.on()) {
      host_.CutPower(call);
    }
    host_.PowerOn();
    Start();
    EXPECT_EQ(ReadAt("/a/kept", 0), 9);
    const std::vector<std::string> names = *disk_->List("/a");
    const bool found = names.size() == 2;
    ++(found ? new_tables : old_tables);
    EXPECT_TRUE(found || !made) << "call " << call;
    if (found) {
      EXPECT_EQ(ReadAt("/a/new", kDiskBlock), 0);
      ASSERT_TRUE(disk_->Remove("/a/new").ok());
    }
    if (made) break;
  }
  EXPECT_GE(old_tables, 2);
  EXPECT_GE(new_tables, 1);
}

TEST_F(DeviceDiskTest, PowerCutsLeaveNewMediaUsable) {
  for (uint64_t call = 1; call < 30; ++call) {
    SimulatedDisk fresh{SimulatedDisk::Options()};
    const auto start = [&]() -> absl::Status {
      auto device =
          DeviceCore::Open({"c", "/medium", kMediaBytes, 0}, fresh.blocking(), &pool_, &account_);
      if (!device.ok()) return device.status();
      return DeviceDisk::Open(&host_, {{"/c", device->get()}}, PurposeOf).status();
    };
    fresh.CutPowerAtCall(call, call);
    const bool started = start().ok();
    if (started && fresh.on()) break;
    if (fresh.on()) fresh.CutPower(call);
    fresh.PowerOn();
    const absl::Status status = start();
    EXPECT_TRUE(status.ok()) << "call " << call << ": " << status;
  }
}

TEST_F(DeviceDiskTest, OneDamagedTableIsNoLoss) {
  ASSERT_TRUE(disk_->CreateFile("/a/file", kDiskBlock).ok());
  // Both copies know the file after a change that it survives.
  ASSERT_TRUE(disk_->CreateFolder("/a/folder").ok());
  for (const uint64_t copy : {0, 1}) {
    host_.FlipBit("/medium-a", copy * kFileTableBytes + 20, 3);
    Start();
    EXPECT_EQ(ReadAt("/a/file", 0), 0);
    host_.FlipBit("/medium-a", copy * kFileTableBytes + 20, 3);
  }
  for (const uint64_t copy : {0, 1}) host_.FlipBit("/medium-a", copy * kFileTableBytes + 20, 3);
  const absl::Status status = TryStart();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/a on device a: "));
}

TEST_F(DeviceDiskTest, FailedChangesChangeNothing) {
  ASSERT_TRUE(disk_->CreateFile("/a/file", kDiskBlock).ok());
  for (const DiskCall call : {DiskCall::kWrite, DiskCall::kSync}) {
    host_.FailCall(call, 1, DiskFault::kIoError);
    EXPECT_TRUE(absl::IsInternal(disk_->Remove("/a/file")));
    EXPECT_THAT(*disk_->List("/a"), ElementsAre("file"));
  }
  EXPECT_TRUE(disk_->Remove("/a/file").ok());
}

}  // namespace
}  // namespace eps
