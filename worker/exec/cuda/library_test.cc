// The library that nvcc built, on a machine with or without a device.

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

TEST(CudaLibraryTest, LoadsEveryFunctionWithoutADriver) {
  const auto kernels = LoadCudaKernels({"/nowhere/libeps_cuda.so", PathOf("libeps_cuda.so")});
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  const eps_cuda_chunk nothing = {nullptr, 0, 0};
  EXPECT_EQ(kernels->tree_add(nullptr, nullptr, 0, nullptr, nullptr), 0);
  EXPECT_EQ(kernels->decode_bf16(nullptr, 0, nullptr, nullptr), 0);
  EXPECT_EQ(kernels->encode_bf16(nullptr, 0, nullptr, nullptr), 0);
  EXPECT_EQ(kernels->decode_chunk(8, &nothing, nullptr, nullptr, nullptr), 0);
  EXPECT_EQ(kernels->encode_chunk(8, 1, &nothing, nullptr, nullptr, nullptr), 0);
  EXPECT_STREQ(kernels->error_text(0), "no error");
}

TEST(CudaLibraryTest, RefusesUnknownCodecsAndInvalidCalls) {
  const auto kernels = LoadCudaKernels({PathOf("libeps_cuda.so")});
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  const eps_cuda_chunk nothing = {nullptr, 0, 0};
  const int error = kernels->decode_chunk(6, &nothing, nullptr, nullptr, nullptr);
  EXPECT_STREQ(kernels->error_text(error), "invalid argument");
  EXPECT_EQ(kernels->encode_chunk(16, 1, &nothing, nullptr, nullptr, nullptr), error);
  const eps_cuda_topk call = {100, 0, 1, 0, 0};
  EXPECT_EQ(kernels->encode_topk(&call, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
            error);
  EXPECT_GT(kernels->topk_scratch_bytes(&call), 0u);
}

TEST(CudaLibraryTest, LaunchesWithoutADriverReturnErrors) {
  if (WhyNoCudaDriver().empty()) return;  // with a driver, device_check.cc launches them
  const auto kernels = LoadCudaKernels({PathOf("libeps_cuda.so")});
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  float value = 0;
  const int error = kernels->tree_add(&value, &value, 1, &value, nullptr);
  EXPECT_NE(error, 0);
  EXPECT_TRUE(absl::StrContains(kernels->error_text(error), "driver"))
      << kernels->error_text(error);
  const eps_cuda_segment segment = {1, 1};
  const eps_cuda_chunk chunk = {&segment, 1, 0};
  EXPECT_EQ(kernels->decode_chunk(16, &chunk, &value, &value, nullptr), error);
  EXPECT_EQ(kernels->encode_chunk(3, 0, &chunk, &value, &value, nullptr), error);
  const eps_cuda_topk call = {1, 1, 1, 0, 0};
  EXPECT_EQ(kernels->encode_topk(&call, &value, nullptr, nullptr, nullptr, nullptr, nullptr),
            error);
}

std::string Assembly(const std::string& file) {
  std::ifstream in(PathOf(file));
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

// Checks that code that defines bits uses only instructions that a CPU has too. Returns the number
// of additions of floats.
int CheckArithmetic(const std::string& text) {
  int additions = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_FALSE(absl::StrContains(line, "fma.")) << line;
    EXPECT_FALSE(absl::StrContains(line, "mul.f") || absl::StrContains(line, "mul.rn")) << line;
    if (!absl::StrContains(line, ".f32") || !absl::StrContains(line, "add.")) continue;
    ++additions;
    EXPECT_TRUE(absl::StrContains(line, "add.rn.ftz.f32") || absl::StrContains(line, "add.ftz.f32"))
        << line;
  }
  return additions;
}

TEST(CudaLibraryTest, AddsWithoutDenormalsAndFusesNothing) {
  const std::string text = Assembly("kernels.ptx");
  ASSERT_TRUE(absl::StrContains(text, "TreeAddKernel")) << "not the kernels";
  EXPECT_GT(CheckArithmetic(text), 0);
  const std::string topk = Assembly("topk_kernels.ptx");
  ASSERT_TRUE(absl::StrContains(topk, "AddResidualBody")) << "not the kernels";
  EXPECT_GT(CheckArithmetic(topk), 0);
}

TEST(CudaLibraryTest, DenseCodecsDoNoArithmeticOnFloats) {
  const std::string text = Assembly("codec_kernels.ptx");
  ASSERT_TRUE(absl::StrContains(text, "DecodeTilesBody")) << "not the kernels";
  EXPECT_EQ(CheckArithmetic(text), 0);
}

}  // namespace
}  // namespace eps
