#include "optimizer/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Returns sum + the squares of scale * x[0 … Lanes(dd)).
template <class DD>
HWY_INLINE hn::Vec<DD> PlusSquares(DD dd, hn::Vec<DD> sum, const float* x, float scale) {
  const hn::Rebind<float, DD> df;
  const auto scaled = hn::PromoteTo(dd, hn::Mul(hn::LoadU(df, x), hn::Set(df, scale)));
  return hn::Add(sum, hn::Mul(scaled, scaled));
}

// Adds the whole groups of 16 columns of one row to the lanes. At most four sums stay in registers
// at a time; narrow vectors pass over the row, which is in L1, more than once.
HWY_INLINE void AddSquaresRow(const float* HWY_RESTRICT x, size_t n, float scale,
                              double* HWY_RESTRICT lanes) {
  const HWY_CAPPED(double, kSquareLanes / 2) dd;
  const size_t width = hn::Lanes(dd);
  if (2 * width == kSquareLanes) {
    auto sum0 = hn::LoadU(dd, lanes);
    auto sum1 = hn::LoadU(dd, lanes + width);
    for (size_t i = 0; i < n; i += kSquareLanes) {
      sum0 = PlusSquares(dd, sum0, x + i, scale);
      sum1 = PlusSquares(dd, sum1, x + i + width, scale);
    }
    hn::StoreU(sum0, dd, lanes);
    hn::StoreU(sum1, dd, lanes + width);
    return;
  }
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

void AddSquaresKernel(const float* x, size_t rows, size_t cols, size_t ld, float scale,
                      double* lanes) {
  const HWY_CAPPED(double, 1) d1;
  const size_t whole = cols / kSquareLanes * kSquareLanes;
  for (size_t r = 0; r < rows; ++r) {
    const float* row = x + r * ld;
    if (whole > 0) AddSquaresRow(row, whole, scale, lanes);
    for (size_t c = whole; c < cols; ++c) {
      double* lane = lanes + c - whole;
      hn::StoreU(PlusSquares(d1, hn::LoadU(d1, lane), row + c, scale), d1, lane);
    }
  }
}

const char* TargetNameHere() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {

HWY_EXPORT(AddSquaresKernel);
HWY_EXPORT(TargetNameHere);

void AddSquares(const float* x, size_t rows, size_t cols, size_t ld, float scale, double* lanes) {
  HWY_DYNAMIC_DISPATCH(AddSquaresKernel)(x, rows, cols, ld, scale, lanes);
}

const char* KernelTarget() { return HWY_DYNAMIC_DISPATCH(TargetNameHere)(); }

}  // namespace eps
#endif  // HWY_ONCE
