#include "compression/codecs/topk/kernels.h"

#include <cstring>

#include "base/numerics/flush_denormals.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/topk/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// After Highway.
#include "compression/sparse-inl.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "encoded values are little-endian");

HWY_BEFORE_NAMESPACE();
namespace eps::topk_kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace sp = sparse::HWY_NAMESPACE;

// The rows of a tile are short runs in distant pages, which hardware prefetchers do not follow. The
// same row of the next tile is this many elements ahead (kTileCols).
constexpr size_t kPrefetchElements = 128;
// A cache line of floats.
constexpr size_t kLine = 16;

HWY_INLINE void PrefetchLine(const void* p) { __builtin_prefetch(p, 0, 2); }

void CopyRowsImpl(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, float* out) {
  for (size_t r = 0; r < rows; ++r) {
    const float* const from = in + r * ld;
    for (size_t c = 0; c < cols; c += kLine) PrefetchLine(from + c + kPrefetchElements);
    std::memcpy(out + r * out_ld, from, cols * sizeof(float));
  }
}

void AddRowsImpl(const float* in, size_t ld, size_t rows, size_t cols, size_t sum_ld, float* sum) {
  const HWY_CAPPED(float, kLine) df;
  const size_t lanes = hn::Lanes(df);
  for (size_t r = 0; r < rows; ++r) {
    const float* HWY_RESTRICT from = in + r * ld;
    float* HWY_RESTRICT to = sum + r * sum_ld;
    size_t c = 0;
    for (; c + kLine <= cols; c += kLine) {
      PrefetchLine(from + c + kPrefetchElements);
      PrefetchLine(to + c + kPrefetchElements);
      for (size_t i = c; i < c + kLine; i += lanes) {
        hn::StoreU(hn::Add(hn::LoadU(df, from + i), hn::LoadU(df, to + i)), df, to + i);
      }
    }
    for (; c < cols; ++c) to[c] = from[c] + to[c];
  }
}

HWY_INLINE uint32_t BitsAt(const float* x, size_t i) {
  uint32_t bits;
  std::memcpy(&bits, x + i, sizeof(bits));
  return bits;
}

// Keys are below 2^31, so a signed comparison, which every target has, orders them. NaN need not
// become kNanKey, because no threshold is larger.
size_t CollectImpl(const float* HWY_RESTRICT x, size_t n, uint32_t threshold, size_t limit,
                   uint32_t* HWY_RESTRICT out) {
  const HWY_CAPPED(int32_t, 16) di;
  const hn::RebindToUnsigned<decltype(di)> du;
  const hn::RebindToFloat<decltype(di)> df;
  const size_t lanes = hn::Lanes(di);
  const auto magnitude = hn::Set(di, 0x7fffffff);
  const auto below = hn::Set(di, static_cast<int32_t>(threshold) - 1);
  const auto step = hn::Set(du, static_cast<uint32_t>(lanes));
  auto numbers = hn::Iota(du, 0);
  size_t found = 0;
  size_t i = 0;
  for (; i + lanes <= n && found < limit; i += lanes) {
    const auto key = hn::And(hn::BitCast(di, hn::LoadU(df, x + i)), magnitude);
    const auto chosen = hn::RebindMask(du, hn::Gt(key, below));
    hn::StoreU(hn::Compress(numbers, chosen), du, out + found);
    found += hn::CountTrue(du, chosen);
    numbers = hn::Add(numbers, step);
  }
  for (; i < n && found < limit; ++i) {
    out[found] = static_cast<uint32_t>(i);
    found += (BitsAt(x, i) & 0x7fffffffu) >= threshold;
  }
  return found < limit ? found : limit;
}

// Returns the bits of the nearest bf16, as float_reference::RoundToBf16 does.
HWY_INLINE uint16_t Bf16OfBits(uint32_t bits) {
  const uint32_t upper = bits >> 16;
  const uint32_t rounded = (bits + 0x7fffu + (upper & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? upper | 0x40u : rounded);
}

// A format of values, also one by one: bf16.
struct Bf16 : sp::Bf16 {
  static HWY_INLINE Word OfBits(uint32_t bits) { return Bf16OfBits(bits); }
  static HWY_INLINE uint32_t BitsOf(Word code) { return uint32_t{code} << 16; }
};
// The same for FP32.
struct Fp32 : sp::Fp32 {
  static HWY_INLINE Word OfBits(uint32_t bits) { return bits; }
  static HWY_INLINE uint32_t BitsOf(Word code) { return code; }
};

template <class Format>
HWY_INLINE float FloatOf(typename Format::Word code) {
  const uint32_t bits = Format::BitsOf(code);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <class Format>
void EncodeAll(const float* HWY_RESTRICT x, const uint32_t* HWY_RESTRICT indexes, size_t count,
               uint8_t* HWY_RESTRICT values) {
  for (size_t i = 0; i < count; ++i) {
    const typename Format::Word code = Format::OfBits(BitsAt(x, indexes[i]));
    std::memcpy(values + i * sizeof(code), &code, sizeof(code));
  }
}

template <class Format>
void EncodeAndSubtractAll(float* HWY_RESTRICT x, const uint32_t* HWY_RESTRICT indexes, size_t count,
                          uint8_t* HWY_RESTRICT values) {
  for (size_t i = 0; i < count; ++i) {
    const typename Format::Word code = Format::OfBits(BitsAt(x, indexes[i]));
    std::memcpy(values + i * sizeof(code), &code, sizeof(code));
    x[indexes[i]] = x[indexes[i]] - FloatOf<Format>(code);
  }
}

void EncodeChosenImpl(const float* x, const uint32_t* indexes, size_t count, size_t value_bytes,
                      uint8_t* values) {
  if (value_bytes == Fp32::kBytes) return EncodeAll<Fp32>(x, indexes, count, values);
  EncodeAll<Bf16>(x, indexes, count, values);
}

void EncodeAndSubtractImpl(float* x, const uint32_t* indexes, size_t count, size_t value_bytes,
                           uint8_t* values) {
  if (value_bytes == Fp32::kBytes) return EncodeAndSubtractAll<Fp32>(x, indexes, count, values);
  EncodeAndSubtractAll<Bf16>(x, indexes, count, values);
}

uint64_t CountBitsImpl(const uint64_t* HWY_RESTRICT words, size_t count,
                       uint32_t* HWY_RESTRICT before) {
  uint64_t sum = 0;
  for (size_t w = 0; w < count; ++w) {
    before[w] = static_cast<uint32_t>(sum);
    sum += sp::SetBits(words[w]);
  }
  return sum;
}

// Replaces the output.
struct Assign {
  template <class DF>
  static HWY_INLINE hn::Vec<DF> Combine(DF, const float*, hn::Vec<DF> value) {
    return value;
  }
  static HWY_INLINE void One(float value, float* out) { std::memcpy(out, &value, sizeof(value)); }
};

// Adds to the output.
struct Accumulate {
  template <class DF>
  static HWY_INLINE hn::Vec<DF> Combine(DF df, const float* out, hn::Vec<DF> value) {
    return hn::Add(hn::LoadU(df, out), value);
  }
  static HWY_INLINE void One(float value, float* out) { *out = *out + value; }
};

// Elements that are expanded together.
constexpr size_t kStep = 32;

// Expands the elements from `first` to `first` + cols, whose values begin at `values`; cols values
// must be readable there.
template <class Operation, class Format>
HWY_INLINE void ExpandRow(const SparseElements& sparse, size_t first,
                          const uint8_t* HWY_RESTRICT values, size_t cols,
                          float* HWY_RESTRICT out) {
  size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  const HWY_CAPPED(float, sp::kMaxLanes) df;
  const size_t lanes = hn::Lanes(df);
  for (; c + kStep <= cols; c += kStep) {
    const uint32_t all = static_cast<uint32_t>(sp::BitsFrom(sparse, first + c));
    for (size_t i = 0; i < kStep; i += lanes) {
      const uint32_t bits = (all >> i) & ((1u << lanes) - 1);
      const uint8_t* const in = values + Format::kBytes * sp::SetBits(all & ((1u << i) - 1));
      const auto value = sp::Expand<Format>(df, in, bits);
      hn::StoreU(Operation::Combine(df, out + c + i, value), df, out + c + i);
    }
    values += Format::kBytes * sp::SetBits(all);
  }
#endif
  for (; c < cols; ++c) {
    const bool present = (sp::BitsFrom(sparse, first + c) & 1) != 0;
    typename Format::Word code = 0;
    if (present) std::memcpy(&code, values, sizeof(code));
    Operation::One(FloatOf<Format>(code), out + c);
    values += Format::kBytes * present;
  }
}

template <class Operation, class Format>
void ExpandRowsOf(const SparseElements& sparse, size_t first, size_t stride, size_t rows,
                  size_t cols, size_t ld, float* out) {
  for (size_t r = 0; r < rows; ++r) {
    const size_t begin = first + r * stride;
    const size_t rank = sp::Rank(sparse, begin);
    const uint8_t* values = sparse.values + Format::kBytes * rank;
    // A copy for whole vectors at the end of the readable values.
    uint8_t last_values[Format::kBytes * kMaxCols];
    if (sparse.count - rank < cols) {
      std::memset(last_values, 0, sizeof(last_values));
      std::memcpy(last_values, values, Format::kBytes * (sparse.count - rank));
      values = last_values;
    }
    ExpandRow<Operation, Format>(sparse, begin, values, cols, out + r * ld);
  }
}

template <class Operation>
HWY_INLINE void ExpandRows(const SparseElements& sparse, size_t first, size_t stride, size_t rows,
                           size_t cols, size_t ld, float* out) {
  if (sparse.value_bytes == Fp32::kBytes) {
    ExpandRowsOf<Operation, Fp32>(sparse, first, stride, rows, cols, ld, out);
  } else {
    ExpandRowsOf<Operation, Bf16>(sparse, first, stride, rows, cols, ld, out);
  }
}

void ExpandImpl(const SparseElements& sparse, size_t first, size_t stride, size_t rows, size_t cols,
                size_t ld, float* out) {
  ExpandRows<Assign>(sparse, first, stride, rows, cols, ld, out);
}
void ExpandAddImpl(const SparseElements& sparse, size_t first, size_t stride, size_t rows,
                   size_t cols, size_t ld, float* out) {
  ExpandRows<Accumulate>(sparse, first, stride, rows, cols, ld, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::topk_kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::topk_kernels {

HWY_EXPORT(CopyRowsImpl);
HWY_EXPORT(AddRowsImpl);
HWY_EXPORT(CollectImpl);
HWY_EXPORT(EncodeChosenImpl);
HWY_EXPORT(EncodeAndSubtractImpl);
HWY_EXPORT(CountBitsImpl);
HWY_EXPORT(ExpandImpl);
HWY_EXPORT(ExpandAddImpl);

void CopyRows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, float* out) {
  HWY_DYNAMIC_DISPATCH(CopyRowsImpl)(in, ld, rows, cols, out_ld, out);
}
// Sets the mode outside of the indirect call, across which the compiler moves no arithmetic.
void AddRows(const float* in, size_t ld, size_t rows, size_t cols, size_t sum_ld, float* sum) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(AddRowsImpl)(in, ld, rows, cols, sum_ld, sum);
}
size_t CollectAtLeast(const float* x, size_t n, uint32_t threshold, size_t limit, uint32_t* out) {
  return HWY_DYNAMIC_DISPATCH(CollectImpl)(x, n, threshold, limit, out);
}
void EncodeChosen(const float* x, const uint32_t* indexes, size_t count, size_t value_bytes,
                  uint8_t* values) {
  HWY_DYNAMIC_DISPATCH(EncodeChosenImpl)(x, indexes, count, value_bytes, values);
}
void EncodeAndSubtractChosen(float* x, const uint32_t* indexes, size_t count, size_t value_bytes,
                             uint8_t* values) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(EncodeAndSubtractImpl)(x, indexes, count, value_bytes, values);
}
uint64_t CountBits(const uint64_t* words, size_t count, uint32_t* before) {
  return HWY_DYNAMIC_DISPATCH(CountBitsImpl)(words, count, before);
}
void Expand(const SparseElements& sparse, size_t first, size_t stride, size_t rows, size_t cols,
            size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpandImpl)(sparse, first, stride, rows, cols, ld, out);
}
void ExpandAdd(const SparseElements& sparse, size_t first, size_t stride, size_t rows, size_t cols,
               size_t ld, float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(ExpandAddImpl)(sparse, first, stride, rows, cols, ld, out);
}

}  // namespace eps::topk_kernels
#endif  // HWY_ONCE
