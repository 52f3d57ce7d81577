#include "compression/codecs/floats/kernels.h"

#include <cstring>

#include "base/numerics/flush_denormals.h"
#include "compression/panel_ahead.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/floats/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// After Highway.
#include "compression/stream-inl.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "encoded elements are little-endian");

HWY_BEFORE_NAMESPACE();
namespace eps::float_kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// One cache line of floats per step, in vectors of at most that size.
constexpr size_t kStep = 16;
// The rows of a tile are short runs in distant pages, which hardware prefetchers do not follow. The
// same row of the next tile is this many elements ahead (kTileCols).
constexpr size_t kPrefetchElements = 128;
// Elements that are encoded before they are stored around the caches.
constexpr size_t kPiece = 128;

HWY_INLINE void PrefetchLine(const void* p) { __builtin_prefetch(p, 0, 2); }

// Loads Lanes(d) little-endian elements from bytes at any alignment.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* in) {
#if HWY_TARGET == HWY_SCALAR  // a vector of bytes would hold only one byte
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

// A float format: its element, and how Lanes(df) encoded elements become floats.
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

// bfloat16, the upper half of a float.
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

  template <class DF>
  static HWY_INLINE void Store(DF df, const float* in, uint8_t* out) {
    const hn::RebindToUnsigned<DF> d32;
    const hn::Rebind<uint16_t, DF> d16;
    const auto bits = hn::BitCast(d32, hn::LoadU(df, in));
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(d32, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd));
    // Magnitudes are below 2^31, so a signed comparison, which every target has, orders them.
    const hn::RebindToSigned<DF> di;
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(d32, 0x7fffffffu)));
    const auto is_nan = hn::RebindMask(d32, hn::Gt(magnitude, hn::Set(di, 0x7f800000)));
    const auto code = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(d32, 0x40u)), rounded);
    StoreBytes(d16, hn::TruncateTo(d16, code), out);
  }
};

// The common part of the formats with narrower exponents than FP32. Codes here have no sign, are in
// 32-bit lanes and below 2^15, so signed comparisons order them.
template <int kMantissaBits, int kBias>
struct Narrow {
  static constexpr int kDropped = 23 - kMantissaBits;
  static constexpr int32_t kRebias = 127 - kBias;
  // A float whose unit in the last place is the format's smallest denormal. After it is added,
  // denormals of the format are mantissa bits, and the processor's addition rounds to them, ties to
  // even. No relevant operand and no result is an FP32 denormal, so no mode changes a bit.
  static constexpr int32_t kMagic = (kRebias + kDropped + 1) << 23;

  // Returns the codes nearest to finite magnitudes (as FP32 bits).
  template <class DI>
  static HWY_INLINE hn::Vec<DI> CodeOf(DI di, hn::Vec<DI> magnitude) {
    const hn::RebindToFloat<DI> df;
    const auto odd = hn::And(hn::ShiftRight<kDropped>(magnitude), hn::Set(di, 1));
    const auto carried = hn::Add(hn::Add(magnitude, hn::Set(di, (1 << (kDropped - 1)) - 1)), odd);
    const auto normal =
        hn::Sub(hn::ShiftRight<kDropped>(carried), hn::Set(di, kRebias << kMantissaBits));
    const auto magic = hn::Set(di, kMagic);
    const auto sum = hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, magic));
    const auto denormal = hn::Sub(hn::BitCast(di, sum), magic);
    const auto is_normal = hn::Gt(magnitude, hn::Set(di, ((kRebias + 1) << 23) - 1));
    return hn::IfThenElse(is_normal, normal, denormal);
  }

  // Returns the FP32 bits of finite codes.
  template <class DI>
  static HWY_INLINE hn::Vec<DI> MagnitudeOf(DI di, hn::Vec<DI> code) {
    const hn::RebindToFloat<DI> df;
    const auto normal = hn::Add(hn::ShiftLeft<kDropped>(code), hn::Set(di, kRebias << 23));
    const auto magic = hn::Set(di, kMagic);
    const auto sum = hn::BitCast(df, hn::Or(code, magic));
    const auto denormal = hn::BitCast(di, hn::Sub(sum, hn::BitCast(df, magic)));
    return hn::IfThenElse(hn::Gt(code, hn::Set(di, (1 << kMantissaBits) - 1)), normal, denormal);
  }
};

// binary16. Rounding alone gives infinity beyond the largest value if 2^16 replaces everything
// above it.
struct Fp16 : Narrow<10, 15> {
  static constexpr size_t kBytes = 2;
  using Word = uint16_t;
  static constexpr Word kMagnitude = 0x7fffu;
  static constexpr Word kLimit = 0x7c00u;  // every finite value is below 2^50
  static constexpr int32_t kLargest = 0x47800000;

  template <class DI>
  static HWY_INLINE hn::Vec<DI> NanCode(DI di, hn::Vec<DI> magnitude) {
    const auto payload = hn::And(hn::ShiftRight<kDropped>(magnitude), hn::Set(di, 0x3ff));
    return hn::Or(payload, hn::Set(di, 0x7e00));
  }
  template <class DI>
  static HWY_INLINE hn::Vec<DI> SpecialMagnitude(DI di, hn::Vec<DI> code) {
    const auto infinity = hn::Set(di, 0x7c00);
    const auto quiet = hn::IfThenElseZero(hn::Gt(code, infinity), hn::Set(di, 0x400000));
    return hn::Or(hn::Or(hn::ShiftLeft<kDropped>(code), hn::Set(di, 0x7f800000)), quiet);
  }
};

// arXiv 2209.05433; no infinity.
struct E4m3 : Narrow<3, 7> {
  static constexpr size_t kBytes = 1;
  using Word = uint8_t;
  static constexpr Word kMagnitude = 0x7fu;
  static constexpr Word kLimit = 0x7fu;
  static constexpr int32_t kLargest = 0x43e00000;  // 448

  template <class DI>
  static HWY_INLINE hn::Vec<DI> NanCode(DI di, hn::Vec<DI> /*magnitude*/) {
    return hn::Set(di, 0x7f);
  }
  template <class DI>
  static HWY_INLINE hn::Vec<DI> SpecialMagnitude(DI di, hn::Vec<DI> /*code*/) {
    return hn::Set(di, 0x7fc00000);
  }
};

// arXiv 2209.05433; has infinities.
struct E5m2 : Narrow<2, 15> {
  static constexpr size_t kBytes = 1;
  using Word = uint8_t;
  static constexpr Word kMagnitude = 0x7fu;
  static constexpr Word kLimit = 0x7cu;
  static constexpr int32_t kLargest = 0x47600000;  // 57344

  template <class DI>
  static HWY_INLINE hn::Vec<DI> NanCode(DI di, hn::Vec<DI> /*magnitude*/) {
    return hn::Set(di, 0x7e);
  }
  template <class DI>
  static HWY_INLINE hn::Vec<DI> SpecialMagnitude(DI di, hn::Vec<DI> code) {
    const auto is_nan = hn::Gt(code, hn::Set(di, 0x7c));
    return hn::IfThenElse(is_nan, hn::Set(di, 0x7fc00000), hn::Set(di, 0x7f800000));
  }
};

// Adds signs, infinities, NaN and the byte layout to a narrow format.
template <class Format>
struct Signed : Format {
  static constexpr int kSignShift = 32 - 8 * static_cast<int>(Format::kBytes);

  template <class DF>
  static HWY_INLINE hn::Vec<DF> Load(DF df, const uint8_t* in) {
    const hn::RebindToUnsigned<DF> d32;
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<typename Format::Word, DF> dword;
    const auto word = hn::PromoteTo(d32, LoadBytes(dword, in));
    const auto code = hn::BitCast(di, hn::And(word, hn::Set(d32, uint32_t{Format::kMagnitude})));
    const auto is_special = hn::Gt(code, hn::Set(di, int32_t{Format::kLimit} - 1));
    const auto magnitude = hn::IfThenElse(is_special, Format::SpecialMagnitude(di, code),
                                          Format::MagnitudeOf(di, code));
    const auto sign = hn::And(hn::ShiftLeft<kSignShift>(word), hn::Set(d32, 0x80000000u));
    return hn::BitCast(df, hn::Or(hn::BitCast(d32, magnitude), sign));
  }

  template <class DF>
  static HWY_INLINE void Store(DF df, const float* in, uint8_t* out) {
    const hn::RebindToUnsigned<DF> d32;
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<typename Format::Word, DF> dword;
    const auto bits = hn::BitCast(d32, hn::LoadU(df, in));
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(d32, 0x7fffffffu)));
    const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7f800000));
    const auto bounded = hn::Min(magnitude, hn::Set(di, Format::kLargest));
    const auto code =
        hn::IfThenElse(is_nan, Format::NanCode(di, magnitude), Format::CodeOf(di, bounded));
    const auto sign =
        hn::And(hn::ShiftRight<kSignShift>(bits), hn::Set(d32, Format::kMagnitude + 1u));
    StoreBytes(dword, hn::TruncateTo(dword, hn::Or(hn::BitCast(d32, code), sign)), out);
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

// Keeps the largest magnitude of a block and compares once. As integers, the magnitudes of NaN and
// infinity exceed every finite one.
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

template <class Format>
HWY_INLINE void EncodeRows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                           uint8_t* out) {
  const HWY_CAPPED(float, kStep) df;
  const HWY_CAPPED(float, 1) d1;
  const size_t lanes = hn::Lanes(df);
  const size_t far = rows > 1 ? PanelAhead(ld) : kPrefetchElements;
  const size_t near = rows > 1 ? kRowsAhead * ld : kPrefetchElements;
  const bool past_caches = Format::kBytes > 1 && out_ld > cols;  // for single bytes this is slower
  for (size_t r = 0; r < rows; ++r) {
    const float* HWY_RESTRICT from = in + r * ld;
    for (size_t begin = 0; begin < cols; begin += kPiece) {
      const size_t end = HWY_MIN(cols, begin + kPiece);
      uint8_t* const to = out + (r * out_ld + begin) * Format::kBytes;
      HWY_ALIGN uint8_t piece[kPiece * Format::kBytes];
      uint8_t* HWY_RESTRICT code = past_caches ? piece : to;
      size_t i = begin;
      for (; i + kStep <= end; i += kStep) {
        PrefetchLine(from + i + far);
        __builtin_prefetch(from + i + near, 0, 3);
        if (Format::kBytes == 1) __builtin_prefetch(to + i - begin + kPrefetchElements, 1, 3);
        for (size_t j = i; j < i + kStep; j += lanes, code += lanes * Format::kBytes) {
          Format::Store(df, from + j, code);
        }
      }
      for (; i < end; ++i, code += Format::kBytes) Format::Store(d1, from + i, code);
      if (past_caches) stream::HWY_NAMESPACE::Copy(piece, (end - begin) * Format::kBytes, to);
    }
  }
  if (past_caches) hwy::FlushStream();
}

size_t ScanFp32(const uint8_t* in, size_t n) { return FirstInadmissible<Fp32>(in, n); }
size_t ScanBf16(const uint8_t* in, size_t n) { return FirstInadmissible<Bf16>(in, n); }
size_t ScanFp16(const uint8_t* in, size_t n) { return FirstInadmissible<Signed<Fp16>>(in, n); }
size_t ScanE4m3(const uint8_t* in, size_t n) { return FirstInadmissible<Signed<E4m3>>(in, n); }
size_t ScanE5m2(const uint8_t* in, size_t n) { return FirstInadmissible<Signed<E5m2>>(in, n); }

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
  DecodeRows<Signed<Fp16>, Assign>(in, in_ld, rows, cols, ld, out);
}
void DecodeE4m3Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  DecodeRows<Signed<E4m3>, Assign>(in, in_ld, rows, cols, ld, out);
}
void DecodeE5m2Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  DecodeRows<Signed<E5m2>, Assign>(in, in_ld, rows, cols, ld, out);
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
  DecodeRows<Signed<Fp16>, Accumulate>(in, in_ld, rows, cols, ld, out);
}
void AccumulateE4m3Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                        float* out) {
  DecodeRows<Signed<E4m3>, Accumulate>(in, in_ld, rows, cols, ld, out);
}
void AccumulateE5m2Rows(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                        float* out) {
  DecodeRows<Signed<E5m2>, Accumulate>(in, in_ld, rows, cols, ld, out);
}

void EncodeBf16Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    uint8_t* out) {
  EncodeRows<Bf16>(in, ld, rows, cols, out_ld, out);
}
void EncodeFp16Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    uint8_t* out) {
  EncodeRows<Signed<Fp16>>(in, ld, rows, cols, out_ld, out);
}
void EncodeE4m3Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    uint8_t* out) {
  EncodeRows<Signed<E4m3>>(in, ld, rows, cols, out_ld, out);
}
void EncodeE5m2Rows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                    uint8_t* out) {
  EncodeRows<Signed<E5m2>>(in, ld, rows, cols, out_ld, out);
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
void EncodeBf16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeBf16Rows)(in, ld, rows, cols, out_ld, out);
}
void EncodeFp16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeFp16Rows)(in, ld, rows, cols, out_ld, out);
}
void EncodeE4m3(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeE4m3Rows)(in, ld, rows, cols, out_ld, out);
}
void EncodeE5m2(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeE5m2Rows)(in, ld, rows, cols, out_ld, out);
}

}  // namespace eps::float_kernels
#endif  // HWY_ONCE
