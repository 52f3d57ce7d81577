// Runs our kernels' code on a simulated grid, as the stages of models call it.

#include "worker/exec/device_kernels.h"

#include <cmath>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "worker/exec/cuda/dropout_bodies.h"
#include "worker/exec/cuda/loss_bodies.h"
#include "worker/exec/cuda/testing/simulated_grid.h"
#include "worker/models/loss_head.h"
#include "worker/relay/stage_program.h"

namespace eps {
namespace {

using at::Tensor;

int g_stream;  // its address stands for a stream

DeviceKernels Simulated() {
  CudaKernels kernels = {};
  kernels.dropout_mask = [](const eps_cuda_mask* mask, uint64_t n, float* out, void* stream) {
    EXPECT_EQ(stream, &g_stream);
    grid::SimulatedGrid simulated(7);
    return grid::LaunchDropoutMask(*mask, n, out, simulated);
  };
  kernels.dropout = [](const eps_cuda_mask* mask, int elements, const void* x,
                       const void* residual_or_null, uint64_t n, void* y, void* stream) {
    EXPECT_EQ(stream, &g_stream);
    grid::SimulatedGrid simulated(7);
    return grid::LaunchDropout(*mask, elements, x, residual_or_null, n, y, simulated);
  };
  kernels.loss = [](int elements, void* logits, const int32_t* labels, uint64_t rows,
                    uint64_t vocab, float scale, float* label_log_p, void* stream) {
    EXPECT_EQ(stream, &g_stream);
    grid::SimulatedGrid simulated(7);
    return grid::LaunchLoss(elements, logits, labels, rows, vocab, scale, label_log_p, simulated);
  };
  kernels.error_text = [](int) { return "planted"; };
  return DeviceKernels(kernels, [](c10::Device) -> void* { return &g_stream; });
}

constexpr RngKey kKey = {/*seed=*/5, /*step=*/3, /*micro_batch=*/2, /*stage=*/9, /*site=*/1};

TEST(DeviceKernels, MasksHaveTheBitsOfTheCpu) {
  std::vector<float> expected(3 * 5 * 7);
  FillDropoutMask(kKey, 0.3, absl::MakeSpan(expected));
  const Tensor mask = Simulated().DropoutMask(kKey, 0.3, {3, 5, 7}, at::empty({1}));
  ASSERT_EQ(mask.sizes(), (std::vector<int64_t>{3, 5, 7}));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(mask.const_data_ptr<float>()[i], expected[i]) << i;
  }
}

TEST(DeviceKernels, DropoutRoundsTheSumOnce) {
  const Tensor mask = at::empty({3, 5, 7});
  FillDropoutMask(kKey, 0.3, absl::MakeSpan(mask.mutable_data_ptr<float>(), mask.numel()));
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor x = at::arange(mask.numel(), at::kFloat).sin().view(mask.sizes()).to(type);
    const Tensor residual = x.mul(3).add(0.37);
    const Tensor dropped = Simulated().Dropout(kKey, 0.3, x, Tensor());
    EXPECT_TRUE(dropped.equal(x.mul(mask).to(type))) << type;
    const Tensor sum = Simulated().Dropout(kKey, 0.3, x, residual);
    EXPECT_TRUE(sum.equal(x.mul(mask).add(residual).to(type))) << type;
    EXPECT_EQ(sum.scalar_type(), type);
    EXPECT_EQ(sum.equal(dropped.add(residual)), type == at::kFloat);  // which rounds twice
  }
}

TEST(DeviceKernels, DropoutRefusesOtherTensors) {
  const Tensor x = at::zeros({2, 3});
  const DeviceKernels kernels = Simulated();
  EXPECT_THROW(kernels.Dropout(kKey, 0.3, x.to(at::kHalf), Tensor()), c10::Error);
  EXPECT_THROW(kernels.Dropout(kKey, 0.3, x.t(), Tensor()), c10::Error);
  EXPECT_THROW(kernels.Dropout(kKey, 0.3, x, x.to(at::kBFloat16)), c10::Error);
  EXPECT_THROW(kernels.Dropout(kKey, 0.3, x, at::zeros({3})), c10::Error);
  EXPECT_THROW(kernels.Dropout(kKey, 0.3, x, at::zeros({3, 2}).t()), c10::Error);
  EXPECT_THROW(kernels.Dropout(kKey, 1.0, x, Tensor()), c10::Error);
}

TEST(DeviceKernels, LossIsThatOfTheCpu) {
  constexpr int64_t kRows = 6, kClasses = 11;
  const Tensor values =
      at::arange(kRows * kClasses, at::kFloat).sin().mul(3).view({kRows, kClasses});
  const Tensor labels = at::arange(kRows, at::kLong);
  labels[2].fill_(kIgnoreLabel);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor scores = values.to(type, /*non_blocking=*/false, /*copy=*/true);
    const Tensor expected_log_p = at::zeros({kRows});
    const Tensor expected =
        LabelLogPGradient(scores.to(at::kFloat, false, true), labels, 0.5, 0, expected_log_p);
    const Tensor log_p = at::zeros({kRows});
    Simulated().CrossEntropy(scores, labels, 0.5, log_p);
    const double bound = type == at::kFloat ? 1e-6 : 0.01;
    EXPECT_TRUE(scores.to(at::kFloat).allclose(expected, bound, bound)) << scores;
    for (int64_t row = 0; row < kRows; ++row) {
      if (row == 2) continue;
      EXPECT_NEAR(log_p[row].item<float>(), expected_log_p[row].item<float>(), 1e-5) << row;
    }
    EXPECT_TRUE(scores[2].to(at::kFloat).equal(at::zeros({kClasses})));
  }
}

TEST(DeviceKernels, ErrorsOfKernelsAreThrown) {
  EXPECT_THROW(Simulated().DropoutMask(kKey, 1.0, {3}, at::empty({1})), c10::Error);
  EXPECT_THROW(
      Simulated().CrossEntropy(at::zeros({2, 3}), at::zeros({3}, at::kLong), 1, at::zeros({2})),
      c10::Error);
  EXPECT_EQ(DeviceKernels::ForOrNull(at::empty({1})), nullptr);
}

}  // namespace
}  // namespace eps
