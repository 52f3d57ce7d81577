#include "optimizer/strip_kernels.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/strip_kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "compression/sparse-inl.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "encoded elements are little-endian");

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace sp = sparse::HWY_NAMESPACE;

using sp::Bf16;
using sp::Fp32;
using strip_kernels::kMaxPushed;
using strip_kernels::kStrip;
using strip_kernels::PieceSink;
using strip_kernels::Step;
using strip_kernels::StepKind;

constexpr size_t kLine = 64;
// The prefetch distance, in elements.
constexpr size_t kAhead = 512;
// The number of elements that are summed before a sink takes them.
constexpr size_t kPiece = 512;

// Prefetches the lines of a later strip.
template <class Format>
HWY_INLINE void Prefetch(const uint8_t* in, size_t strip) {
  const uint8_t* p = in + kAhead * Format::kBytes;
  for (size_t i = 0; i < strip * Format::kBytes; i += kLine) __builtin_prefetch(p + i, 0, 2);
}

// A strip is four vectors. Not an array: some targets' vectors cannot be array elements.
template <class Format, class D, class V>
HWY_INLINE void Read(D d, const uint8_t* in, V& v0, V& v1, V& v2, V& v3) {
  const size_t width = hn::Lanes(d) * Format::kBytes;
  v0 = Format::Load(d, in);
  v1 = Format::Load(d, in + width);
  v2 = Format::Load(d, in + 2 * width);
  v3 = Format::Load(d, in + 3 * width);
}

template <class Format, class D, class V>
HWY_INLINE void ReadAdd(D d, const uint8_t* in, V& v0, V& v1, V& v2, V& v3) {
  V a0, a1, a2, a3;
  Read<Format>(d, in, a0, a1, a2, a3);
  v0 = hn::Add(v0, a0);
  v1 = hn::Add(v1, a1);
  v2 = hn::Add(v2, a2);
  v3 = hn::Add(v3, a3);
}

// Expands the next Lanes(d) elements from `bits` and values, and moves past them.
template <class Format, class D>
HWY_INLINE hn::Vec<D> NextSparse(D d, uint64_t* bits, const uint8_t** values) {
  const uint32_t present = static_cast<uint32_t>(*bits & ((uint64_t{1} << hn::Lanes(d)) - 1));
  const auto elements = sp::Expand<Format>(d, *values, present);
  *bits >>= hn::Lanes(d);
  *values += Format::kBytes * sp::SetBits(present);
  return elements;
}

// Expands the elements from `element` on; `bits` says which of them are present.
template <class Format, class D, class V>
HWY_INLINE void ExpandSparse(D d, const SparseElements& sparse, uint64_t element, uint64_t bits,
                             V& v0, V& v1, V& v2, V& v3) {
  const size_t rank = sp::Rank(sparse, element);
  const uint8_t* values = sparse.values + Format::kBytes * rank;
  // A copy of the last values, so that whole vectors can be read.
  uint8_t last_values[Format::kBytes * kStrip];
  if (HWY_UNLIKELY(sparse.count - rank < 4 * hn::Lanes(d))) {
    std::memset(last_values, 0, sizeof(last_values));
    std::memcpy(last_values, values, Format::kBytes * (sparse.count - rank));
    values = last_values;
  }
  v0 = NextSparse<Format>(d, &bits, &values);
  v1 = NextSparse<Format>(d, &bits, &values);
  v2 = NextSparse<Format>(d, &bits, &values);
  v3 = NextSparse<Format>(d, &bits, &values);
}

// As Read, for the elements from `element` on.
template <class D, class V>
HWY_INLINE void ReadSparse(D d, const SparseElements& sparse, uint64_t element, V& v0, V& v1, V& v2,
                           V& v3) {
  const size_t strip = 4 * hn::Lanes(d);
  v0 = v1 = v2 = v3 = hn::Zero(d);
  const uint64_t bits = sp::BitsFrom(sparse, element) & (~uint64_t{0} >> (64 - strip));
  if (bits == 0) return;
  if (sparse.value_bytes == Fp32::kBytes) {
    ExpandSparse<Fp32>(d, sparse, element, bits, v0, v1, v2, v3);
  } else {
    ExpandSparse<Bf16>(d, sparse, element, bits, v0, v1, v2, v3);
  }
}

template <class D>
HWY_INLINE void ReduceStrip(D d, const Step* HWY_RESTRICT steps, size_t n, uint64_t element,
                            float* HWY_RESTRICT out) {
  const size_t width = hn::Lanes(d);
  HWY_ALIGN float pushed[kMaxPushed * kStrip];
  float* below = pushed;
  auto v0 = hn::Zero(d), v1 = v0, v2 = v0, v3 = v0;
  for (size_t i = 0; i < n; ++i) {
    const uint8_t* const in = steps[i].elements;
    switch (steps[i].kind) {
      case StepKind::kPush:
        hn::Store(v0, d, below);
        hn::Store(v1, d, below + width);
        hn::Store(v2, d, below + 2 * width);
        hn::Store(v3, d, below + 3 * width);
        below += 4 * width;
        break;
      case StepKind::kReadFp32:
        Prefetch<Fp32>(in + element * Fp32::kBytes, 4 * width);
        Read<Fp32>(d, in + element * Fp32::kBytes, v0, v1, v2, v3);
        break;
      case StepKind::kReadBf16:
        Prefetch<Bf16>(in + element * Bf16::kBytes, 4 * width);
        Read<Bf16>(d, in + element * Bf16::kBytes, v0, v1, v2, v3);
        break;
      case StepKind::kAddFp32:
        Prefetch<Fp32>(in + element * Fp32::kBytes, 4 * width);
        ReadAdd<Fp32>(d, in + element * Fp32::kBytes, v0, v1, v2, v3);
        break;
      case StepKind::kAddBf16:
        Prefetch<Bf16>(in + element * Bf16::kBytes, 4 * width);
        ReadAdd<Bf16>(d, in + element * Bf16::kBytes, v0, v1, v2, v3);
        break;
      case StepKind::kReadSparse:
        ReadSparse(d, *steps[i].sparse, element, v0, v1, v2, v3);
        break;
      case StepKind::kAddSparse: {
        decltype(v0) a0, a1, a2, a3;
        ReadSparse(d, *steps[i].sparse, element, a0, a1, a2, a3);
        v0 = hn::Add(v0, a0);
        v1 = hn::Add(v1, a1);
        v2 = hn::Add(v2, a2);
        v3 = hn::Add(v3, a3);
        break;
      }
      case StepKind::kPopAdd:
        below -= 4 * width;
        v0 = hn::Add(hn::Load(d, below), v0);
        v1 = hn::Add(hn::Load(d, below + width), v1);
        v2 = hn::Add(hn::Load(d, below + 2 * width), v2);
        v3 = hn::Add(hn::Load(d, below + 3 * width), v3);
        break;
    }
  }
  hn::StoreU(v0, d, out);
  hn::StoreU(v1, d, out + width);
  hn::StoreU(v2, d, out + 2 * width);
  hn::StoreU(v3, d, out + 3 * width);
}

// REQUIRES n >= kStrip.
HWY_INLINE void ReduceRun(const Step* steps, size_t step_count, uint64_t first, size_t n,
                          float* out) {
  const HWY_CAPPED(float, HWY_MIN(kStrip / 4, sp::kMaxLanes)) d;
  const size_t strip = 4 * hn::Lanes(d);
  size_t i = 0;
  for (; i + strip <= n; i += strip) ReduceStrip(d, steps, step_count, first + i, out + i);
  // The last strip overlaps the one before and writes the same values again.
  if (i < n) ReduceStrip(d, steps, step_count, first + n - strip, out + n - strip);
}

void ReduceKernel(const Step* steps, size_t step_count, uint64_t first, size_t n, float* out) {
  ReduceRun(steps, step_count, first, n, out);
}

void ReducePiecesKernel(const Step* steps, size_t step_count, uint64_t first, size_t n, float* out,
                        PieceSink* sink) {
  for (size_t begin = 0; begin < n;) {
    const size_t end = n - begin < kPiece + kStrip ? n : begin + kPiece;
    ReduceRun(steps, step_count, first + begin, end - begin, out + begin);
    sink->Take(begin, end - begin);
    begin = end;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {

HWY_EXPORT(ReduceKernel);
HWY_EXPORT(ReducePiecesKernel);

namespace strip_kernels {

void Reduce(const Step* steps, size_t step_count, uint64_t first, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(ReduceKernel)(steps, step_count, first, n, out);
}

void ReducePieces(const Step* steps, size_t step_count, uint64_t first, size_t n, float* out,
                  PieceSink* sink) {
  HWY_DYNAMIC_DISPATCH(ReducePiecesKernel)(steps, step_count, first, n, out, sink);
}

}  // namespace strip_kernels
}  // namespace eps
#endif  // HWY_ONCE
