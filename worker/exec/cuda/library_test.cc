// Of the library as nvcc made it, on a machine with or without a device.

#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/exec/cuda_library.h"

namespace eps {
namespace {

std::string PathOf(const std::string& file) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                      "/worker/exec/cuda/", file);
}

TEST(CudaLibraryTest, LoadsWithoutADriverAndHasEveryFunction) {
  const auto kernels = LoadCudaKernels({"/nowhere/libeps_cuda.so", PathOf("libeps_cuda.so")});
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  EXPECT_EQ(kernels->tree_add(nullptr, nullptr, 0, nullptr, nullptr), 0);
  EXPECT_EQ(kernels->decode_bf16(nullptr, 0, nullptr, nullptr), 0);
  EXPECT_EQ(kernels->encode_bf16(nullptr, 0, nullptr, nullptr), 0);
  EXPECT_STREQ(kernels->error_text(0), "no error");
}

TEST(CudaLibraryTest, ALaunchWithoutADriverIsAnErrorWithAText) {
  if (WhyNoCudaDriver().empty()) return;  // device_check.cc launches them
  const auto kernels = LoadCudaKernels({PathOf("libeps_cuda.so")});
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  float value = 0;
  const int error = kernels->tree_add(&value, &value, 1, &value, nullptr);
  EXPECT_NE(error, 0);
  EXPECT_TRUE(absl::StrContains(kernels->error_text(error), "driver"))
      << kernels->error_text(error);
}

}  // namespace
}  // namespace eps
