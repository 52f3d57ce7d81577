// The kernels against the scalar reference on every instruction set of this machine, and the
// reference against the formulas in double.

#include "optimizer/kernels.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/flush_denormals.h"
#include "base/testing/guarded_memory.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace eps {
namespace {

constexpr size_t kMaxLength = 70;

// Runs `body` once per instruction set that is compiled in and supported here.
template <class Body>
void OnEveryTarget(Body body) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    EXPECT_STREQ(KernelTarget(), hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class Random {
 public:
  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }
  // In [-1, 1).
  float Uniform() { return static_cast<float>(static_cast<int32_t>(Next())) * 0x1p-31f; }
  // Of either sign, of any exponent from 2^-40 on.
  float Wide() { return std::ldexp(Uniform(), -static_cast<int>(Next() % 40)); }

 private:
  uint64_t state_ = 7;
};

uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

void ExpectSame(const float* expected, const float* found, size_t n, const char* what) {
  for (size_t i = 0; i < n; ++i) {
    if (std::isnan(expected[i]) && std::isnan(found[i])) continue;
    ASSERT_EQ(ToBits(expected[i]), ToBits(found[i]))
        << what << "[" << i << "]: " << expected[i] << " expected, " << found[i] << " found";
  }
}

AdamWScalars ScalarsAt(int t) {
  AdamWScalars s;
  const double lr = 1e-3, beta1 = 0.9, beta2 = 0.999;
  s.grad_scale = 1.0f / 4096;
  s.decay = static_cast<float>(1 - lr * 0.01);
  s.beta1 = static_cast<float>(beta1);
  s.one_minus_beta1 = static_cast<float>(1 - beta1);
  s.beta2 = static_cast<float>(beta2);
  s.one_minus_beta2 = static_cast<float>(1 - beta2);
  s.rsqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t)));
  s.eps = 1e-8f;
  s.step_size = static_cast<float>(lr / (1 - std::pow(beta1, t)));
  return s;
}

// The four arrays of a tile, in memory that ends at a guard page.
struct Arrays {
  Arrays(size_t rows, size_t cols, size_t ld, size_t grad_ld, size_t shift = 0)
      : n(rows == 0 ? 0 : (rows - 1) * ld + cols),
        grad_n(rows == 0 ? 0 : (rows - 1) * grad_ld + cols),
        memory{GuardedMemory(4 * grad_n + shift), GuardedMemory(4 * n + shift),
               GuardedMemory(4 * n + shift), GuardedMemory(4 * n + shift)} {
    tile.rows = rows;
    tile.cols = cols;
    tile.ld = ld;
    tile.grad_ld = grad_ld;
    tile.grad = memory[0].floats();
    tile.weight = memory[1].floats();
    tile.exp_avg = memory[2].floats();
    tile.exp_avg_sq = memory[3].floats();
  }

  void FillRandomly(Random* random) {
    for (size_t i = 0; i < grad_n; ++i) grad()[i] = 1000 * random->Wide();
    for (size_t i = 0; i < n; ++i) {
      tile.weight[i] = random->Uniform();
      tile.exp_avg[i] = random->Wide();
      tile.exp_avg_sq[i] = std::fabs(random->Wide());
    }
  }

  void CopyFrom(const Arrays& other) {
    std::memcpy(grad(), other.tile.grad, 4 * grad_n);
    std::memcpy(tile.weight, other.tile.weight, 4 * n);
    std::memcpy(tile.exp_avg, other.tile.exp_avg, 4 * n);
    std::memcpy(tile.exp_avg_sq, other.tile.exp_avg_sq, 4 * n);
  }

  void ExpectEqual(const Arrays& found) const {
    ExpectSame(tile.weight, found.tile.weight, n, "weight");
    ExpectSame(tile.exp_avg, found.tile.exp_avg, n, "exp_avg");
    ExpectSame(tile.exp_avg_sq, found.tile.exp_avg_sq, n, "exp_avg_sq");
  }

  float* grad() { return memory[0].floats(); }

  size_t n;
  size_t grad_n;
  GuardedMemory memory[4];
  AdamWTile tile;
};

// Both implementations on equal input, padding between rows included.
void CheckAdamW(Arrays* expected, Arrays* found, const AdamWScalars& scalars) {
  ScopedFlushDenormals flush;
  reference::AdamW(scalars, expected->tile);
  AdamW(scalars, found->tile);
  expected->ExpectEqual(*found);
}

TEST(AdamWKernel, EqualsTheReferenceAtEveryLengthAndTouchesNothingBeyond) {
  OnEveryTarget([] {
    Random random;
    for (size_t n = 0; n <= kMaxLength; ++n) {
      SCOPED_TRACE(n);
      Arrays expected(1, n, n, n);
      Arrays found(1, n, n, n);
      expected.FillRandomly(&random);
      found.CopyFrom(expected);
      CheckAdamW(&expected, &found, ScalarsAt(static_cast<int>(n) + 1));
    }
  });
}

struct Shape {
  size_t rows, cols, ld, grad_ld;
};
constexpr Shape kShapes[] = {{32, 128, 128, 128}, {32, 128, 300, 128},   {3, 17, 17, 40},
                             {5, 33, 70, 33},     {2, 3000, 3000, 3000}, {0, 8, 8, 8},
                             {4, 1, 1, 1},        {7, 1, 9, 3}};

TEST(AdamWKernel, EqualsTheReferenceOnStridedRowsAndLeavesThePaddingAlone) {
  OnEveryTarget([&] {
    Random random;
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols));
      Arrays expected(s.rows, s.cols, s.ld, s.grad_ld);
      Arrays found(s.rows, s.cols, s.ld, s.grad_ld);
      expected.FillRandomly(&random);
      found.CopyFrom(expected);
      CheckAdamW(&expected, &found, ScalarsAt(5));
    }
  });
}

TEST(AdamWKernel, EqualsTheReferenceFromEveryAlignmentOfFloats) {
  OnEveryTarget([] {
    Random random;
    for (size_t shift = 0; shift < 64; shift += 4) {
      SCOPED_TRACE(shift);
      Arrays expected(1, 100, 100, 100);
      Arrays found(1, 100, 100, 100, shift);
      expected.FillRandomly(&random);
      found.CopyFrom(expected);
      CheckAdamW(&expected, &found, ScalarsAt(1));
    }
  });
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::array<float, 13> kSpecial = {0.0f,
                                            -0.0f,
                                            1e-40f,
                                            -1e-40f,
                                            1e-38f,
                                            1.0f,
                                            -1.0f,
                                            1e30f,
                                            -1e30f,
                                            1.1259e15f,
                                            kInf,
                                            -kInf,
                                            std::numeric_limits<float>::quiet_NaN()};

TEST(AdamWKernel, EqualsTheReferenceOnSpecialValues) {
  const auto& values = kSpecial;
  OnEveryTarget([&] {
    for (size_t first = 0; first < values.size(); ++first) {
      const size_t n = values.size() * values.size();
      Arrays expected(1, n, n, n);
      Arrays found(1, n, n, n);
      for (size_t i = 0; i < n; ++i) {
        expected.grad()[i] = values[first];
        expected.tile.weight[i] = values[(i + first) % values.size()];
        expected.tile.exp_avg[i] = values[i % values.size()];
        expected.tile.exp_avg_sq[i] = std::fabs(values[i / values.size()]);
      }
      found.CopyFrom(expected);
      CheckAdamW(&expected, &found, ScalarsAt(2));
    }
  });
}

TEST(AdamWKernel, KeepsNoDenormalInTheState) {
  OnEveryTarget([] {
    ScopedFlushDenormals flush;
    Arrays arrays(1, 40, 40, 40);
    for (size_t i = 0; i < 40; ++i) {
      arrays.grad()[i] = 1e-39f;
      arrays.tile.weight[i] = 1e-39f;
      arrays.tile.exp_avg[i] = 1.2e-38f;      // times beta1 is denormal
      arrays.tile.exp_avg_sq[i] = 1.17e-38f;  // is denormal
    }
    AdamW(ScalarsAt(3), arrays.tile);
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(ToBits(arrays.tile.weight[i]) & 0x7fffffffu, 0u);
      EXPECT_EQ(ToBits(arrays.tile.exp_avg[i]), 0u);
      EXPECT_EQ(ToBits(arrays.tile.exp_avg_sq[i]), 0u);
    }
  });
}

// Each result against torch.optim.AdamW's formula in double, from the same float inputs. The bounds
// are a few roundings of the terms of each sum; a wrong formula misses them by orders of magnitude.
TEST(AdamWReference, FollowsTheFormulaInDouble) {
  ScopedFlushDenormals flush;
  Random random;
  constexpr double kUlp = 0x1p-23;
  for (int t = 1; t <= 50; ++t) {
    const AdamWScalars s = ScalarsAt(t);
    Arrays before(1, 500, 500, 500);
    Arrays after(1, 500, 500, 500);
    before.FillRandomly(&random);
    after.CopyFrom(before);
    reference::AdamW(s, after.tile);
    const double lr = 1e-3, b1 = 0.9, b2 = 0.999, wd = 0.01, eps = 1e-8;
    for (size_t i = 0; i < 500; ++i) {
      const double g = double{before.tile.grad[i]} / 4096;
      const double m_old = before.tile.exp_avg[i], v_old = before.tile.exp_avg_sq[i];
      const double m = b1 * m_old + (1 - b1) * g;
      const double v = b2 * v_old + (1 - b2) * g * g;
      const double bc1 = 1 - std::pow(b1, t), bc2 = 1 - std::pow(b2, t);
      const double denominator = std::sqrt(v) / std::sqrt(bc2) + eps;
      const double p_old = double{before.tile.weight[i]} * (1 - lr * wd);
      const double p = p_old - (lr / bc1) * m / denominator;
      const double m_terms = std::fabs(b1 * m_old) + std::fabs((1 - b1) * g);
      const double m_bound = 2 * kUlp * m_terms;
      ASSERT_NEAR(after.tile.exp_avg[i], m, m_bound);
      ASSERT_NEAR(after.tile.exp_avg_sq[i], v, 3 * kUlp * v);
      const double step_bound = (lr / bc1) * (m_bound + 5 * kUlp * std::fabs(m)) / denominator;
      ASSERT_NEAR(after.tile.weight[i], p, kUlp * (std::fabs(p) + std::fabs(p_old)) + step_bound);
    }
  }
}

SgdScalars SgdScalarsWith(float momentum) {
  SgdScalars s;
  s.grad_scale = 1.0f / 4096;
  s.weight_decay = 0.01f;
  s.momentum = momentum;
  s.lr = 0.1f;
  return s;
}

// The tile of `arrays`, with exp_avg as its momentum buffer if there is one.
SgdTile SgdTileOf(const Arrays& arrays, bool with_momentum) {
  SgdTile tile;
  tile.rows = arrays.tile.rows;
  tile.cols = arrays.tile.cols;
  tile.grad = arrays.tile.grad;
  tile.grad_ld = arrays.tile.grad_ld;
  tile.weight = arrays.tile.weight;
  tile.momentum_buffer_or_null = with_momentum ? arrays.tile.exp_avg : nullptr;
  tile.ld = arrays.tile.ld;
  return tile;
}

// Both implementations on equal input, with and without momentum; exp_avg_sq is never touched.
void CheckSgd(Arrays* expected, Arrays* found) {
  ScopedFlushDenormals flush;
  for (const bool with_momentum : {false, true}) {
    const SgdScalars scalars = SgdScalarsWith(with_momentum ? 0.9f : 0.0f);
    reference::Sgd(scalars, SgdTileOf(*expected, with_momentum));
    Sgd(scalars, SgdTileOf(*found, with_momentum));
    expected->ExpectEqual(*found);
  }
}

TEST(SgdKernel, EqualsTheReferenceAtEveryLengthAndTouchesNothingBeyond) {
  OnEveryTarget([] {
    Random random;
    for (size_t n = 0; n <= kMaxLength; ++n) {
      SCOPED_TRACE(n);
      Arrays expected(1, n, n, n);
      Arrays found(1, n, n, n);
      expected.FillRandomly(&random);
      found.CopyFrom(expected);
      CheckSgd(&expected, &found);
    }
  });
}

TEST(SgdKernel, EqualsTheReferenceOnStridedRowsAndLeavesThePaddingAlone) {
  OnEveryTarget([&] {
    Random random;
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols));
      Arrays expected(s.rows, s.cols, s.ld, s.grad_ld);
      Arrays found(s.rows, s.cols, s.ld, s.grad_ld);
      expected.FillRandomly(&random);
      found.CopyFrom(expected);
      CheckSgd(&expected, &found);
    }
  });
}

TEST(SgdKernel, EqualsTheReferenceFromEveryAlignmentOfFloats) {
  OnEveryTarget([] {
    Random random;
    for (size_t shift = 0; shift < 64; shift += 4) {
      SCOPED_TRACE(shift);
      Arrays expected(1, 100, 100, 100);
      Arrays found(1, 100, 100, 100, shift);
      expected.FillRandomly(&random);
      found.CopyFrom(expected);
      CheckSgd(&expected, &found);
    }
  });
}

TEST(SgdKernel, EqualsTheReferenceOnSpecialValues) {
  OnEveryTarget([&] {
    for (size_t first = 0; first < kSpecial.size(); ++first) {
      const size_t n = kSpecial.size() * kSpecial.size();
      Arrays expected(1, n, n, n);
      Arrays found(1, n, n, n);
      for (size_t i = 0; i < n; ++i) {
        expected.grad()[i] = kSpecial[first];
        expected.tile.weight[i] = kSpecial[i / kSpecial.size()];
        expected.tile.exp_avg[i] = kSpecial[i % kSpecial.size()];
        expected.tile.exp_avg_sq[i] = 0;
      }
      found.CopyFrom(expected);
      CheckSgd(&expected, &found);
    }
  });
}

TEST(SgdKernel, KeepsNoDenormalInTheState) {
  OnEveryTarget([] {
    ScopedFlushDenormals flush;
    Arrays arrays(1, 40, 40, 40);
    for (size_t i = 0; i < 40; ++i) {
      arrays.grad()[i] = 1e-39f;
      arrays.tile.weight[i] = 1e-39f;
      arrays.tile.exp_avg[i] = 1.2e-38f;  // times the momentum is denormal
    }
    Sgd(SgdScalarsWith(0.9f), SgdTileOf(arrays, true));
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(ToBits(arrays.tile.weight[i]) & 0x7fffffffu, 0u);
      EXPECT_EQ(ToBits(arrays.tile.exp_avg[i]), 0u);
    }
  });
}

// torch.optim.SGD(momentum=0.9, weight_decay=0.01) in double, several updates from zeros: the first
// of them must give torch's b = g. Each bound is one rounding for each operation on the way.
TEST(SgdReference, FollowsTorchsFormulaInDouble) {
  ScopedFlushDenormals flush;
  Random random;
  constexpr double kUlp = 0x1p-23;
  const double lr = 0.1f, momentum = 0.9f, decay = 0.01f;  // as floats, so that bounds are tight
  Arrays arrays(1, 500, 500, 500);
  arrays.FillRandomly(&random);
  for (size_t i = 0; i < 500; ++i) arrays.tile.exp_avg[i] = 0;
  for (int t = 1; t <= 5; ++t) {
    for (size_t i = 0; i < 500; ++i) arrays.grad()[i] = 1000 * random.Wide();
    Arrays before(1, 500, 500, 500);
    before.CopyFrom(arrays);
    reference::Sgd(SgdScalarsWith(0.9f), SgdTileOf(arrays, true));
    for (size_t i = 0; i < 500; ++i) {
      const double p_old = before.tile.weight[i], scaled = double{before.tile.grad[i]} / 4096;
      const double g = scaled + decay * p_old;
      const double b_old = before.tile.exp_avg[i];
      const double b = t == 1 ? g : momentum * b_old + g;
      const double p = p_old - lr * b;
      const double terms = std::fabs(scaled) + std::fabs(decay * p_old) + std::fabs(0.9 * b_old);
      ASSERT_NEAR(arrays.tile.exp_avg[i], b, 2 * kUlp * terms) << "update " << t;
      ASSERT_NEAR(arrays.tile.weight[i], p, kUlp * (std::fabs(p) + 3 * lr * terms));
    }
  }
}

TEST(AddSquaresKernel, EqualsTheReferenceAtEveryShapeAndTouchesNothingBeyond) {
  OnEveryTarget([] {
    ScopedFlushDenormals flush;
    Random random;
    for (size_t rows = 0; rows <= 3; ++rows) {
      for (size_t cols = 1; cols <= kMaxLength; ++cols) {
        const size_t ld = cols + rows;
        const size_t n = rows == 0 ? 0 : (rows - 1) * ld + cols;
        GuardedMemory x(4 * n);
        for (size_t i = 0; i < n; ++i) x.floats()[i] = random.Wide();
        double expected[kSquareLanes] = {0.5};
        double found[kSquareLanes] = {0.5};
        const float scale = 0.3f;
        reference::AddSquares(x.floats(), rows, cols, ld, scale, expected);
        AddSquares(x.floats(), rows, cols, ld, scale, found);
        for (size_t i = 0; i < kSquareLanes; ++i) {
          ASSERT_EQ(expected[i], found[i]) << rows << " x " << cols << ", lane " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace eps
