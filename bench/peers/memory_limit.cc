#include "bench/peers/memory_limit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peers/memory_limit.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kStep = 16;
constexpr size_t kAhead = 512;

void LimitKernel(const AdamWTile& tile) {
  const HWY_CAPPED(float, kStep) d;
  const size_t lanes = hn::Lanes(d);
  const float* HWY_RESTRICT grad = tile.grad;
  float* HWY_RESTRICT weight = tile.weight;
  float* HWY_RESTRICT exp_avg = tile.exp_avg;
  float* HWY_RESTRICT exp_avg_sq = tile.exp_avg_sq;
  for (size_t i = 0; i + kStep <= tile.cols; i += kStep) {
    __builtin_prefetch(weight + i + kAhead, 1, 3);
    __builtin_prefetch(exp_avg + i + kAhead, 1, 3);
    __builtin_prefetch(exp_avg_sq + i + kAhead, 1, 3);
    __builtin_prefetch(grad + i + kAhead, 0, 3);
    for (size_t j = i; j < i + kStep; j += lanes) {
      const auto g = hn::LoadU(d, grad + j);
      hn::StoreU(hn::Min(hn::LoadU(d, weight + j), g), d, weight + j);
      hn::StoreU(hn::Max(hn::LoadU(d, exp_avg + j), g), d, exp_avg + j);
      hn::StoreU(hn::Max(hn::LoadU(d, exp_avg_sq + j), g), d, exp_avg_sq + j);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {

HWY_EXPORT(LimitKernel);

void MemoryLimit(const AdamWTile& tile) { HWY_DYNAMIC_DISPATCH(LimitKernel)(tile); }

}  // namespace eps
#endif  // HWY_ONCE
