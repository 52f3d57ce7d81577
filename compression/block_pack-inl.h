// Converts codes of block formats between one byte each and packed groups. A group packs 16 codes
// of kBits bits into a little-endian integer of 2 * kBits bytes, with code i from bit i * kBits on.
// Kernels include this file inside Highway's foreach_target. Groups are contiguous on both sides.
// The public functions access no byte outside of the groups that they are given.
//
//   namespace bp = block_pack::HWY_NAMESPACE;
//   bp::PackGroups<5>(codes, groups, out);

#if defined(EPS_COMPRESSION_BLOCK_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_BLOCK_PACK_INL_H_
#undef EPS_COMPRESSION_BLOCK_PACK_INL_H_
#else
#define EPS_COMPRESSION_BLOCK_PACK_INL_H_
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

constexpr size_t kGroupsAtOnce = 1;

// Packs one group; eight codes fill kBits whole bytes.
template <int kBits>
HWY_INLINE void PackSome(const uint8_t* codes, uint8_t* out) {
  for (size_t half = 0; half < 2; ++half) {
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits |= uint64_t{codes[8 * half + i]} << (kBits * i);
    std::memcpy(out + half * kBits, &bits, kBits);
  }
}

template <int kBits>
HWY_INLINE void UnpackSome(const uint8_t* in, uint8_t* codes) {
  for (size_t half = 0; half < 2; ++half) {
    uint64_t bits = 0;
    std::memcpy(&bits, in + half * kBits, kBits);
    for (int i = 0; i < 8; ++i) {
      codes[8 * half + i] = static_cast<uint8_t>(bits >> (kBits * i) & Ones<kBits>(1));
    }
  }
}

#else  // HWY_TARGET != HWY_SCALAR

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

// Packs the groups of a vector of codes, each into the first 2 * kBits bytes of its 128 bits,
// followed by zeros.
template <int kBits>
HWY_INLINE hn::Vec<Codes> PackedApart(hn::Vec<Codes> codes) {
  const Codes d8;
  const hn::Repartition<uint16_t, Codes> d16;
  const hn::Repartition<uint32_t, Codes> d32;
  const hn::Repartition<uint64_t, Codes> d64;
  // Join pairs of fields: 2 codes in 16 bits, then 4 in 32, then 8 in 64.
  const auto v16 = hn::BitCast(d16, codes);
  const auto two =
      hn::Or(hn::And(v16, hn::Set(d16, uint16_t{0x00ff})),
             hn::ShiftRight<8 - kBits>(hn::And(v16, hn::Set(d16, static_cast<uint16_t>(0xff00)))));
  const auto v32 = hn::BitCast(d32, two);
  const auto four = hn::Or(hn::And(v32, hn::Set(d32, 0x0000ffffu)),
                           hn::ShiftRight<16 - 2 * kBits>(hn::And(v32, hn::Set(d32, 0xffff0000u))));
  const auto v64 = hn::BitCast(d64, four);
  const auto eight =
      hn::Or(hn::And(v64, hn::Set(d64, uint64_t{0x00000000ffffffffu})),
             hn::ShiftRight<32 - 4 * kBits>(hn::And(v64, hn::Set(d64, 0xffffffff00000000u))));
  static constexpr ByteOrder<kBits> kOrder;
  return hn::TableLookupBytesOr0(hn::BitCast(d8, eight), hn::LoadDup128(d8, kOrder.pack));
}

// Writes kGroupsAtOnce groups, and zeros up to 16 bytes from the start of the last group.
template <int kBits>
HWY_INLINE void PackSome(const uint8_t* codes, uint8_t* out) {
  const Codes d8;
  StoreApart(d8, PackedApart<kBits>(hn::LoadU(d8, codes)), out, 2 * kBits);
}

// Reads kGroupsAtOnce groups, and up to 16 bytes from the start of the last group.
template <int kBits>
HWY_INLINE void UnpackSome(const uint8_t* in, uint8_t* codes) {
  const Codes d8;
  const hn::Repartition<uint16_t, Codes> d16;
  const hn::Repartition<uint32_t, Codes> d32;
  const hn::Repartition<uint64_t, Codes> d64;
  static constexpr ByteOrder<kBits> kOrder;
  const auto eight = hn::BitCast(d64, hn::TableLookupBytesOr0(LoadApart(d8, in, 2 * kBits),
                                                              hn::LoadDup128(d8, kOrder.unpack)));
  const auto v32 = hn::BitCast(d32, hn::Or(hn::And(eight, hn::Set(d64, Ones<kBits>(4))),
                                           hn::And(hn::ShiftLeft<32 - 4 * kBits>(eight),
                                                   hn::Set(d64, Ones<kBits>(4) << 32))));
  const auto v16 =
      hn::BitCast(d16, hn::Or(hn::And(v32, hn::Set(d32, static_cast<uint32_t>(Ones<kBits>(2)))),
                              hn::And(hn::ShiftLeft<16 - 2 * kBits>(v32),
                                      hn::Set(d32, static_cast<uint32_t>(Ones<kBits>(2) << 16)))));
  const auto v8 = hn::Or(hn::And(v16, hn::Set(d16, static_cast<uint16_t>(Ones<kBits>(1)))),
                         hn::And(hn::ShiftLeft<8 - kBits>(v16),
                                 hn::Set(d16, static_cast<uint16_t>(Ones<kBits>(1) << 8))));
  hn::StoreU(hn::BitCast(d8, v8), d8, codes);
}

#endif  // HWY_TARGET

// Packs 16 * groups codes. REQUIRES codes below 2^kBits.
template <int kBits>
HWY_INLINE void PackGroups(const uint8_t* HWY_RESTRICT codes, size_t groups,
                           uint8_t* HWY_RESTRICT out) {
  if constexpr (kBits == 8) {
    std::memcpy(out, codes, groups * kGroup);
  } else {
    static_assert(kBits >= 3 && kBits <= 6, "");
    constexpr size_t kBytes = 2 * kBits;
    const size_t bytes = groups * kBytes;
    size_t g = 0;
    for (; (g + kGroupsAtOnce - 1) * kBytes + 16 <= bytes; g += kGroupsAtOnce) {
      PackSome<kBits>(codes + g * kGroup, out + g * kBytes);
    }
    while (g < groups) {
      const size_t n = HWY_MIN(groups - g, kGroupsAtOnce);
      uint8_t some[kGroupsAtOnce * kGroup] = {};
      uint8_t packed[kGroupsAtOnce * kGroup];
      std::memcpy(some, codes + g * kGroup, n * kGroup);
      PackSome<kBits>(some, packed);
      std::memcpy(out + g * kBytes, packed, n * kBytes);
      g += n;
    }
  }
}

// Unpacks 16 * groups codes, which are below 2^kBits.
template <int kBits>
HWY_INLINE void UnpackGroups(const uint8_t* HWY_RESTRICT in, size_t groups,
                             uint8_t* HWY_RESTRICT codes) {
  if constexpr (kBits == 8) {
    std::memcpy(codes, in, groups * kGroup);
  } else {
    static_assert(kBits >= 3 && kBits <= 6, "");
    constexpr size_t kBytes = 2 * kBits;
    const size_t bytes = groups * kBytes;
    size_t g = 0;
    for (; (g + kGroupsAtOnce - 1) * kBytes + 16 <= bytes; g += kGroupsAtOnce) {
      UnpackSome<kBits>(in + g * kBytes, codes + g * kGroup);
    }
    while (g < groups) {
      const size_t n = HWY_MIN(groups - g, kGroupsAtOnce);
      uint8_t packed[kGroupsAtOnce * kGroup] = {};
      uint8_t some[kGroupsAtOnce * kGroup];
      std::memcpy(packed, in + g * kBytes, n * kBytes);
      UnpackSome<kBits>(packed, some);
      std::memcpy(codes + g * kGroup, some, n * kGroup);
      g += n;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::block_pack
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_BLOCK_PACK_INL_H_
