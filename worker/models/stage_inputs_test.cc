#include "worker/models/stage_inputs.h"

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/exec/tensor_memory.h"
#include "worker/models/testing/values.h"

namespace eps {
namespace {

using at::Tensor;

constexpr RngKey kKey = {/*seed=*/~uint64_t{5}, /*step=*/3, /*micro_batch=*/2, /*stage=*/9,
                         /*site=*/1};
constexpr double kP = 0.3;

Tensor MaskOf(const Tensor& x) {
  Tensor mask = at::empty(x.sizes());
  FillDropoutMask(kKey, kP, absl::MakeSpan(mask.mutable_data_ptr<float>(), mask.numel()));
  return mask;
}

TEST(Drop, RoundsTheProductThenTheSum) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor x = Values({6, 7}, 1).to(type), residual = Values({6, 7}, 2).to(type);
    const Tensor product = x.mul(MaskOf(x)).to(type);
    EXPECT_TRUE(Drop(kKey, kP, x).equal(product)) << type;
    EXPECT_TRUE(Drop(kKey, kP, x, residual).equal(product.add(residual))) << type;
    EXPECT_TRUE(DropKeepingNoMask(kKey, kP, x, residual).equal(product.add(residual))) << type;
    EXPECT_TRUE(x.equal(Values({6, 7}, 1).to(type))) << type;
    // The elements of a mask follow the order of the sizes, in whatever order they lie.
    EXPECT_TRUE(Drop(kKey, kP, x.t()).equal(x.t().mul(MaskOf(x.t())).to(type))) << type;
  }
}

TEST(Drop, DrawsTheMaskAgainForTheDerivative) {
  const at::AutoGradMode with_grad(true);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor x = Values({6, 7}, 1).to(type).requires_grad_(true);
    const Tensor residual = Values({6, 7}, 2).to(type).requires_grad_(true);
    const Tensor dy = Values({6, 7}, 3).to(type);
    const auto expected = torch::autograd::grad({x.mul(MaskOf(x)).to(type)}, {x}, {dy});
    const auto kept = torch::autograd::grad({Drop(kKey, kP, x)}, {x}, {dy});
    const auto drawn = torch::autograd::grad({DropKeepingNoMask(kKey, kP, x)}, {x}, {dy});
    EXPECT_TRUE(kept[0].equal(expected[0])) << type;
    EXPECT_TRUE(drawn[0].equal(expected[0])) << type;
    EXPECT_EQ(drawn[0].scalar_type(), type);
    const auto both =
        torch::autograd::grad({DropKeepingNoMask(kKey, kP, x, residual)}, {x, residual}, {dy});
    EXPECT_TRUE(both[0].equal(expected[0])) << type;
    EXPECT_TRUE(both[1].equal(dy)) << type;
  }
}

TEST(Drop, NoGraphKeepsTheMask) {
  const at::AutoGradMode with_grad(true);
  TensorMemory& memory = TensorMemory::Get();
  const Tensor x = Values({100, 100}, 1).requires_grad_(true);
  const auto bytes = static_cast<uint64_t>(x.nbytes());
  const uint64_t before = memory.live_bytes();
  const Tensor drawn = DropKeepingNoMask(kKey, kP, x);
  EXPECT_EQ(memory.live_bytes() - before, bytes);  // of the result alone
  const Tensor kept = Drop(kKey, kP, x);
  EXPECT_EQ(memory.live_bytes() - before, 3 * bytes);
}

}  // namespace
}  // namespace eps
