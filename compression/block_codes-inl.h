// Vectors of the codes of block formats, one byte each or packed in groups, for kernels to include
// inside Highway's foreach_target. A group packs 16 codes of kBits bits into a little-endian
// integer of 2 * kBits bytes, with code i from bit i * kBits on. There are none on HWY_SCALAR.

#if defined(EPS_COMPRESSION_BLOCK_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_BLOCK_CODES_INL_H_
#undef EPS_COMPRESSION_BLOCK_CODES_INL_H_
#else
#define EPS_COMPRESSION_BLOCK_CODES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "groups are little-endian integers");

HWY_BEFORE_NAMESPACE();
namespace eps::block_pack {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kGroup = 16;

// Returns `count` codes of all ones.
template <int kBits>
constexpr uint64_t Ones(int count) {
  return (uint64_t{1} << (kBits * count)) - 1;
}

#if HWY_TARGET == HWY_SCALAR

constexpr bool kPacksInRegisters = false;

#else

// Vectors of whole groups of one-byte codes, one group per 128 bits.
#if HWY_HAVE_SCALABLE
using Codes = hn::CappedTag<uint8_t, kGroup>;
#else
using Codes = hn::CappedTag<uint8_t, 4 * kGroup>;
#endif
constexpr size_t kGroupsAtOnce = hn::MaxLanes(Codes()) / kGroup;

// Loads the 128-bit pieces of a vector from addresses `stride` bytes apart.
template <class D>
HWY_INLINE hn::Vec<D> LoadApart(D d, const uint8_t* in, size_t stride) {
  if constexpr (hn::MaxLanes(D()) <= kGroup) {
    return hn::LoadU(d, in);
  } else {
    const hn::Half<D> half;
    const size_t pieces = hn::MaxLanes(D()) / kGroup / 2;
    return hn::Combine(d, LoadApart(half, in + pieces * stride, stride),
                       LoadApart(half, in, stride));
  }
}

// Stores the 128-bit pieces of a vector `stride` bytes apart, in ascending order, so that a piece
// may overlap the place of the next.
template <class D>
HWY_INLINE void StoreApart(D d, hn::Vec<D> v, uint8_t* out, size_t stride) {
  if constexpr (hn::MaxLanes(D()) <= kGroup) {
    hn::StoreU(v, d, out);
  } else {
    const hn::Half<D> half;
    const size_t pieces = hn::MaxLanes(D()) / kGroup / 2;
    StoreApart(half, hn::LowerHalf(half, v), out, stride);
    StoreApart(half, hn::UpperHalf(half, v), out + pieces * stride, stride);
  }
}

// The byte permutation between kBits bytes of packed codes in each half of 128 bits and 2 * kBits
// contiguous bytes; 0x80 gives zeros.
template <int kBits>
struct ByteOrder {
  alignas(16) uint8_t pack[16] = {};
  alignas(16) uint8_t unpack[16] = {};

  constexpr ByteOrder() {
    for (int i = 0; i < 16; ++i) {
      pack[i] = static_cast<uint8_t>(i < kBits ? i : i < 2 * kBits ? 8 + i - kBits : 0x80);
      unpack[i] = static_cast<uint8_t>(i % 8 < kBits ? i / 8 * kBits + i % 8 : 0x80);
    }
  }
};

// Joins four codes, each in a byte of 32 bits, in the lowest 4 * kBits bits.
template <int kBits>
HWY_INLINE hn::Vec<hn::Repartition<uint32_t, Codes> > FourJoined(hn::Vec<Codes> codes) {
  const hn::Repartition<uint16_t, Codes> d16;
  const hn::Repartition<uint32_t, Codes> d32;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // Multiply the upper of two fields by its place, and add the lower one.
  const auto two_places = hn::Set(d16, static_cast<uint16_t>(1 | 1 << (8 + kBits)));
  const auto four_places = hn::Set(d32, uint32_t{1} | uint32_t{1} << (16 + 2 * kBits));
  const auto two = _mm512_maddubs_epi16(codes.raw, two_places.raw);
  return hn::Vec<decltype(d32)>{_mm512_madd_epi16(two, four_places.raw)};
#else
  // Join pairs of fields: 2 codes in 16 bits, then 4 in 32. The lower field stays, the upper one
  // moves down to it.
  const auto v16 = hn::BitCast(d16, codes);
  const auto low16 = hn::Set(d16, static_cast<uint16_t>(Ones<kBits>(1)));
  const auto two = hn::OrAnd(hn::AndNot(low16, hn::ShiftRight<8 - kBits>(v16)), v16, low16);
  const auto v32 = hn::BitCast(d32, two);
  const auto low32 = hn::Set(d32, static_cast<uint32_t>(Ones<kBits>(2)));
  return hn::OrAnd(hn::AndNot(low32, hn::ShiftRight<16 - 2 * kBits>(v32)), v32, low32);
#endif
}

// Packs the groups of a vector of codes, each into the first 2 * kBits bytes of its 128 bits,
// followed by zeros.
template <int kBits>
HWY_INLINE hn::Vec<Codes> PackedApart(hn::Vec<Codes> codes) {
  const Codes d8;
  const hn::Repartition<uint64_t, Codes> d64;
  const auto v64 = hn::BitCast(d64, FourJoined<kBits>(codes));
  const auto low64 = hn::Set(d64, Ones<kBits>(4));
  const auto eight = hn::OrAnd(hn::AndNot(low64, hn::ShiftRight<32 - 4 * kBits>(v64)), v64, low64);
  static constexpr ByteOrder<kBits> kOrder;
  return hn::TableLookupBytesOr0(hn::BitCast(d8, eight), hn::LoadDup128(d8, kOrder.pack));
}

// The inverse of PackedApart: unpacks the first 2 * kBits bytes of each 128 bits.
template <int kBits>
HWY_INLINE hn::Vec<Codes> Unpacked(hn::Vec<Codes> apart) {
  const Codes d8;
  const hn::Repartition<uint16_t, Codes> d16;
  const hn::Repartition<uint32_t, Codes> d32;
  const hn::Repartition<uint64_t, Codes> d64;
  static constexpr ByteOrder<kBits> kOrder;
  const auto eight =
      hn::BitCast(d64, hn::TableLookupBytesOr0(apart, hn::LoadDup128(d8, kOrder.unpack)));
  // Move the upper half of each field up.
  const auto v64 =
      hn::OrAnd(hn::And(eight, hn::Set(d64, Ones<kBits>(4))), hn::ShiftLeft<32 - 4 * kBits>(eight),
                hn::Set(d64, Ones<kBits>(4) << 32));
  const auto four = hn::BitCast(d32, v64);
  const auto v32 = hn::OrAnd(hn::And(four, hn::Set(d32, static_cast<uint32_t>(Ones<kBits>(2)))),
                             hn::ShiftLeft<16 - 2 * kBits>(four),
                             hn::Set(d32, static_cast<uint32_t>(Ones<kBits>(2) << 16)));
  const auto two = hn::BitCast(d16, v32);
  const auto v8 = hn::OrAnd(hn::And(two, hn::Set(d16, static_cast<uint16_t>(Ones<kBits>(1)))),
                            hn::ShiftLeft<8 - kBits>(two),
                            hn::Set(d16, static_cast<uint16_t>(Ones<kBits>(1) << 8)));
  return hn::BitCast(d8, v8);
}

// Returns bytes 0, 4, 8 … of a vector, then bytes 1, 5, 9 …, and so on: the bytes of four vectors
// whose lanes share 32 bits, one vector after the other. REQUIRES vectors of 64 bytes.
HWY_INLINE hn::Vec<Codes> InOrder(hn::Vec<Codes> mixed) {
  // Gather the bytes of each quarter, four per 128 bits; then the quarters.
  alignas(16) static constexpr uint8_t kByQuarter[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                         2, 6, 10, 14, 3, 7, 11, 15};
  alignas(64) static constexpr int32_t kTogether[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                        2, 6, 10, 14, 3, 7, 11, 15};
  const Codes d8;
  const hn::Repartition<int32_t, Codes> d32;
  const auto apart = hn::TableLookupBytes(mixed, hn::LoadDup128(d8, kByQuarter));
  return hn::BitCast(
      d8, hn::TableLookupLanes(hn::BitCast(d32, apart), hn::SetTableIndices(d32, kTogether)));
}

// StorePacked and LoadPacked convert a vector of groups without access to bytes after the last.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// True if they do it in registers.
constexpr bool kPacksInRegisters = true;

// Mixes bytes of four vectors: that of vector k is in byte k of the 32 bits.
template <class V>
HWY_INLINE hn::Vec<Codes> Mix(V v0, V v1, V v2, V v3) {
  const hn::Repartition<int32_t, Codes> di;
  const auto low = hn::IfVecThenElse(hn::Set(di, 0xff00), v1, v0);
  const auto high = hn::IfVecThenElse(hn::Set(di, static_cast<int32_t>(0xff000000)), v3, v2);
  return hn::BitCast(Codes(),
                     hn::IfVecThenElse(hn::Set(di, static_cast<int32_t>(0xffff0000)), high, low));
}

// Mixes the biased exponents of four vectors whose other bits are zero.
template <class V>
HWY_INLINE hn::Vec<Codes> MixExponents(V v0, V v1, V v2, V v3) {
  return hn::BitCast(Codes(), hn::Or(hn::Or3(hn::ShiftRight<23>(v0), hn::ShiftRight<15>(v1),
                                             hn::ShiftRight<7>(v2)),
                                     hn::ShiftLeft<1>(v3)));
}

// The permutation of 16-bit words between groups at the start of each 128 bits and contiguous
// groups of kBits words.
template <int kBits>
struct WordOrder {
  alignas(64) uint16_t join[32] = {};
  alignas(64) uint16_t part[32] = {};

  constexpr WordOrder() {
    for (int i = 0; i < 4 * kBits; ++i) {
      join[i] = static_cast<uint16_t>(i / kBits * 8 + i % kBits);
      part[i / kBits * 8 + i % kBits] = static_cast<uint16_t>(i);
    }
  }
};

HWY_INLINE hn::Vec<Codes> PermuteWords(hn::Vec<Codes> v, const uint16_t* order) {
  const hn::Repartition<uint16_t, Codes> d16;
  return hn::Vec<Codes>{_mm512_permutexvar_epi16(hn::Load(d16, order).raw, v.raw)};
}

// Returns 48 bytes, the first three of each 32 bits, and arbitrary ones.
HWY_INLINE hn::Vec<Codes> ThreeOfFourBytes(hn::Vec<Codes> v) {
  const Codes d8;
  alignas(16) static constexpr uint8_t kThree[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14};
  alignas(64) static constexpr int32_t kJoin[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14};
  const hn::Repartition<int32_t, Codes> d32;
  const auto apart = hn::TableLookupBytes(v, hn::LoadDup128(d8, kThree));
  return hn::BitCast(
      d8, hn::TableLookupLanes(hn::BitCast(d32, apart), hn::SetTableIndices(d32, kJoin)));
}

// The vector's first bytes as three pieces: four groups of kBits words have 24, 32, 40 or 48 bytes.
template <int kBits>
HWY_INLINE void StorePacked(hn::Vec<Codes> codes, uint8_t* HWY_RESTRICT out) {
  static constexpr WordOrder<kBits> kOrder;
  const hn::Half<Codes> d256;
  const hn::Half<decltype(d256)> d128;
  const hn::Half<decltype(d128)> d64;
  const auto v = [&] {
    // Four codes of 6 bits fill whole bytes.
    if constexpr (kBits == 6) return ThreeOfFourBytes(hn::BitCast(Codes(), FourJoined<6>(codes)));
    return PermuteWords(PackedApart<kBits>(codes), kOrder.join);
  }();
  const auto low = hn::LowerHalf(d256, v);
  if constexpr (kBits == 3) {
    hn::StoreU(hn::LowerHalf(d128, low), d128, out);
    hn::StoreU(hn::LowerHalf(d64, hn::UpperHalf(d128, low)), d64, out + 16);
  } else {
    hn::StoreU(low, d256, out);
    const auto rest = hn::LowerHalf(d128, hn::UpperHalf(d256, v));
    if constexpr (kBits == 5) hn::StoreU(hn::LowerHalf(d64, rest), d64, out + 32);
    if constexpr (kBits == 6) hn::StoreU(rest, d128, out + 32);
  }
}

template <int kBits>
HWY_INLINE hn::Vec<Codes> LoadPacked(const uint8_t* HWY_RESTRICT in) {
  static constexpr WordOrder<kBits> kOrder;
  const hn::Half<Codes> d256;
  const hn::Half<decltype(d256)> d128;
  const hn::Half<decltype(d128)> d64;
  auto low = hn::Zero(d256);
  auto rest = hn::Zero(d128);
  if constexpr (kBits == 3) {
    rest = hn::ZeroExtendVector(d128, hn::LoadU(d64, in + 16));
    low = hn::Combine(d256, rest, hn::LoadU(d128, in));
    rest = hn::Zero(d128);
  } else {
    low = hn::LoadU(d256, in);
    if constexpr (kBits == 5) rest = hn::ZeroExtendVector(d128, hn::LoadU(d64, in + 32));
    if constexpr (kBits == 6) rest = hn::LoadU(d128, in + 32);
  }
  const auto v = hn::Combine(Codes(), hn::ZeroExtendVector(d256, rest), low);
  return Unpacked<kBits>(PermuteWords(v, kOrder.part));
}

#else

constexpr bool kPacksInRegisters = false;

template <int kBits>
HWY_INLINE void StorePacked(hn::Vec<Codes> codes, uint8_t* HWY_RESTRICT out) {
  HWY_ALIGN uint8_t packed[kGroupsAtOnce * kGroup];
  StoreApart(Codes(), PackedApart<kBits>(codes), packed, 2 * kBits);
  std::memcpy(out, packed, kGroupsAtOnce * 2 * kBits);
}

template <int kBits>
HWY_INLINE hn::Vec<Codes> LoadPacked(const uint8_t* HWY_RESTRICT in) {
  HWY_ALIGN uint8_t packed[kGroupsAtOnce * kGroup];
  std::memcpy(packed, in, kGroupsAtOnce * 2 * kBits);
  return Unpacked<kBits>(LoadApart(Codes(), packed, 2 * kBits));
}

#endif  // HWY_ARCH_X86

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace eps::block_pack
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_BLOCK_CODES_INL_H_
