// The inner loop of SquareSum (update_rule.h), for kernel files to include once per instruction
// set: it is the one sum of squares, whether it has a pass of its own or is taken on the way.

#include <cstddef>

#include "hwy/highway.h"
#include "optimizer/kernels.h"

// Highway's include guard for files that are compiled once per instruction set.
#if defined(EPS_OPTIMIZER_SQUARE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_OPTIMIZER_SQUARE_LANES_INL_H_
#undef EPS_OPTIMIZER_SQUARE_LANES_INL_H_
#else
#define EPS_OPTIMIZER_SQUARE_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

// sum + the squares of scale * x[0 … Lanes(dd)).
template <class DD>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<DD> PlusSquares(DD dd, hwy::HWY_NAMESPACE::Vec<DD> sum,
                                                   const float* x, float scale) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<float, DD> df;
  const auto scaled = hn::PromoteTo(dd, hn::Mul(hn::LoadU(df, x), hn::Set(df, scale)));
  return hn::Add(sum, hn::Mul(scaled, scaled));
}

// Adds the whole groups of 16 columns of one row to the lanes. Four sums at a time stay in
// registers; narrow vectors go over the row, which is in L1, more than once.
HWY_INLINE void AddSquaresOfGroups(const float* HWY_RESTRICT x, size_t n, float scale,
                                   double* HWY_RESTRICT lanes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const HWY_CAPPED(double, kSquareLanes / 4) dd;
  const size_t width = hn::Lanes(dd);
  for (size_t j = 0; j < kSquareLanes; j += 4 * width) {
    auto sum0 = hn::LoadU(dd, lanes + j);
    auto sum1 = hn::LoadU(dd, lanes + j + width);
    auto sum2 = hn::LoadU(dd, lanes + j + 2 * width);
    auto sum3 = hn::LoadU(dd, lanes + j + 3 * width);
    for (size_t i = j; i < n; i += kSquareLanes) {
      sum0 = PlusSquares(dd, sum0, x + i, scale);
      sum1 = PlusSquares(dd, sum1, x + i + width, scale);
      sum2 = PlusSquares(dd, sum2, x + i + 2 * width, scale);
      sum3 = PlusSquares(dd, sum3, x + i + 3 * width, scale);
    }
    hn::StoreU(sum0, dd, lanes + j);
    hn::StoreU(sum1, dd, lanes + j + width);
    hn::StoreU(sum2, dd, lanes + j + 2 * width);
    hn::StoreU(sum3, dd, lanes + j + 3 * width);
  }
}

// lanes[c % 16] += the square of x[c] * scale, for c < n ascending.
HWY_INLINE void AddSquaresOfRow(const float* HWY_RESTRICT x, size_t n, float scale,
                                double* HWY_RESTRICT lanes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const HWY_CAPPED(double, 1) d1;
  const size_t whole = n / kSquareLanes * kSquareLanes;
  if (whole > 0) AddSquaresOfGroups(x, whole, scale, lanes);
  for (size_t c = whole; c < n; ++c) {
    double* lane = lanes + c - whole;
    hn::StoreU(PlusSquares(d1, hn::LoadU(d1, lane), x + c, scale), d1, lane);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#endif  // EPS_OPTIMIZER_SQUARE_LANES_INL_H_
