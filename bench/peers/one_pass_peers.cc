#include "bench/peers/one_pass_peers.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peers/one_pass_peers.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kStep = 16;
constexpr size_t kAhead = 512;

template <class D>
HWY_INLINE void Update(D d, const AdamWScalars& s, hn::Vec<D> grad, const AdamWTile& t, size_t i) {
  const auto g = hn::Mul(grad, hn::Set(d, s.grad_scale));
  const auto m = hn::Add(hn::Mul(hn::Set(d, s.beta1), hn::LoadU(d, t.exp_avg + i)),
                         hn::Mul(hn::Set(d, s.one_minus_beta1), g));
  const auto v = hn::Add(hn::Mul(hn::Set(d, s.beta2), hn::LoadU(d, t.exp_avg_sq + i)),
                         hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
  const auto denominator =
      hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, s.rsqrt_correction2)), hn::Set(d, s.eps));
  hn::StoreU(hn::Sub(hn::Mul(hn::LoadU(d, t.weight + i), hn::Set(d, s.decay)),
                     hn::Div(hn::Mul(hn::Set(d, s.step_size), m), denominator)),
             d, t.weight + i);
  hn::StoreU(m, d, t.exp_avg + i);
  hn::StoreU(v, d, t.exp_avg_sq + i);
}

void SpanAdamWKernel(const AdamWScalars& scalars, const AdamWTile& tile) {
  const AdamWScalars s = scalars;
  const AdamWTile t = tile;
  const HWY_CAPPED(float, kStep) d;
  const HWY_CAPPED(float, 1) d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 8 * lanes <= t.cols; i += 8 * lanes) {
    for (size_t j = i; j < i + 8 * lanes; j += lanes) {
      Update(d, s, hn::LoadU(d, t.grad + j), t, j);
    }
  }
  for (; i < t.cols; ++i) Update(d1, s, hn::LoadU(d1, t.grad + i), t, i);
}

// out[i] = f(out[i], in[i]) for a whole row.
template <class Function>
HWY_INLINE void Pass(size_t n, const float* in, float* out, Function f) {
  const HWY_CAPPED(float, kStep) d;
  const HWY_CAPPED(float, 1) d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(f(d, hn::LoadU(d, out + i), hn::LoadU(d, in + i)), d, out + i);
  }
  for (; i < n; ++i) {
    hn::StoreU(f(d1, hn::LoadU(d1, out + i), hn::LoadU(d1, in + i)), d1, out + i);
  }
}

// addcdiv_
template <class D>
HWY_INLINE void AddQuotient(D d, const AdamWScalars& s, const float* denominator,
                            const AdamWTile& t, size_t i) {
  const auto step = hn::Mul(hn::Set(d, s.step_size), hn::LoadU(d, t.exp_avg + i));
  const auto quotient = hn::Div(step, hn::LoadU(d, denominator + i));
  hn::StoreU(hn::Sub(hn::LoadU(d, t.weight + i), quotient), d, t.weight + i);
}

void UnfusedAdamWKernel(int pass, const AdamWScalars& scalars, const AdamWTile& t, float* scratch) {
  const AdamWScalars s = scalars;
  const size_t n = t.cols;
  switch (pass) {
    case 0:
      return Pass(n, t.weight, t.weight,
                  [&](auto d, auto p, auto) HWY_ATTR { return hn::Mul(p, hn::Set(d, s.decay)); });
    case 1:  // lerp_
      return Pass(n, t.grad, t.exp_avg, [&](auto d, auto m, auto g) HWY_ATTR {
        return hn::Add(hn::Mul(hn::Set(d, s.beta1), m), hn::Mul(hn::Set(d, s.one_minus_beta1), g));
      });
    case 2:
      return Pass(n, t.exp_avg_sq, t.exp_avg_sq,
                  [&](auto d, auto v, auto) HWY_ATTR { return hn::Mul(hn::Set(d, s.beta2), v); });
    case 3:  // addcmul_
      return Pass(n, t.grad, t.exp_avg_sq, [&](auto d, auto v, auto g) HWY_ATTR {
        return hn::Add(v, hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
      });
    case 4:
      return Pass(n, t.exp_avg_sq, scratch,
                  [&](auto, auto, auto v) HWY_ATTR { return hn::Sqrt(v); });
    case 5:
      return Pass(n, scratch, scratch, [&](auto d, auto x, auto) HWY_ATTR {
        return hn::Mul(x, hn::Set(d, s.rsqrt_correction2));
      });
    case 6:
      return Pass(n, scratch, scratch,
                  [&](auto d, auto x, auto) HWY_ATTR { return hn::Add(x, hn::Set(d, s.eps)); });
    default:
      break;
  }
  const HWY_CAPPED(float, kStep) d;
  const HWY_CAPPED(float, 1) d1;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) AddQuotient(d, s, scratch, t, i);
  for (; i < n; ++i) AddQuotient(d1, s, scratch, t, i);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadBf16(D d, const uint8_t* in) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
#if HWY_TARGET == HWY_SCALAR
  uint16_t element;
  std::memcpy(&element, in, sizeof(element));
  const auto elements = hn::Set(d16, element);
#else
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  const auto elements = hn::BitCast(d16, hn::LoadU(d8, in));
#endif
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, elements)));
}

void AdamWOfBf16Kernel(const AdamWScalars& scalars, const AdamWTile& tile, const uint8_t* grad,
                       size_t grad_ld) {
  const AdamWScalars s = scalars;
  const HWY_CAPPED(float, kStep) d;
  const HWY_CAPPED(float, 1) d1;
  const size_t lanes = hn::Lanes(d);
  for (size_t r = 0; r < tile.rows; ++r) {
    AdamWTile t = tile;
    t.weight += r * t.ld;
    t.exp_avg += r * t.ld;
    t.exp_avg_sq += r * t.ld;
    const uint8_t* const g = grad + 2 * r * grad_ld;
    size_t i = 0;
    for (; i + kStep <= t.cols; i += kStep) {
      __builtin_prefetch(t.weight + i + kAhead, 1, 3);
      __builtin_prefetch(t.exp_avg + i + kAhead, 1, 3);
      __builtin_prefetch(t.exp_avg_sq + i + kAhead, 1, 3);
      for (size_t j = i; j < i + kStep; j += lanes) Update(d, s, LoadBf16(d, g + 2 * j), t, j);
    }
    for (; i < t.cols; ++i) Update(d1, s, LoadBf16(d1, g + 2 * i), t, i);
  }
}

void MemoryLimitOfBf16Kernel(const AdamWTile& t, const uint8_t* grad, uint8_t* out) {
  const HWY_CAPPED(float, kStep) d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const hn::RebindToUnsigned<decltype(d)> d32;
  const size_t lanes = hn::Lanes(d);
  uint16_t* const codes = reinterpret_cast<uint16_t*>(out);
  for (size_t i = 0; i + 2 * kStep <= t.cols; i += 2 * kStep) {
    for (size_t line = i; line < i + 2 * kStep; line += kStep) {
      __builtin_prefetch(t.weight + line + kAhead, 1, 3);
      __builtin_prefetch(t.exp_avg + line + kAhead, 1, 3);
      __builtin_prefetch(t.exp_avg_sq + line + kAhead, 1, 3);
    }
    __builtin_prefetch(grad + 2 * (i + kAhead), 0, 3);
    for (size_t j = i; j < i + 2 * kStep; j += lanes) {
      const auto g = LoadBf16(d, grad + 2 * j);
      const auto w = hn::Min(hn::LoadU(d, t.weight + j), g);
      hn::StoreU(w, d, t.weight + j);
      hn::StoreU(hn::Max(hn::LoadU(d, t.exp_avg + j), g), d, t.exp_avg + j);
      hn::StoreU(hn::Max(hn::LoadU(d, t.exp_avg_sq + j), g), d, t.exp_avg_sq + j);
      hn::Stream(hn::TruncateTo(d16, hn::ShiftRight<16>(hn::BitCast(d32, w))), d16, codes + j);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {

HWY_EXPORT(SpanAdamWKernel);
HWY_EXPORT(UnfusedAdamWKernel);
HWY_EXPORT(AdamWOfBf16Kernel);
HWY_EXPORT(MemoryLimitOfBf16Kernel);

namespace peers {

void SpanAdamW(const AdamWScalars& scalars, const AdamWTile& tile) {
  HWY_DYNAMIC_DISPATCH(SpanAdamWKernel)(scalars, tile);
}

void UnfusedAdamW(int pass, const AdamWScalars& scalars, const AdamWTile& tile, float* scratch) {
  HWY_DYNAMIC_DISPATCH(UnfusedAdamWKernel)(pass, scalars, tile, scratch);
}

void AdamWOfBf16(const AdamWScalars& scalars, const AdamWTile& tile, const uint8_t* grad,
                 size_t grad_ld) {
  HWY_DYNAMIC_DISPATCH(AdamWOfBf16Kernel)(scalars, tile, grad, grad_ld);
}

void MemoryLimitOfBf16(const AdamWTile& tile, const uint8_t* grad, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(MemoryLimitOfBf16Kernel)(tile, grad, out);
}

}  // namespace peers
}  // namespace eps
#endif  // HWY_ONCE
