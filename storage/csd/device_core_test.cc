#include "storage/csd/device_core.h"

#include "gtest/gtest.h"
#include "storage/csd/testing/file_device_tests.h"

namespace eps {
namespace {

absl::StatusOr<std::unique_ptr<Device>> Open(const FileDeviceOptions& options, Disk* disk,
                                             Executor* executor, MemoryAccount* account) {
  return DeviceCore::Open(options, disk, executor, account);
}

INSTANTIATE_TEST_SUITE_P(DeviceCore, FileDeviceTest, testing::Values(&Open));

}  // namespace
}  // namespace eps
