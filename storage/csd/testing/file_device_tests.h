#ifndef EPS_STORAGE_CSD_TESTING_FILE_DEVICE_TESTS_H_
#define EPS_STORAGE_CSD_TESTING_FILE_DEVICE_TESTS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "gtest/gtest.h"
#include "storage/csd/device.h"
#include "storage/csd/file_device.h"
#include "storage/csd/testing/block.h"
#include "storage/disk/disk.h"
#include "storage/testing/simulated_disk.h"

namespace eps {

// Opens a device of the kind under test.
using OpenFileDevice = absl::StatusOr<std::unique_ptr<Device>> (*)(const FileDeviceOptions& options,
                                                                   Disk* disk, Executor* executor,
                                                                   MemoryAccount* account);

// The tests of every FileDevice, on a simulated disk. Instantiate them with the kind, whose memory
// is the host's.
class FileDeviceTest : public testing::TestWithParam<OpenFileDevice> {
 protected:
  static constexpr uint64_t kBlocks = 8;
  static constexpr Place kMedia = {Place::Where::kMedia, 0};

  FileDeviceTest() { Open(); }

  absl::Status TryOpen(uint64_t media_bytes) {
    device_.reset();
    auto opened = GetParam()({"csd-0", "/medium", media_bytes, kBlocks * kDiskBlock}, &disk_,
                             &pool_, &account_);
    if (opened.ok()) device_ = *std::move(opened);
    return opened.status();
  }
  void Open() {
    const absl::Status status = TryOpen(kBlocks * kDiskBlock);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Waits for an operation, which must not complete on the caller's stack.
  static absl::Status Wait(const std::function<void(Device::Done)>& start);
  absl::Status Write(Block* from, Place to, Purpose purpose = Purpose::kState) {
    return Wait([&](Device::Done done) { device_->HostWrite(from->span(), to, purpose, done); });
  }
  absl::Status Read(Place from, Block* into, Purpose purpose = Purpose::kState) {
    return Wait([&](Device::Done done) { device_->HostRead(from, into->span(), purpose, done); });
  }
  absl::Status Copy(Place from, Place to, Purpose purpose = Purpose::kState) {
    return Wait([&](Device::Done done) { device_->Copy(from, to, kDiskBlock, purpose, done); });
  }
  absl::Status Sync() {
    return Wait([&](Device::Done done) { device_->Sync(std::move(done)); });
  }

  ThreadPool pool_{2};
  SimulatedDisk disk_{[this] {
    SimulatedDisk::Options options;
    options.executor = &pool_;
    return options;
  }()};
  MemoryAccount account_;
  std::unique_ptr<Device> device_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_TESTING_FILE_DEVICE_TESTS_H_
