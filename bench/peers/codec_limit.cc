#include "bench/peers/codec_limit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peers/codec_limit.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kStep = 64;     // elements
constexpr size_t kLine = 16;     // floats in 64 bytes
constexpr size_t kAhead = 1024;  // elements

void Encode(const float* HWY_RESTRICT in, size_t elements, size_t bytes, uint8_t* out) {
  const HWY_CAPPED(float, kLine) d;
  const size_t lanes = hn::Lanes(d);
  float* HWY_RESTRICT to = reinterpret_cast<float*>(out);
  size_t owed = 0;  // bytes times elements
  for (size_t i = 0; i + kStep <= elements; i += kStep) {
    auto sum = hn::Zero(d);
    for (size_t j = i; j < i + kStep; j += lanes) {
      if (j % kLine == 0) __builtin_prefetch(in + j + kAhead, 0, 3);
      sum = hn::Max(sum, hn::LoadU(d, in + j));
    }
    for (owed += kStep * bytes; owed >= 4 * kLine * elements; owed -= 4 * kLine * elements) {
      for (size_t j = 0; j < kLine; j += lanes) hn::Stream(sum, d, to + j);
      to += kLine;
    }
  }
  hwy::FlushStream();
}

void Decode(const uint8_t* in, size_t bytes, size_t elements, float* HWY_RESTRICT out) {
  const HWY_CAPPED(float, kLine) d;
  const size_t lanes = hn::Lanes(d);
  const float* HWY_RESTRICT from = reinterpret_cast<const float*>(in);
  size_t owed = 0;
  for (size_t i = 0; i + kStep <= elements; i += kStep) {
    auto sum = hn::Zero(d);
    for (owed += kStep * bytes; owed >= 4 * kLine * elements; owed -= 4 * kLine * elements) {
      __builtin_prefetch(from + kAhead, 0, 3);
      for (size_t j = 0; j < kLine; j += lanes) sum = hn::Max(sum, hn::LoadU(d, from + j));
      from += kLine;
    }
    for (size_t j = i; j < i + kStep; j += lanes) {
      if (j % kLine == 0) __builtin_prefetch(out + j + kAhead, 1, 3);
      hn::StoreU(sum, d, out + j);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {

HWY_EXPORT(Encode);
HWY_EXPORT(Decode);

void EncodeLimit(const float* in, size_t elements, size_t bytes, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Encode)(in, elements, bytes, out);
}
void DecodeLimit(const uint8_t* in, size_t bytes, size_t elements, float* out) {
  HWY_DYNAMIC_DISPATCH(Decode)(in, bytes, elements, out);
}

}  // namespace eps
#endif  // HWY_ONCE
