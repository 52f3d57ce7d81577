// Decodes tiles of the OCP Microscaling formats, for kernels.cc to include inside Highway's
// foreach_target.

#if defined(EPS_COMPRESSION_CODECS_OCP_MX_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_OCP_MX_DECODE_INL_H_
#undef EPS_COMPRESSION_CODECS_OCP_MX_DECODE_INL_H_
#else
#define EPS_COMPRESSION_CODECS_OCP_MX_DECODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/ocp_mx/elements-inl.h"
#include "compression/panel_ahead.h"

HWY_BEFORE_NAMESPACE();
namespace eps::ocp_mx_kernels {
namespace HWY_NAMESPACE {
namespace {

// Blocks with a scale byte below this are first decoded 2^kRaise times too large.
constexpr int kLowScale = 64;
constexpr int kRaise = 149;

// Prefetches the destination of decoding: a row of the next tile and later rows of this tile.
HWY_INLINE void PrefetchRowToWrite(const float* row, size_t cols, size_t ld) {
  for (size_t c = 0; c < cols; c += kGroup) {
    __builtin_prefetch(row + kMaxCols + c, 1, 2);
    __builtin_prefetch(row + kRowsAhead * ld + c, 1, 3);
  }
}

// Replaces the output.
struct Assign {
  static HWY_INLINE Floats Combine(FloatTag, const float*, Floats value) { return value; }
};
// Adds to the output.
struct Add {
  static HWY_INLINE Floats Combine(FloatTag df, const float* out, Floats value) {
    return hn::Add(hn::LoadU(df, out), value);
  }
};

// The decoding parameters of blocks: values are multiplied by `factor`, then `surplus` is
// subtracted from their bits.
struct Factors {
  HWY_ALIGN int32_t factor[kMaxBlocks];
  HWY_ALIGN int32_t surplus[kMaxBlocks];
};

// Returns true if all elements are products of a finite value and a factor.
template <class Format>
HWY_INLINE bool FactorsOf(const uint8_t* scales, size_t blocks, Factors* factors) {
  const IntTag di;
  uint8_t padded[kMaxBlocks];
  std::memset(padded, 127, sizeof(padded));
  std::memcpy(padded, scales, blocks);
  auto special = hn::Zero(di);
  for (size_t b = 0; b < kMaxBlocks; b += hn::Lanes(di)) {
    const auto scale = LoadCodes(padded + b);
    const auto raise =
        hn::IfThenElseZero(hn::Lt(scale, hn::Set(di, kLowScale)), hn::Set(di, kRaise << 23));
    const auto factor =
        hn::Add(hn::ShiftLeft<23>(hn::Sub(scale, hn::Set(di, Format::kValueShift))), raise);
    const auto nan = hn::IfThenElseZero(hn::Eq(scale, hn::Set(di, 255)), hn::Set(di, kNan));
    hn::Store(hn::IfThenElse(hn::Eq(scale, hn::Set(di, 255)), nan, factor), di,
              factors->factor + b);
    hn::Store(raise, di, factors->surplus + b);
    special = hn::Or(special, hn::Or(nan, raise));
  }
  return hn::AllTrue(di, hn::Eq(special, hn::Zero(di)));
}

// Returns the exact elements of codes, denormals included. A product that is raised by 2^149 counts
// units of the smallest denormal; below 2^23 units the count is the bits.
template <class Format>
HWY_INLINE Floats Elements(FloatTag df, Ints code, Ints factor, Ints surplus) {
  const IntTag di;
  const auto raised = hn::Mul(Format::template Value<true>(df, code), hn::BitCast(df, factor));
  const auto raised_bits = hn::BitCast(di, raised);
  const auto one_unit = hn::Set(di, 150 << 23);  // 2^23 units
  const auto counted =
      hn::Sub(hn::BitCast(di, hn::Add(raised, hn::BitCast(df, one_unit))), one_unit);
  const auto is_denormal = hn::Lt(raised_bits, hn::Add(surplus, hn::Set(di, 1 << 23)));
  auto bits = hn::IfThenElse(is_denormal, counted, hn::Sub(raised_bits, surplus));
  if (Format::kHasSpecials) {
    bits = hn::IfThenElse(hn::Eq(raised_bits, hn::Set(di, kInfinity)), raised_bits, bits);
  }
  bits = hn::Or(bits, Format::Sign(code));
  const auto is_nan = hn::Gt(raised_bits, hn::Set(di, kInfinity));
  bits = hn::IfThenElse(is_nan, hn::Set(di, kNan), bits);
  return hn::BitCast(df, bits);
}

// Decodes one group of codes. With kColumnBlocks each element has its own factor and surplus;
// otherwise all share the first. kPlain: FactorsOf returned true, and no code is an infinity or
// NaN.
template <class Format, class Operation, bool kColumnBlocks, bool kPlain>
HWY_INLINE void DecodeGroup(const uint8_t* HWY_RESTRICT codes, const int32_t* HWY_RESTRICT factor,
                            const int32_t* HWY_RESTRICT surplus, float* HWY_RESTRICT out) {
  const IntTag di;
  const FloatTag df;
  for (size_t i = 0; i < kGroup; i += hn::Lanes(df)) {
    const auto code = LoadCodes(codes + i);
    const auto f = kColumnBlocks ? hn::Load(di, factor + i) : hn::Set(di, *factor);
    Floats value;
    if (kPlain) {
      value = hn::Mul(Format::FiniteValue(df, code), hn::BitCast(df, f));
    } else {
      const auto s = kColumnBlocks ? hn::Load(di, surplus + i) : hn::Set(di, *surplus);
      value = Elements<Format>(df, code, f, s);
    }
    hn::StoreU(Operation::Combine(df, out + i, value), df, out + i);
  }
}

template <class Format, class Operation, bool kColumnBlocks, bool kPlain>
HWY_INLINE void DecodeRows(const TileShape& shape, const Factors& factors,
                           const uint8_t* HWY_RESTRICT codes, size_t ld, float* HWY_RESTRICT out) {
  const size_t across = (shape.cols + kBlock - 1) / kBlock;
  const size_t whole = shape.cols / kGroup * kGroup;
  const size_t tail = shape.cols - whole;
  const int32_t* factor = factors.factor;
  const int32_t* surplus = factors.surplus;
  for (size_t r = 0; r < shape.rows; ++r) {
    float* HWY_RESTRICT row = out + r * ld;
    PrefetchRowToWrite(row, shape.cols, ld);
    size_t c = 0;
    for (; c < whole; c += kGroup) {
      const size_t block = kColumnBlocks ? c : c / kBlock;
      DecodeGroup<Format, Operation, kColumnBlocks, kPlain>(codes + c, factor + block,
                                                            surplus + block, row + c);
    }
    if (tail > 0) {
      const size_t block = kColumnBlocks ? c : c / kBlock;
      float group[kGroup] = {};
      std::memcpy(group, row + c, tail * sizeof(float));
      DecodeGroup<Format, Operation, kColumnBlocks, kPlain>(codes + c, factor + block,
                                                            surplus + block, group);
      std::memcpy(row + c, group, tail * sizeof(float));
      c += kGroup;
    }
    if (!kColumnBlocks) {
      factor += across;
      surplus += across;
    }
    codes += c;
  }
}

bool ScanBytes(const uint8_t* HWY_RESTRICT in, size_t n, uint8_t mask, uint8_t limit) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto kept = hn::Set(d, mask);
  auto largest = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d, in + i), kept));
  }
  const auto allowed = hn::Set(d, limit);
  bool found = !hn::AllTrue(d, hn::Eq(hn::Max(largest, allowed), allowed));
  for (; i < n; ++i) found |= (in[i] & mask) > limit;
  return found;
}

template <class Format, class Operation>
void DecodeTile(const TileShape& shape, const uint8_t* scales, const uint8_t* in, size_t ld,
                float* out) {
  const size_t groups = Groups(shape);
  const uint8_t* codes = in;
  HWY_ALIGN uint8_t unpacked[Format::kBits < 8 ? kMaxRows * kMaxCols : 1];
  if (Format::kBits < 8) {
    Unpack<Format::kBits>(in, groups, unpacked);
    codes = unpacked;
  }
  Factors factors;
  bool plain = FactorsOf<Format>(scales, Blocks(shape), &factors);
  if (Format::kHasSpecials) {
    plain = plain && !ScanBytes(in, groups * kGroup, 0x7f, HWY_MIN(Format::kLeastSpecial - 1, 255));
  }
  if (shape.column_blocks) {
    if (HWY_LIKELY(plain)) {
      DecodeRows<Format, Operation, true, true>(shape, factors, codes, ld, out);
    } else {
      DecodeRows<Format, Operation, true, false>(shape, factors, codes, ld, out);
    }
  } else {
    if (HWY_LIKELY(plain)) {
      DecodeRows<Format, Operation, false, true>(shape, factors, codes, ld, out);
    } else {
      DecodeRows<Format, Operation, false, false>(shape, factors, codes, ld, out);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::ocp_mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_OCP_MX_DECODE_INL_H_
