#include "worker/exec/cuda_library.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/exec/cuda/kernels.h"

namespace eps {
namespace {

TEST(CudaLibraryTest, ListsTheSearchedPaths) {
  const absl::Status status = LoadCudaKernels({"/nowhere/a.so", "/nowhere/b.so"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(status.message(), "/nowhere/a.so or /nowhere/b.so")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "--config=cuda")) << status;
}

TEST(CudaLibraryTest, RefusesAFileThatIsNoLibrary) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/libeps_cuda.so");
  std::ofstream(path) << "not a library";
  const absl::Status status = LoadCudaKernels({path}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
}

TEST(CudaLibraryTest, RefusesAForeignLibrary) {
  const std::string path = "/lib/x86_64-linux-gnu/libz.so.1";
  if (!std::ifstream(path)) GTEST_FAIL() << path << " is missing; name another library";
  const absl::Status status = LoadCudaKernels({path}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "eps_cuda_abi_version")) << status;
}

TEST(CudaLibraryTest, RefusesKernelsOfAnotherVersion) {
  const std::string path = "worker/exec/testing/libold_cuda_kernels.so";
  const absl::Status status = LoadCudaKernels({path}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(
      status.message(), absl::StrCat(path, " has version 2 of the kernels, this worker needs ",
                                     EPS_CUDA_ABI_VERSION)))
      << status;
}

TEST(CudaLibraryTest, NamesModelAndCapabilityOfADevice) {
  const std::string driver = "worker/exec/testing/libfake_cuda_driver.so";
  EXPECT_EQ(CudaDeviceModel(0, driver).value(), "Model 10 sm_86");
  EXPECT_EQ(CudaDeviceModel(1, driver).value(), "Model 11 sm_96");
  const absl::Status status = CudaDeviceModel(2, driver).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "cuDeviceGet fails for device 2 with error 101"))
      << status;
  EXPECT_FALSE(CudaDeviceModel(0, "/nowhere/libcuda.so.1").ok());
}

TEST(CudaLibraryTest, LooksBesideTheProgram) {
  const std::vector<std::string> paths = CudaKernelPaths();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_TRUE(absl::EndsWith(paths[0], "/libeps_cuda.so")) << paths[0];
  EXPECT_TRUE(absl::EndsWith(paths[1], "/exec/cuda/libeps_cuda.so")) << paths[1];
}

}  // namespace
}  // namespace eps
