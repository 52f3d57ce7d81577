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

template <class... Fields>
HWY_INLINE void LimitLoop(size_t n, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                          Fields... fields) {
  const HWY_CAPPED(float, kStep) d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i + kStep <= n; i += kStep) {
    __builtin_prefetch(weight + i + kAhead, 1, 3);
    (__builtin_prefetch(fields + i + kAhead, 1, 3), ...);
    __builtin_prefetch(grad + i + kAhead, 0, 3);
    for (size_t j = i; j < i + kStep; j += lanes) {
      const auto g = hn::LoadU(d, grad + j);
      hn::StoreU(hn::Min(hn::LoadU(d, weight + j), g), d, weight + j);
      (hn::StoreU(hn::Max(hn::LoadU(d, fields + j), g), d, fields + j), ...);
    }
  }
}

void LimitKernel(size_t n, const float* grad, float* weight, float* const* fields, size_t count) {
  if (count == 0) return LimitLoop(n, grad, weight);
  if (count == 1) return LimitLoop(n, grad, weight, fields[0]);
  LimitLoop(n, grad, weight, fields[0], fields[1]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {

HWY_EXPORT(LimitKernel);

void MemoryLimit(size_t n, const float* grad, float* weight, float* const* fields, size_t count) {
  HWY_DYNAMIC_DISPATCH(LimitKernel)(n, grad, weight, fields, count);
}

}  // namespace eps
#endif  // HWY_ONCE
