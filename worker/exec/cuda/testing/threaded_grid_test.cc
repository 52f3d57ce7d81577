#include "worker/exec/cuda/testing/threaded_grid.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/exec/cuda/codec_launches.h"
#include "worker/exec/cuda/testing/simulated_grid.h"
#include "worker/exec/cuda/topk_launches.h"

namespace eps::grid {
namespace {

std::vector<float> Floats(uint32_t seed, size_t n) {
  std::vector<float> values(n);
  uint32_t state = seed;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    // Few values, so that there are many ties.
    value = static_cast<float>(static_cast<int>(state >> 22) - 512) / 64;
  }
  return values;
}

TEST(ThreadedGridTest, DenseCodecsDoNotDependOnConcurrency) {
  const eps_cuda_segment segments[] = {{40, 140}, {1, 37}};
  const std::vector<float> values = Floats(1, 40 * 140 + 37);
  for (const uint32_t codec : {8u, 19u}) {
    const eps_cuda_chunk chunk = {segments, 2, codec == 8u};
    std::vector<uint8_t> expected(4 * values.size()), got(4 * values.size());
    std::vector<float> expected_values(values.size()), got_values(values.size());
    SimulatedGrid simulated(1);
    ThreadedGrid threaded;
    EXPECT_EQ(LaunchEncodeChunk(codec, false, chunk, values.data(), expected.data(), simulated), 0);
    EXPECT_EQ(LaunchEncodeChunk(codec, false, chunk, values.data(), got.data(), threaded), 0);
    EXPECT_EQ(got, expected) << codec;
    EXPECT_EQ(LaunchDecodeChunk(codec, chunk, got.data(), expected_values.data(), simulated), 0);
    EXPECT_EQ(LaunchDecodeChunk(codec, chunk, got.data(), got_values.data(), threaded), 0);
    EXPECT_EQ(got_values, expected_values) << codec;
  }
}

template <class Launcher>
std::vector<uint8_t> Topk(const eps_cuda_topk& call, Launcher launcher,
                          std::vector<float>* residual) {
  const std::vector<float> gradient = Floats(2, call.n);
  *residual = Floats(3, call.n);
  std::vector<uint64_t> scratch(LayOutTopkScratch(call.n, call.max_count).bytes / 8);
  std::vector<uint8_t> out(12 + 6 * call.max_count + call.n / 8);
  uint64_t bytes = 0;
  EXPECT_EQ(LaunchEncodeTopk(call, gradient.data(), residual->data(), scratch.data(), out.data(),
                             &bytes, launcher),
            0);
  out.resize(bytes);
  return out;
}

TEST(ThreadedGridTest, TopkDoesNotDependOnConcurrency) {
  // The first call yields delta8, the second a bitmap.
  for (const eps_cuda_topk& call :
       {eps_cuda_topk{9000, 90, 90, 0, 0}, eps_cuda_topk{9000, 70, 4500, 1, 0}}) {
    std::vector<float> expected_residual, residual;
    const std::vector<uint8_t> expected = Topk(call, SimulatedGrid(1), &expected_residual);
    EXPECT_EQ(expected[4], call.sampled != 0 ? kBitmap : kDelta8);
    EXPECT_EQ(Topk(call, ThreadedGrid(), &residual), expected) << call.max_count;
    EXPECT_EQ(residual, expected_residual) << call.max_count;
  }
}

}  // namespace
}  // namespace eps::grid
