// The library that nvcc built, on a machine with or without a device.

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "worker/exec/cuda/kernels.h"
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
  EXPECT_EQ(kernels->decode_chunk_bf16(8, &nothing, nullptr, nullptr, nullptr), 0);
  const eps_cuda_mask mask = {1, 2, 3, 4, 5, 0.5, 0};
  EXPECT_EQ(kernels->dropout(&mask, EPS_CUDA_BF16, nullptr, nullptr, 0, nullptr, nullptr), 0);
  EXPECT_EQ(kernels->dropout_mask(&mask, 0, nullptr, nullptr), 0);
  EXPECT_EQ(kernels->loss(EPS_CUDA_FP32, nullptr, nullptr, 0, 9, 1, nullptr, nullptr), 0);
  EXPECT_EQ(kernels->crc32c(nullptr, 0, nullptr, nullptr), 0);
  EXPECT_STREQ(kernels->error_text(0), "no error");
}

TEST(CudaLibraryTest, RefusesUnknownCodecsAndInvalidCalls) {
  const auto kernels = LoadCudaKernels({PathOf("libeps_cuda.so")});
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  const eps_cuda_chunk nothing = {nullptr, 0, 0};
  const int error = kernels->decode_chunk(6, &nothing, nullptr, nullptr, nullptr);
  EXPECT_STREQ(kernels->error_text(error), "invalid argument");
  EXPECT_EQ(kernels->encode_chunk(16, 1, &nothing, nullptr, nullptr, nullptr), error);
  EXPECT_EQ(kernels->decode_chunk_bf16(7, &nothing, nullptr, nullptr, nullptr), error);
  const eps_cuda_mask all = {1, 2, 3, 4, 5, 1.0, 0};
  EXPECT_EQ(kernels->dropout(&all, EPS_CUDA_FP32, nullptr, nullptr, 1, nullptr, nullptr), error);
  EXPECT_EQ(kernels->dropout_mask(&all, 1, nullptr, nullptr), error);
  EXPECT_EQ(kernels->loss(EPS_CUDA_FP32, nullptr, nullptr, 1, 0, 1, nullptr, nullptr), error);
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
  uint16_t narrow = 0;
  EXPECT_EQ(kernels->decode_chunk_bf16(16, &chunk, &value, &narrow, nullptr), error);
  const eps_cuda_mask mask = {1, 2, 3, 4, 5, 0.5, 0};
  EXPECT_EQ(kernels->dropout(&mask, EPS_CUDA_FP32, &value, &value, 1, &value, nullptr), error);
  EXPECT_EQ(kernels->dropout_mask(&mask, 1, &value, nullptr), error);
  const int32_t label = 0;
  EXPECT_EQ(kernels->loss(EPS_CUDA_BF16, &narrow, &label, 1, 1, 1, &value, nullptr), error);
  uint32_t crc = 0;
  EXPECT_EQ(kernels->crc32c(&value, 4, &crc, nullptr), error);
  EXPECT_EQ(kernels->register_host(&value, sizeof(value), /*writable=*/0), error);
  EXPECT_NE(kernels->unregister_host(&value), 0);
  const eps_cuda_topk call = {1, 1, 1, 0, 0};
  EXPECT_EQ(kernels->encode_topk(&call, &value, nullptr, nullptr, nullptr, nullptr, nullptr),
            error);
}

std::string Assembly(const std::string& file) {
  std::ifstream in(PathOf(file));
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

// Instructions on floats in a kernel's assembly that a CPU computes with the same bits.
struct Arithmetic {
  int additions = 0;
  int products = 0;
};

// Returns the operation of a line of assembly, such as "add.rn.ftz.f32".
absl::string_view OperationOf(absl::string_view line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  return line.substr(0, line.find_first_of(" \t"));
}

// Counts them, and checks that all others round as a CPU, with denormals as zeros. Without
// ".rn", a compiler of assembly may fuse a product with an addition.
Arithmetic CheckArithmetic(const std::string& text) {
  Arithmetic found;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view operation = OperationOf(line);
    EXPECT_FALSE(absl::StrContains(line, "fma.") || absl::StrContains(line, ".approx")) << line;
    if (!absl::StrContains(operation, "f32")) continue;
    for (const char* exact : {"add", "sub", "mul", "div", "rcp"}) {
      if (!absl::StartsWith(operation, exact)) continue;
      EXPECT_EQ(operation, absl::StrCat(exact, ".rn.ftz.f32")) << line;
      const bool adds = absl::StartsWith(operation, "add") || absl::StartsWith(operation, "sub");
      ++(adds ? found.additions : found.products);
    }
  }
  return found;
}

TEST(CudaLibraryTest, AddsWithoutDenormalsAndFusesNothing) {
  const std::string text = Assembly("kernels.ptx");
  ASSERT_TRUE(absl::StrContains(text, "TreeAddKernel")) << "not the kernels";
  EXPECT_GT(CheckArithmetic(text).additions, 0);
  EXPECT_EQ(CheckArithmetic(text).products, 0);
  const std::string topk = Assembly("topk_kernels.ptx");
  ASSERT_TRUE(absl::StrContains(topk, "AddResidualBody")) << "not the kernels";
  EXPECT_GT(CheckArithmetic(topk).additions, 0);
  EXPECT_EQ(CheckArithmetic(topk).products, 0);
}

TEST(CudaLibraryTest, DropoutAndLossRoundEveryOperation) {
  const std::string text = Assembly("step_kernels.ptx");
  ASSERT_TRUE(absl::StrContains(text, "DropoutBody")) << "not the kernels";
  ASSERT_TRUE(absl::StrContains(text, "LossBody")) << "not the kernels";
  const Arithmetic found = CheckArithmetic(text);
  EXPECT_GT(found.additions, 50);
  EXPECT_GT(found.products, 50);
  EXPECT_TRUE(absl::StrContains(text, "ld.global.v4.u16")) << "reads elements one by one";
  EXPECT_TRUE(absl::StrContains(text, "st.global.wb.v4.u16")) << "writes elements one by one";
  EXPECT_FALSE(absl::StrContains(text, "ld.local")) << "keeps values in device memory";
}

TEST(CudaLibraryTest, CodecsAndCrcsComputeNoFloats) {
  const std::string text = Assembly("codec_kernels.ptx");
  ASSERT_TRUE(absl::StrContains(text, "DecodeTilesBody")) << "not the kernels";
  ASSERT_TRUE(absl::StrContains(text, "CrcBody")) << "not the kernels";
  const Arithmetic found = CheckArithmetic(text);
  EXPECT_EQ(found.additions, 0);
  EXPECT_EQ(found.products, 0);
}

}  // namespace
}  // namespace eps
