// The device on the runtime of this machine: pocl, which third_party/install/install_deps.sh
// installs. Without a runtime these tests fail.

#include "storage/csd/opencl/opencl_device.h"

#include <memory>
#include <string>

#include "base/executor.h"
#include "base/memory_account.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/csd/testing/file_device_tests.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Device>> Open(const FileDeviceOptions& options, Disk* disk,
                                             Executor* executor, MemoryAccount* account) {
  return OpenClDevice::Open(options, 0, TinySyntheticSpec(), disk, executor, account);
}

INSTANTIATE_TEST_SUITE_P(OpenCl, FileDeviceTest, testing::Values(&Open));

class OpenClOpenTest : public testing::Test {
 protected:
  absl::Status Opened(const JobSpec& spec, uint64_t dram_bytes = kDiskBlock, size_t index = 0) {
    const FileDeviceOptions options = {"csd-0", "/medium", kDiskBlock, dram_bytes};
    return OpenClDevice::Open(options, index, spec, &disk_, &pool_, &account_).status();
  }

  ThreadPool pool_{1};
  SimulatedDisk disk_{SimulatedDisk::Options()};
  MemoryAccount account_;
};

TEST_F(OpenClOpenTest, UnknownRulesAreRefusedByName) {
  JobSpec spec = TinySyntheticSpec();
  spec.optimizer.name = OptimizerName::kPlugin;
  const absl::Status status = Opened(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("device csd-0 ("));
  EXPECT_THAT(status.message(), HasSubstr("optimizer.name=plugin has no rule in OpenCL C"));
  EXPECT_THAT(status.message(), HasSubstr("adamw, sgd, adam, adagrad, lion"));
  EXPECT_EQ(account_.live_bytes(), 0u);
}

TEST_F(OpenClOpenTest, TooMuchMemoryIsRefused) {
  const absl::Status status = Opened(TinySyntheticSpec(), uint64_t{1} << 50);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("CL_DEVICE_MAX_MEM_ALLOC_SIZE): lower storage.csd.dram"));
  EXPECT_EQ(account_.live_bytes(), 0u);
}

TEST_F(OpenClOpenTest, IndicesCountModuloTheDevices) {
  EXPECT_TRUE(Opened(TinySyntheticSpec(), kDiskBlock, 1000).ok());
}

}  // namespace
}  // namespace eps
