#include "worker/exec/cuda/testing/threaded_grid.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/exec/cuda/codec_launches.h"
#include "worker/exec/cuda/crc_bodies.h"
#include "worker/exec/cuda/dropout_bodies.h"
#include "worker/exec/cuda/loss_bodies.h"
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

template <class Launcher>
std::vector<float> Dropout(Launcher launcher) {
  const std::vector<float> residual = Floats(4, 3001);
  std::vector<float> x = Floats(5, 3001);
  const eps_cuda_mask mask = {1, 2, 3, 4, 5, 0.4, 6};
  EXPECT_EQ(
      LaunchDropout(mask, EPS_CUDA_FP32, x.data(), residual.data(), x.size(), x.data(), launcher),
      0);
  std::vector<float> drawn(2002);
  EXPECT_EQ(LaunchDropoutMask(mask, drawn.size(), drawn.data(), launcher), 0);
  x.insert(x.end(), drawn.begin(), drawn.end());
  return x;
}

TEST(ThreadedGridTest, DropoutDoesNotDependOnConcurrency) {
  EXPECT_EQ(Dropout(ThreadedGrid()), Dropout(SimulatedGrid(1)));
}

template <class Launcher>
std::vector<float> Loss(Launcher launcher) {
  const std::vector<int32_t> labels = {3, EPS_CUDA_IGNORE_LABEL, 776};
  std::vector<float> logits = Floats(6, labels.size() * 777);
  std::vector<float> log_p(labels.size());
  EXPECT_EQ(LaunchLoss(EPS_CUDA_FP32, logits.data(), labels.data(), labels.size(), 777, 0.5f,
                       log_p.data(), launcher),
            0);
  logits.insert(logits.end(), log_p.begin(), log_p.end());
  return logits;
}

TEST(ThreadedGridTest, LossDoesNotDependOnConcurrency) {
  EXPECT_EQ(Loss(ThreadedGrid()), Loss(SimulatedGrid(1)));
}

template <class Launcher>
std::vector<uint32_t> Crcs(Launcher launcher) {
  const std::vector<float> values = Floats(7, 40000);
  std::vector<uint32_t> crcs(3);
  EXPECT_EQ(LaunchCrc32c(values.data(), 4 * values.size() - 1, crcs.data(), launcher), 0);
  return crcs;
}

TEST(ThreadedGridTest, CrcsDoNotDependOnConcurrency) {
  EXPECT_EQ(Crcs(ThreadedGrid()), Crcs(SimulatedGrid(1)));
}

}  // namespace
}  // namespace eps::grid
