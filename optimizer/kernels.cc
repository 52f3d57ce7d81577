#include "optimizer/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "optimizer/adamw-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// One cache line of floats per step, on vectors of at most that size.
constexpr size_t kStep = 16;
// How far ahead lines are fetched. In long runs far enough to cover the latency of memory; in the
// rows of a tile, which are short runs in distant pages that no hardware prefetcher follows, the
// same row of the next tile (kTileCols).
constexpr size_t kPrefetchLong = 512;
constexpr size_t kPrefetchTile = 128;
constexpr size_t kLongRun = 2 * kPrefetchLong;

// Writes follow at once, so lines are fetched for writing.
HWY_INLINE void PrefetchState(const float* p) { __builtin_prefetch(p, 1, 3); }

HWY_INLINE void AdamWRun(const AdamWScalars& scalars, size_t n, size_t ahead,
                         const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         float* HWY_RESTRICT exp_avg, float* HWY_RESTRICT exp_avg_sq) {
  const AdamWScalars s = scalars;  // a copy that no store can alias: its values stay in registers
  const HWY_CAPPED(float, kStep) d;
  const HWY_CAPPED(float, 1) d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    PrefetchState(weight + i + ahead);
    PrefetchState(exp_avg + i + ahead);
    PrefetchState(exp_avg_sq + i + ahead);
    __builtin_prefetch(grad + i + ahead, 0, 3);
    for (size_t j = i; j < i + kStep; j += lanes) {
      AdamWVector(d, s, grad + j, weight + j, exp_avg + j, exp_avg_sq + j);
    }
  }
  for (; i < n; ++i) AdamWVector(d1, s, grad + i, weight + i, exp_avg + i, exp_avg_sq + i);
}

void AdamWKernel(const AdamWScalars& scalars, const AdamWTile& tile) {
  const bool dense = tile.ld == tile.cols && tile.grad_ld == tile.cols;
  const size_t rows = dense ? 1 : tile.rows;
  const size_t cols = dense ? tile.rows * tile.cols : tile.cols;
  const size_t ahead = cols >= kLongRun ? kPrefetchLong : kPrefetchTile;
  for (size_t r = 0; r < rows; ++r) {
    const size_t i = r * tile.ld;
    AdamWRun(scalars, cols, ahead, tile.grad + r * tile.grad_ld, tile.weight + i, tile.exp_avg + i,
             tile.exp_avg_sq + i);
  }
}

// As AdamWVector. `kMomentum`: with a momentum buffer.
template <bool kMomentum, class D>
HWY_INLINE void SgdVector(D d, const SgdScalars& s, const float* HWY_RESTRICT grad,
                          float* HWY_RESTRICT weight, float* HWY_RESTRICT momentum_buffer) {
  const auto p = hn::LoadU(d, weight);
  const auto g = hn::Add(hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale)),
                         hn::Mul(hn::Set(d, s.weight_decay), p));
  auto b = g;
  if constexpr (kMomentum) {
    b = hn::Add(hn::Mul(hn::Set(d, s.momentum), hn::LoadU(d, momentum_buffer)), g);
    hn::StoreU(b, d, momentum_buffer);
  }
  hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, s.lr), b)), d, weight);
}

template <bool kMomentum>
HWY_INLINE void SgdRun(const SgdScalars& scalars, size_t n, size_t ahead,
                       const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                       float* HWY_RESTRICT momentum_buffer) {
  const SgdScalars s = scalars;  // as in AdamWRun
  const HWY_CAPPED(float, kStep) d;
  const HWY_CAPPED(float, 1) d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    PrefetchState(weight + i + ahead);
    if constexpr (kMomentum) PrefetchState(momentum_buffer + i + ahead);
    __builtin_prefetch(grad + i + ahead, 0, 3);
    for (size_t j = i; j < i + kStep; j += lanes) {
      SgdVector<kMomentum>(d, s, grad + j, weight + j, kMomentum ? momentum_buffer + j : nullptr);
    }
  }
  for (; i < n; ++i) {
    SgdVector<kMomentum>(d1, s, grad + i, weight + i, kMomentum ? momentum_buffer + i : nullptr);
  }
}

void SgdKernel(const SgdScalars& scalars, const SgdTile& tile) {
  const bool dense = tile.ld == tile.cols && tile.grad_ld == tile.cols;
  const size_t rows = dense ? 1 : tile.rows;
  const size_t cols = dense ? tile.rows * tile.cols : tile.cols;
  const size_t ahead = cols >= kLongRun ? kPrefetchLong : kPrefetchTile;
  for (size_t r = 0; r < rows; ++r) {
    const size_t i = r * tile.ld;
    const float* grad = tile.grad + r * tile.grad_ld;
    if (tile.momentum_buffer_or_null != nullptr) {
      SgdRun<true>(scalars, cols, ahead, grad, tile.weight + i, tile.momentum_buffer_or_null + i);
    } else {
      SgdRun<false>(scalars, cols, ahead, grad, tile.weight + i, nullptr);
    }
  }
}

// sum + the squares of scale * x[0 … Lanes(dd)).
template <class DD>
HWY_INLINE hn::Vec<DD> PlusSquares(DD dd, hn::Vec<DD> sum, const float* x, float scale) {
  const hn::Rebind<float, DD> df;
  const auto scaled = hn::PromoteTo(dd, hn::Mul(hn::LoadU(df, x), hn::Set(df, scale)));
  return hn::Add(sum, hn::Mul(scaled, scaled));
}

// Adds the whole groups of 16 columns of one row to the lanes. Up to four sums at a time stay in
// registers; narrow vectors go over the row, which is in L1, more than once.
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

HWY_EXPORT(AdamWKernel);
HWY_EXPORT(SgdKernel);
HWY_EXPORT(AddSquaresKernel);
HWY_EXPORT(TargetNameHere);

void AdamW(const AdamWScalars& scalars, const AdamWTile& tile) {
  HWY_DYNAMIC_DISPATCH(AdamWKernel)(scalars, tile);
}

void Sgd(const SgdScalars& scalars, const SgdTile& tile) {
  HWY_DYNAMIC_DISPATCH(SgdKernel)(scalars, tile);
}

void AddSquares(const float* x, size_t rows, size_t cols, size_t ld, float scale, double* lanes) {
  HWY_DYNAMIC_DISPATCH(AddSquaresKernel)(x, rows, cols, ld, scale, lanes);
}

const char* KernelTarget() { return HWY_DYNAMIC_DISPATCH(TargetNameHere)(); }

}  // namespace eps
#endif  // HWY_ONCE
