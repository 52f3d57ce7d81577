// Copies that bypass the caches, for kernels to include inside Highway's foreach_target. Unlike
// ordinary stores, they do not read the lines of `out` before they write them. Use them for large
// results that are not read soon. Call hwy::FlushStream() before other threads may read the result.
//
//   stream::HWY_NAMESPACE::Copy(in, bytes, out);

#if defined(EPS_COMPRESSION_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_STREAM_INL_H_
#undef EPS_COMPRESSION_STREAM_INL_H_
#else
#define EPS_COMPRESSION_STREAM_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::stream {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void Copy(const uint8_t* HWY_RESTRICT in, size_t bytes, uint8_t* HWY_RESTRICT out) {
  constexpr size_t kLine = 64;
  const HWY_CAPPED(uint8_t, kLine) d;
  const size_t head = HWY_MIN(bytes, (0 - reinterpret_cast<uintptr_t>(out)) % kLine);
  if (head > 0) std::memcpy(out, in, head);
  size_t i = head;
  for (; i + kLine <= bytes; i += kLine) {
    for (size_t j = i; j < i + kLine; j += hn::Lanes(d))
      hn::Stream(hn::LoadU(d, in + j), d, out + j);
  }
  if (i < bytes) std::memcpy(out + i, in + i, bytes - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::stream
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_STREAM_INL_H_
