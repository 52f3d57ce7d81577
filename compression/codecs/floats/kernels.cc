#include "compression/codecs/floats/kernels.h"

#include <cstring>

#include "common/flush_denormals.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/floats/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "encoded elements are little-endian");

HWY_BEFORE_NAMESPACE();
namespace eps::float_kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// One cache line of floats per step, on vectors of at most that size.
constexpr size_t kStep = 16;
// The rows of a tile are short runs in distant pages, which hardware prefetchers do not follow.
// This many elements on is the same row of the next tile (kTileCols).
constexpr size_t kPrefetchElements = 128;

HWY_INLINE void PrefetchLine(const void* p) { __builtin_prefetch(p, 0, 2); }

// Loads Lanes(d) little-endian elements from bytes at any alignment.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* in) {
#if HWY_TARGET == HWY_SCALAR  // a vector of bytes would hold one byte only
  hn::TFromD<D> element;
  std::memcpy(&element, in, sizeof(element));
  return hn::Set(d, element);
#else
  const hn::Repartition<uint8_t, D> d8;
  return hn::BitCast(d, hn::LoadU(d8, in));
#endif
}

template <class D>
HWY_INLINE void StoreBytes(D /*d*/, hn::Vec<D> v, uint8_t* out) {
#if HWY_TARGET == HWY_SCALAR
  const hn::TFromD<D> element = hn::GetLane(v);
  std::memcpy(out, &element, sizeof(element));
#else
  const hn::Repartition<uint8_t, D> d8;
  hn::StoreU(hn::BitCast(d8, v), d8, out);
#endif
}

// A float format: how Lanes(df) encoded elements become floats, and what its element is.
struct Fp32 {
  static constexpr size_t kBytes = 4;
  using Word = uint32_t;
  static constexpr Word kMagnitude = 0x7fffffffu;
  static constexpr Word kLimit = 0x58800000u;  // 2^50

  template <class DF>
  static HWY_INLINE hn::Vec<DF> Load(DF df, const uint8_t* in) {
    return LoadBytes(df, in);
  }
};

struct Bf16 {
  static constexpr size_t kBytes = 2;
  using Word = uint16_t;
  static constexpr Word kMagnitude = 0x7fffu;
  static constexpr Word kLimit = 0x5880u;  // 2^50

  template <class DF>
  static HWY_INLINE hn::Vec<DF> Load(DF df, const uint8_t* in) {
    const hn::Rebind<uint16_t, DF> d16;
    const hn::RebindToUnsigned<DF> d32;
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(d32, LoadBytes(d16, in))));
  }
};

template <class Format>
size_t ScalarScan(const uint8_t* in, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    typename Format::Word word;
    std::memcpy(&word, in + i * Format::kBytes, Format::kBytes);
    if ((word & Format::kMagnitude) >= Format::kLimit) return i;
  }
  return end;
}

// Keeps the largest magnitude of a block and compares once. Magnitudes of NaN and infinity are
// larger than every finite one as integers.
template <class Format>
size_t FirstInadmissible(const uint8_t* HWY_RESTRICT in, size_t n) {
  const hn::ScalableTag<typename Format::Word> d;
  const size_t lanes = hn::Lanes(d);
  const size_t block = 8 * lanes;
  const auto magnitude = hn::Set(d, static_cast<typename Format::Word>(Format::kMagnitude));
  const auto limit = hn::Set(d, static_cast<typename Format::Word>(Format::kLimit - 1));
  size_t i = 0;
  for (; i + block <= n; i += block) {
    const uint8_t* p = in + i * Format::kBytes;
    auto largest0 = hn::Zero(d);
    auto largest1 = hn::Zero(d);
    for (size_t j = 0; j < block; j += 2 * lanes) {
      PrefetchLine(p + 1024 + j * Format::kBytes);
      largest0 = hn::Max(largest0, hn::And(LoadBytes(d, p + j * Format::kBytes), magnitude));
      largest1 =
          hn::Max(largest1, hn::And(LoadBytes(d, p + (j + lanes) * Format::kBytes), magnitude));
    }
    if (!hn::AllFalse(d, hn::Gt(hn::Max(largest0, largest1), limit))) {
      return ScalarScan<Format>(in, i, i + block);
    }
  }
  return ScalarScan<Format>(in, i, n);
}

struct Assign {
  template <class DF>
  static HWY_INLINE hn::Vec<DF> Combine(DF, const float*, hn::Vec<DF> value) {
    return value;
  }
};

struct Accumulate {
  template <class DF>
  static HWY_INLINE hn::Vec<DF> Combine(DF df, const float* out, hn::Vec<DF> value) {
    return hn::Add(hn::LoadU(df, out), value);
  }
};

template <class Format, class Operation>
HWY_INLINE void DecodeRow(const uint8_t* HWY_RESTRICT in, size_t n, float* HWY_RESTRICT out) {
  const HWY_CAPPED(float, kStep) df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    PrefetchLine(in + (i + kPrefetchElements) * Format::kBytes);
    for (size_t j = i; j < i + kStep; j += lanes) {
      const auto value = Format::Load(df, in + j * Format::kBytes);
      hn::StoreU(Operation::Combine(df, out + j, value), df, out + j);
    }
  }
  const HWY_CAPPED(float, 1) d1;
  for (; i < n; ++i) {
    const auto value = Format::Load(d1, in + i * Format::kBytes);
    hn::StoreU(Operation::Combine(d1, out + i, value), d1, out + i);
  }
}

template <class Format, class Operation>
HWY_INLINE void DecodeRows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                           float* out) {
  for (size_t r = 0; r < rows; ++r) {
    DecodeRow<Format, Operation>(in + r * in_ld * Format::kBytes, cols, out + r * ld);
  }
}

template <class DF>
HWY_INLINE void EncodeBf16Vector(DF df, const float* in, uint8_t* out) {
  const hn::RebindToUnsigned<DF> d32;
  const hn::Rebind<uint16_t, DF> d16;
  const auto bits = hn::BitCast(d32, hn::LoadU(df, in));
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd));
  // Magnitudes are below 2^31, so that a signed comparison, which every target has, orders them.
  const hn::RebindToSigned<DF> di;
  const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(d32, 0x7fffffffu)));
  const auto is_nan = hn::RebindMask(d32, hn::Gt(magnitude, hn::Set(di, 0x7f800000)));
  const auto code = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(d32, 0x40u)), rounded);
  StoreBytes(d16, hn::TruncateTo(d16, code), out);
}

size_t ScanFp32(const uint8_t* in, size_t n) { return FirstInadmissible<Fp32>(in, n); }
size_t ScanBf16(const uint8_t* in, size_t n) { return FirstInadmissible<Bf16>(in, n); }

void DecodeFp32Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  DecodeRows<Fp32, Assign>(in, in_ld, rows, cols, ld, out);
}
void DecodeBf16Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  DecodeRows<Bf16, Assign>(in, in_ld, rows, cols, ld, out);
}
void AccumulateFp32Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                        float* out) {
  DecodeRows<Fp32, Accumulate>(in, in_ld, rows, cols, ld, out);
}
void AccumulateBf16Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                        float* out) {
  DecodeRows<Bf16, Accumulate>(in, in_ld, rows, cols, ld, out);
}

void EncodeBf16Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    uint8_t* out) {
  const HWY_CAPPED(float, kStep) df;
  const HWY_CAPPED(float, 1) d1;
  const size_t lanes = hn::Lanes(df);
  for (size_t r = 0; r < rows; ++r) {
    const float* HWY_RESTRICT from = in + r * ld;
    uint8_t* HWY_RESTRICT to = out + 2 * r * out_ld;
    size_t i = 0;
    for (; i + kStep <= cols; i += kStep) {
      PrefetchLine(from + i + kPrefetchElements);
      for (size_t j = i; j < i + kStep; j += lanes) EncodeBf16Vector(df, from + j, to + 2 * j);
    }
    for (; i < cols; ++i) EncodeBf16Vector(d1, from + i, to + 2 * i);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::float_kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::float_kernels {

HWY_EXPORT(ScanFp32);
HWY_EXPORT(ScanBf16);
HWY_EXPORT(DecodeFp32Rows);
HWY_EXPORT(DecodeBf16Rows);
HWY_EXPORT(AccumulateFp32Rows);
HWY_EXPORT(AccumulateBf16Rows);
HWY_EXPORT(EncodeBf16Rows);

size_t FirstInadmissibleFp32(const uint8_t* in, size_t n) {
  return HWY_DYNAMIC_DISPATCH(ScanFp32)(in, n);
}
size_t FirstInadmissibleBf16(const uint8_t* in, size_t n) {
  return HWY_DYNAMIC_DISPATCH(ScanBf16)(in, n);
}
void DecodeFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeFp32Rows)(in, in_ld, rows, cols, ld, out);
}
void DecodeBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeBf16Rows)(in, in_ld, rows, cols, ld, out);
}
// The mode is set outside of the indirect call, across which the compiler moves no arithmetic.
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
void EncodeBf16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeBf16Rows)(in, ld, rows, cols, out_ld, out);
}

}  // namespace eps::float_kernels
#endif  // HWY_ONCE
