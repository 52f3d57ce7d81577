// Of the library as nvcc made it, on a machine with or without a device.

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
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

// Of what defines bits, only the instructions that a CPU has, too.
TEST(CudaLibraryTest, AddsWithoutDenormalsAndFusesNothing) {
  std::ifstream file(PathOf("kernels.ptx"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_TRUE(absl::StrContains(text, "TreeAddKernel")) << "not the kernels";
  int additions = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_FALSE(absl::StrContains(line, "fma.")) << line;
    EXPECT_FALSE(absl::StrContains(line, "mul.f") || absl::StrContains(line, "mul.rn")) << line;
    if (!absl::StrContains(line, ".f32") || !absl::StrContains(line, "add.")) continue;
    ++additions;
    EXPECT_TRUE(absl::StrContains(line, "add.rn.ftz.f32") || absl::StrContains(line, "add.ftz.f32"))
        << line;
  }
  EXPECT_GT(additions, 0);
}

}  // namespace
}  // namespace eps
