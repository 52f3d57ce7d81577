// Encodes mx9, mx6 and mx4 in groups of four vectors of sixteen elements, for encode_rows-inl.h and
// encode_columns-inl.h. Exponents and codes of a group are handled together, as bytes of one
// vector: "mixed" means that byte k of each 32 bits belongs to vector k.

#if defined(EPS_COMPRESSION_CODECS_MX_ENCODE_FOUR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_MX_ENCODE_FOUR_INL_H_
#undef EPS_COMPRESSION_CODECS_MX_ENCODE_FOUR_INL_H_
#else
#define EPS_COMPRESSION_CODECS_MX_ENCODE_FOUR_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/mx/encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::mx_kernels {
namespace HWY_NAMESPACE {
namespace {

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

using Bytes = hn::Vec<bp::Codes>;
using ByteMask = hn::Mask<bp::Codes>;

// Returns the mixed biased exponents of four vectors, `step` elements apart.
HWY_INLINE Bytes Exponents(const float* HWY_RESTRICT in, size_t step) {
  const hn::RebindToUnsigned<Ints> du;
  const auto bits = [&](size_t k) { return hn::BitCast(du, LoadBits(in + k * step)); };
  auto v = hn::And(hn::ShiftRight<23>(bits(0)), hn::Set(du, 0x000000ffu));
  v = hn::OrAnd(v, hn::ShiftRight<15>(bits(1)), hn::Set(du, 0x0000ff00u));
  v = hn::OrAnd(v, hn::ShiftRight<7>(bits(2)), hn::Set(du, 0x00ff0000u));
  v = hn::OrAnd(v, hn::ShiftLeft<1>(bits(3)), hn::Set(du, 0xff000000u));
  return hn::BitCast(bp::Codes(), v);
}

// The powers of two that turn elements into their codes' magnitudes: 2^(126 + kBits - (E - D)).
struct Powers {
  hn::Vec<Floats> v0, v1, v2, v3;
};

// The mixed biased exponents of these powers by D.
struct PowersOfScale {
  Bytes at_scale;  // D = 0
  Bytes below;     // D = 1
};

// Returns them for mixed scales E. Those of blocks of zeros are 0 or 1, so that elements that count
// as zero become zero. Outside of the range of RepairBlocks they are arbitrary.
template <int kBits>
HWY_INLINE PowersOfScale PowersOf(Bytes scales) {
  const bp::Codes d8;
  const auto at_scale = hn::Add(hn::Sub(hn::Set(d8, 255), scales), hn::Set(d8, kBits - 2));
  const auto at_or_zero = hn::IfThenZeroElse(hn::Eq(scales, hn::Zero(d8)), at_scale);
  return {at_or_zero, hn::Add(at_or_zero, hn::Set(d8, 1))};
}

// Returns the powers of four vectors; bit 4 * i + k of `at_scale` belongs to lane i of vector k.
HWY_INLINE Powers PowersFor(const PowersOfScale& of, ByteMask at_scale) {
  const hn::RebindToUnsigned<Ints> du;
  const Floats df;
  const auto v = hn::BitCast(du, hn::IfThenElse(at_scale, of.at_scale, of.below));
  const auto mask = hn::Set(du, static_cast<uint32_t>(kExponent));
  return {hn::BitCast(df, hn::And(hn::ShiftLeft<23>(v), mask)),
          hn::BitCast(df, hn::And(hn::ShiftLeft<15>(v), mask)),
          hn::BitCast(df, hn::And(hn::ShiftLeft<7>(v), mask)),
          hn::BitCast(df, hn::And(hn::ShiftRight<1>(v), mask))};
}

// Returns integers narrowed to bytes with saturation: in each 128 bits four of every vector.
HWY_INLINE __m512i Narrowed(__m512i v0, __m512i v1, __m512i v2, __m512i v3) {
  return _mm512_packs_epi16(_mm512_packs_epi32(v0, v1), _mm512_packs_epi32(v2, v3));
}

// Returns the codes of four vectors, `step` elements apart, one vector after the other.
template <int kBits, bool kTruncate>
HWY_INLINE Bytes FourCodes(const float* HWY_RESTRICT in, size_t step, const Powers& powers) {
  const bp::Codes d8;
  const Floats df;
  const auto x0 = hn::LoadU(df, in);
  const auto x1 = hn::LoadU(df, in + step);
  const auto x2 = hn::LoadU(df, in + 2 * step);
  const auto x3 = hn::LoadU(df, in + 3 * step);
  // The products are exact, or too small to matter. Narrowing keeps the sign also of zeros if it
  // narrows the floats' bits.
  const auto rounded = [](hn::Vec<Floats> y) {
    return kTruncate ? _mm512_cvttps_epi32(y.raw) : _mm512_cvtps_epi32(y.raw);
  };
  const Bytes signed_codes{
      Narrowed(rounded(hn::Mul(x0, powers.v0)), rounded(hn::Mul(x1, powers.v1)),
               rounded(hn::Mul(x2, powers.v2)), rounded(hn::Mul(x3, powers.v3)))};
  const Bytes magnitudes = hn::Min(Bytes{_mm512_abs_epi8(signed_codes.raw)},
                                   hn::Set(d8, static_cast<uint8_t>((1 << kBits) - 1)));
  const auto bits = [](hn::Vec<Floats> x) { return _mm512_castps_si512(x.raw); };
  const Bytes signs{_mm512_srli_epi16(Narrowed(bits(x0), bits(x1), bits(x2), bits(x3)), 7 - kBits)};
  const auto codes = hn::OrAnd(magnitudes, signs, hn::Set(d8, uint8_t{1 << kBits}));
  alignas(64) static constexpr int32_t kByVector[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                        2, 6, 10, 14, 3, 7, 11, 15};
  return Bytes{_mm512_permutexvar_epi32(_mm512_load_si512(kByVector), codes.raw)};
}

// Stores 64 codes; whole lines bypass the caches.
template <int kBits>
HWY_INLINE void StoreFour(Bytes codes, uint8_t* HWY_RESTRICT out) {
  if constexpr (kBits < 7) {
    bp::StorePacked<kBits + 1>(codes, out);
  } else if (reinterpret_cast<uintptr_t>(out) % kStep == 0) {
    hn::Stream(codes, bp::Codes(), out);
  } else {
    hn::StoreU(codes, bp::Codes(), out);
  }
}

// Returns the mixed exponents of pairs in four consecutive blocks of a row, each in two lanes.
HWY_INLINE Bytes PairsAlong(const float* HWY_RESTRICT in) {
  const hn::RebindToUnsigned<Ints> du;
  const auto exponents = Exponents(in, kBlock);
  return hn::Max(exponents, hn::BitCast(bp::Codes(), hn::Shuffle2301(hn::BitCast(du, exponents))));
}

// Encodes four consecutive blocks of a row, given the exponents of their pairs and, in each 32
// bits, their scales.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeFourAlong(const float* HWY_RESTRICT in, Bytes pairs, Bytes scales,
                                uint8_t* HWY_RESTRICT micro, uint8_t* HWY_RESTRICT codes) {
  const auto at_scale = hn::Eq(pairs, scales);
  const auto powers = PowersFor(PowersOf<kBits>(scales), at_scale);
  StoreFour<kBits>(FourCodes<kBits, kTruncate>(in, kBlock, powers), codes);
  StoreMicro(~static_cast<uint64_t>(at_scale.raw), micro);
}

// Encodes a row of a tile: eight blocks, which share the search for their scales. Returns false if
// RepairBlocks has to handle one of them.
template <int kBits, bool kTruncate>
HWY_INLINE bool EncodeEightAlong(const float* HWY_RESTRICT in, const Planes<uint8_t>& out) {
  const bp::Codes d8;
  const hn::Repartition<uint32_t, bp::Codes> du;
  const auto a = PairsAlong(in);
  const auto b = PairsAlong(in + kStep);
  // Two pairs of each 128 bits: those of `a` in the lower half, those of `b` in the upper one.
  const Bytes both{_mm512_castps_si512(_mm512_shuffle_ps(
      _mm512_castsi512_ps(a.raw), _mm512_castsi512_ps(b.raw), _MM_SHUFFLE(2, 0, 2, 0)))};
  auto most = hn::Max(both, hn::BitCast(d8, hn::Shuffle2301(hn::BitCast(du, both))));
  most = hn::Max(most, hn::SwapAdjacentBlocks(most));
  most = hn::Max(most, hn::ReverseBlocks(d8, most));
  const auto of_a = hn::Broadcast<0>(hn::BitCast(du, most));
  const auto of_b = hn::Broadcast<2>(hn::BitCast(du, most));
  const uint32_t scales[2] = {hn::GetLane(of_a), hn::GetLane(of_b)};
  std::memcpy(out.scales, scales, sizeof(scales));
  EncodeFourAlong<kBits, kTruncate>(in, a, hn::BitCast(d8, of_a), out.micro, out.codes);
  EncodeFourAlong<kBits, kTruncate>(in + kStep, b, hn::BitCast(d8, of_b), out.micro + 4,
                                    out.codes + kStep * (kBits + 1) / 8);
  return AreUsual<kBits>(most);
}

// Encodes sixteen rows of 64 columns, one block per column: scales and micro bytes are contiguous,
// the packed codes of rows `stride` bytes apart.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeFourAcross(const float* HWY_RESTRICT in, size_t ld, const float* ahead,
                                 uint8_t* HWY_RESTRICT scales, uint8_t* HWY_RESTRICT micro,
                                 uint8_t* HWY_RESTRICT codes, size_t stride) {
  const bp::Codes d8;
  const Floats df;
  // Rows of a matrix are often 4 KiB apart and then map to one set of the cache, which cannot hold
  // them until they are read again; so copy them.
  HWY_ALIGN float copy[kBlock * kStep];
  HWY_ALIGN uint8_t pairs[kBlock / 2 * kStep];
  auto largest = hn::Zero(d8);
  for (size_t r = 0; r < kBlock; r += 2) {
    for (size_t i = r; i < r + 2; ++i) {
      // Prefetch half of each row now and half in the second pass.
      PrefetchFar(ahead + i * ld);
      PrefetchFar(ahead + i * ld + kBlock);
      for (size_t c = 0; c < kStep; c += kBlock) {
        hn::Store(hn::LoadU(df, in + i * ld + c), df, copy + i * kStep + c);
      }
    }
    const auto pair =
        hn::Max(Exponents(copy + r * kStep, kBlock), Exponents(copy + (r + 1) * kStep, kBlock));
    hn::Store(pair, d8, pairs + r / 2 * kStep);
    largest = hn::Max(largest, pair);
  }
  const auto powers_of = PowersOf<kBits>(largest);
  auto micros = hn::Zero(d8);
  for (size_t r = 0; r < kBlock; r += 2) {
    for (size_t i = r; i < r + 2; ++i) {
      PrefetchFar(ahead + i * ld + 2 * kBlock);
      PrefetchFar(ahead + i * ld + 3 * kBlock);
    }
    const auto at_scale = hn::Eq(hn::Load(d8, pairs + r / 2 * kStep), largest);
    const auto bit = hn::Set(d8, static_cast<uint8_t>(1u << r / 2));
    micros = hn::Or(micros, hn::IfThenZeroElse(at_scale, bit));
    const auto powers = PowersFor(powers_of, at_scale);
    const float* const from = copy + r * kStep;
    StoreFour<kBits>(FourCodes<kBits, kTruncate>(from, kBlock, powers), codes + r * stride);
    StoreFour<kBits>(FourCodes<kBits, kTruncate>(from + kStep, kBlock, powers),
                     codes + (r + 1) * stride);
  }
  hn::StoreU(bp::InOrder(largest), d8, scales);
  hn::StoreU(bp::InOrder(micros), d8, micro);
}

#endif  // HWY_ARCH_X86

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_MX_ENCODE_FOUR_INL_H_
