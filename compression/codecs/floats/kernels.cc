#include "compression/codecs/floats/kernels.h"

#include <cstring>

#include "base/numerics/flush_denormals.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/floats/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// After Highway.
#include "compression/codecs/floats/formats-inl.h"
#include "compression/codecs/floats/four-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::float_kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using float_formats::HWY_NAMESPACE::Bf16;
using float_formats::HWY_NAMESPACE::E4m3;
using float_formats::HWY_NAMESPACE::E5m2;
using float_formats::HWY_NAMESPACE::Fp16;
using float_formats::HWY_NAMESPACE::Fp32;
using float_formats::HWY_NAMESPACE::LoadBytes;

constexpr size_t kLine = 64;
// One cache line of floats per step, in vectors of at most that size.
constexpr size_t kStep = 16;
// The prefetch distance, in elements. A single row is a long run. The rows of a tile are short runs
// in distant pages, which hardware prefetchers do not follow: there it reaches the same row of the
// next tile (kTileCols).
template <class Format>
constexpr size_t kAheadInRow = 1024;
// The loop of fp16 is so short that the processor itself reads nearly that far ahead.
template <>
constexpr size_t kAheadInRow<Fp16> = 2048;
constexpr size_t kAheadInTile = 128;

HWY_INLINE void PrefetchLine(const void* p) { __builtin_prefetch(p, 0, 2); }
// Prefetches a line that is read or written soon.
HWY_INLINE void PrefetchNear(const void* p) { __builtin_prefetch(p, 0, 3); }
HWY_INLINE void PrefetchToWrite(const void* p) { __builtin_prefetch(p, 1, 3); }

template <class Format>
size_t ScalarScan(const uint8_t* in, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    typename Format::Word word;
    std::memcpy(&word, in + i * sizeof(word), sizeof(word));
    if ((word & Format::kMagnitude) >= Format::kLimit) return i;
  }
  return end;
}

// Keeps the largest magnitude of a block and compares once. As integers, the magnitudes of NaN and
// infinity exceed every finite one.
template <class Format>
size_t FirstInadmissible(const uint8_t* HWY_RESTRICT in, size_t n) {
  using Word = typename Format::Word;
  const hn::ScalableTag<Word> d;
  const size_t lanes = hn::Lanes(d);
  const size_t block = 8 * lanes;
  const auto magnitude = hn::Set(d, static_cast<Word>(Format::kMagnitude));
  const auto limit = hn::Set(d, static_cast<Word>(Format::kLimit - 1));
  size_t i = 0;
  for (; i + block <= n; i += block) {
    const uint8_t* p = in + i * sizeof(Word);
    auto largest0 = hn::Zero(d);
    auto largest1 = hn::Zero(d);
    for (size_t j = 0; j < block; j += 2 * lanes) {
      PrefetchLine(p + 1024 + j * sizeof(Word));
      largest0 = hn::Max(largest0, hn::And(LoadBytes(d, p + j * sizeof(Word)), magnitude));
      largest1 =
          hn::Max(largest1, hn::And(LoadBytes(d, p + (j + lanes) * sizeof(Word)), magnitude));
    }
    if (!hn::AllFalse(d, hn::Gt(hn::Max(largest0, largest1), limit))) {
      return ScalarScan<Format>(in, i, i + block);
    }
  }
  return ScalarScan<Format>(in, i, n);
}

// Replaces the output.
struct Assign {
  template <class DF>
  static HWY_INLINE hn::Vec<DF> Combine(DF, const float*, hn::Vec<DF> value) {
    return value;
  }
};

// Adds to the output.
struct Accumulate {
  template <class DF>
  static HWY_INLINE hn::Vec<DF> Combine(DF df, const float* out, hn::Vec<DF> value) {
    return hn::Add(hn::LoadU(df, out), value);
  }
};

template <class Format, class Operation>
HWY_INLINE void DecodeRow(const uint8_t* HWY_RESTRICT in, size_t n, size_t ahead,
                          float* HWY_RESTRICT out) {
  constexpr size_t kBytes = sizeof(typename Format::Word);
  const HWY_CAPPED(float, kStep) df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    PrefetchNear(in + (i + ahead) * kBytes);
    PrefetchToWrite(out + i + ahead);
    for (size_t j = i; j < i + kStep; j += lanes) {
      const auto value = Format::Load(df, in + j * kBytes);
      hn::StoreU(Operation::Combine(df, out + j, value), df, out + j);
    }
  }
  const HWY_CAPPED(float, 1) d1;
  for (; i < n; ++i) {
    const auto value = Format::Load(d1, in + i * kBytes);
    hn::StoreU(Operation::Combine(d1, out + i, value), d1, out + i);
  }
}

template <class Format, class Operation>
HWY_INLINE void DecodeRows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                           float* out) {
  const size_t ahead = rows > 1 ? kAheadInTile : kAheadInRow<Format>;
  for (size_t r = 0; r < rows; ++r) {
    DecodeRow<Format, Operation>(in + r * in_ld * sizeof(typename Format::Word), cols, ahead,
                                 out + r * ld);
  }
}

#if HWY_TARGET == HWY_SCALAR

template <class Format, bool kPastCaches>
HWY_INLINE void EncodeRow(const float* HWY_RESTRICT in, size_t n, size_t /*ahead*/,
                          uint8_t* HWY_RESTRICT out) {
  const HWY_CAPPED(float, 1) df;
  for (size_t i = 0; i < n; ++i) {
    const typename Format::Word word = hn::GetLane(Format::Code(df, hn::LoadU(df, in + i)));
    std::memcpy(out + i * sizeof(word), &word, sizeof(word));
  }
}

#else

// Returns the encoded elements that fill a vector of bytes: those of one, two or four vectors of
// floats.
template <class Format, class DF>
HWY_INLINE hn::Vec<hn::Repartition<uint8_t, DF> > Encoded(DF df, const float* HWY_RESTRICT in) {
  using Word = typename Format::Word;
  const hn::Repartition<uint8_t, DF> d8;
  const hn::Repartition<Word, DF> dword;
  const size_t lanes = hn::Lanes(df);
  const auto c0 = Format::Code(df, hn::LoadU(df, in));
  if constexpr (sizeof(Word) == 4) {
    return hn::BitCast(d8, c0);
  } else if constexpr (sizeof(Word) == 2) {
    const auto c1 = Format::Code(df, hn::LoadU(df, in + lanes));
    return hn::BitCast(d8, hn::Combine(dword, c1, c0));
  } else {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    hn::Vec<decltype(d8)> codes;
    if (HWY_LIKELY(float_formats::HWY_NAMESPACE::FourCodes<Format>(in, &codes))) return codes;
#endif
    const hn::Half<decltype(dword)> half;
    const auto c1 = Format::Code(df, hn::LoadU(df, in + lanes));
    const auto c2 = Format::Code(df, hn::LoadU(df, in + 2 * lanes));
    const auto c3 = Format::Code(df, hn::LoadU(df, in + 3 * lanes));
    return hn::Combine(dword, hn::Combine(half, c3, c2), hn::Combine(half, c1, c0));
  }
}

// Encodes fewer elements than a line of `out` holds.
template <class Format>
HWY_INLINE void EncodePart(const float* HWY_RESTRICT in, size_t n, uint8_t* HWY_RESTRICT out) {
  constexpr size_t kBytes = sizeof(typename Format::Word);
  const HWY_CAPPED(float, kStep) df;
  const hn::Repartition<uint8_t, decltype(df)> d8;
  HWY_ALIGN float values[kLine / kBytes] = {};
  HWY_ALIGN uint8_t encoded[kLine];
  std::memcpy(values, in, n * sizeof(float));
  for (size_t b = 0; b < n * kBytes; b += hn::Lanes(d8)) {
    hn::Store(Encoded<Format>(df, values + b / kBytes), d8, encoded + b);
  }
  std::memcpy(out, encoded, n * kBytes);
}

// Encodes a row. Past the caches, whole lines are stored at once, so that they are not read before.
template <class Format, bool kPastCaches>
HWY_INLINE void EncodeRow(const float* HWY_RESTRICT in, size_t n, size_t ahead,
                          uint8_t* HWY_RESTRICT out) {
  constexpr size_t kBytes = sizeof(typename Format::Word);
  constexpr size_t kElements = kLine / kBytes;  // of a line
  const HWY_CAPPED(float, kStep) df;
  const hn::Repartition<uint8_t, decltype(df)> d8;
  size_t i = 0;
  if (kPastCaches) {
    i = HWY_MIN(n, (0 - reinterpret_cast<uintptr_t>(out)) % kLine / kBytes);
    if (i > 0) EncodePart<Format>(in, i, out);
  }
  // Lines of an array at an odd address begin within an element.
  const bool streams = kPastCaches && reinterpret_cast<uintptr_t>(out + i * kBytes) % kLine == 0;
  for (; i + kElements <= n; i += kElements) {
    for (size_t j = i; j < i + kElements; j += kStep) PrefetchNear(in + j + ahead);
    for (size_t b = 0; b < kLine; b += hn::Lanes(d8)) {
      const auto bytes = Encoded<Format>(df, in + i + b / kBytes);
      if (streams) {
        hn::Stream(bytes, d8, out + i * kBytes + b);
      } else {
        hn::StoreU(bytes, d8, out + i * kBytes + b);
      }
    }
  }
  if (i < n) EncodePart<Format>(in + i, n - i, out + i * kBytes);
}

#endif  // HWY_TARGET == HWY_SCALAR

template <class Format, bool kPastCaches>
HWY_INLINE void EncodeRows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                           uint8_t* out) {
  const size_t ahead = rows > 1 ? kAheadInTile : kAheadInRow<Format>;
  for (size_t r = 0; r < rows; ++r) {
    EncodeRow<Format, kPastCaches>(in + r * ld, cols, ahead,
                                   out + r * out_ld * sizeof(typename Format::Word));
  }
}

template <class Format>
HWY_INLINE void EncodeAs(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                         bool past_caches, uint8_t* out) {
  if (past_caches) {
    EncodeRows<Format, true>(in, ld, rows, cols, out_ld, out);
  } else {
    EncodeRows<Format, false>(in, ld, rows, cols, out_ld, out);
  }
}

size_t ScanFp32(const uint8_t* in, size_t n) { return FirstInadmissible<Fp32>(in, n); }
size_t ScanBf16(const uint8_t* in, size_t n) { return FirstInadmissible<Bf16>(in, n); }
size_t ScanFp16(const uint8_t* in, size_t n) { return FirstInadmissible<Fp16>(in, n); }
size_t ScanE4m3(const uint8_t* in, size_t n) { return FirstInadmissible<E4m3>(in, n); }
size_t ScanE5m2(const uint8_t* in, size_t n) { return FirstInadmissible<E5m2>(in, n); }

void DecodeFp32Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  DecodeRows<Fp32, Assign>(in, in_ld, rows, cols, ld, out);
}
void DecodeBf16Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  DecodeRows<Bf16, Assign>(in, in_ld, rows, cols, ld, out);
}
void DecodeFp16Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  DecodeRows<Fp16, Assign>(in, in_ld, rows, cols, ld, out);
}
void DecodeE4m3Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  DecodeRows<E4m3, Assign>(in, in_ld, rows, cols, ld, out);
}
void DecodeE5m2Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  DecodeRows<E5m2, Assign>(in, in_ld, rows, cols, ld, out);
}
void AccumulateFp32Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                        float* out) {
  DecodeRows<Fp32, Accumulate>(in, in_ld, rows, cols, ld, out);
}
void AccumulateBf16Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                        float* out) {
  DecodeRows<Bf16, Accumulate>(in, in_ld, rows, cols, ld, out);
}
void AccumulateFp16Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                        float* out) {
  DecodeRows<Fp16, Accumulate>(in, in_ld, rows, cols, ld, out);
}
void AccumulateE4m3Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                        float* out) {
  DecodeRows<E4m3, Accumulate>(in, in_ld, rows, cols, ld, out);
}
void AccumulateE5m2Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                        float* out) {
  DecodeRows<E5m2, Accumulate>(in, in_ld, rows, cols, ld, out);
}

void EncodeFp32Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    bool past_caches, uint8_t* out) {
  EncodeAs<Fp32>(in, ld, rows, cols, out_ld, past_caches, out);
}
void EncodeBf16Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    bool past_caches, uint8_t* out) {
  EncodeAs<Bf16>(in, ld, rows, cols, out_ld, past_caches, out);
}
void EncodeFp16Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    bool past_caches, uint8_t* out) {
  EncodeAs<Fp16>(in, ld, rows, cols, out_ld, past_caches, out);
}
void EncodeE4m3Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    bool past_caches, uint8_t* out) {
  EncodeAs<E4m3>(in, ld, rows, cols, out_ld, past_caches, out);
}
void EncodeE5m2Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    bool past_caches, uint8_t* out) {
  EncodeAs<E5m2>(in, ld, rows, cols, out_ld, past_caches, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::float_kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::float_kernels {

HWY_EXPORT(ScanFp32);
HWY_EXPORT(ScanBf16);
HWY_EXPORT(ScanFp16);
HWY_EXPORT(ScanE4m3);
HWY_EXPORT(ScanE5m2);
HWY_EXPORT(DecodeFp32Rows);
HWY_EXPORT(DecodeBf16Rows);
HWY_EXPORT(DecodeFp16Rows);
HWY_EXPORT(DecodeE4m3Rows);
HWY_EXPORT(DecodeE5m2Rows);
HWY_EXPORT(AccumulateFp32Rows);
HWY_EXPORT(AccumulateBf16Rows);
HWY_EXPORT(AccumulateFp16Rows);
HWY_EXPORT(AccumulateE4m3Rows);
HWY_EXPORT(AccumulateE5m2Rows);
HWY_EXPORT(EncodeFp32Rows);
HWY_EXPORT(EncodeBf16Rows);
HWY_EXPORT(EncodeFp16Rows);
HWY_EXPORT(EncodeE4m3Rows);
HWY_EXPORT(EncodeE5m2Rows);

size_t FirstInadmissibleFp32(const uint8_t* in, size_t n) {
  return HWY_DYNAMIC_DISPATCH(ScanFp32)(in, n);
}
size_t FirstInadmissibleBf16(const uint8_t* in, size_t n) {
  return HWY_DYNAMIC_DISPATCH(ScanBf16)(in, n);
}
size_t FirstInadmissibleFp16(const uint8_t* in, size_t n) {
  return HWY_DYNAMIC_DISPATCH(ScanFp16)(in, n);
}
size_t FirstInadmissibleE4m3(const uint8_t* in, size_t n) {
  return HWY_DYNAMIC_DISPATCH(ScanE4m3)(in, n);
}
size_t FirstInadmissibleE5m2(const uint8_t* in, size_t n) {
  return HWY_DYNAMIC_DISPATCH(ScanE5m2)(in, n);
}
void DecodeFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeFp32Rows)(in, in_ld, rows, cols, ld, out);
}
void DecodeBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeBf16Rows)(in, in_ld, rows, cols, ld, out);
}
void DecodeFp16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeFp16Rows)(in, in_ld, rows, cols, ld, out);
}
void DecodeE4m3(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeE4m3Rows)(in, in_ld, rows, cols, ld, out);
}
void DecodeE5m2(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeE5m2Rows)(in, in_ld, rows, cols, ld, out);
}
// Sets the mode outside of the indirect call, across which the compiler moves no arithmetic.
void AccumulateFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(AccumulateFp32Rows)(in, in_ld, rows, cols, ld, out);
}
void AccumulateBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(AccumulateBf16Rows)(in, in_ld, rows, cols, ld, out);
}
void AccumulateFp16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(AccumulateFp16Rows)(in, in_ld, rows, cols, ld, out);
}
void AccumulateE4m3(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(AccumulateE4m3Rows)(in, in_ld, rows, cols, ld, out);
}
void AccumulateE5m2(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(AccumulateE5m2Rows)(in, in_ld, rows, cols, ld, out);
}
void EncodeFp32(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeFp32Rows)(in, ld, rows, cols, out_ld, past_caches, out);
}
void EncodeBf16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeBf16Rows)(in, ld, rows, cols, out_ld, past_caches, out);
}
void EncodeFp16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeFp16Rows)(in, ld, rows, cols, out_ld, past_caches, out);
}
void EncodeE4m3(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeE4m3Rows)(in, ld, rows, cols, out_ld, past_caches, out);
}
void EncodeE5m2(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeE5m2Rows)(in, ld, rows, cols, out_ld, past_caches, out);
}

}  // namespace eps::float_kernels
#endif  // HWY_ONCE
