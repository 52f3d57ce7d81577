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

#include "compression/block_codes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::block_pack {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

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

// Writes kGroupsAtOnce groups, and zeros up to 16 bytes from the start of the last group.
template <int kBits>
HWY_INLINE void PackSome(const uint8_t* codes, uint8_t* out) {
  const Codes d8;
  StoreApart(d8, PackedApart<kBits>(hn::LoadU(d8, codes)), out, 2 * kBits);
}

// Reads kGroupsAtOnce groups, and up to 16 bytes from the start of the last group.
template <int kBits>
HWY_INLINE void UnpackSome(const uint8_t* in, uint8_t* codes) {
  hn::StoreU(Unpacked<kBits>(LoadApart(Codes(), in, 2 * kBits)), Codes(), codes);
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
#if HWY_TARGET != HWY_SCALAR
    if (g + kGroupsAtOnce == groups) {
      StorePacked<kBits>(hn::LoadU(Codes(), codes + g * kGroup), out + g * kBytes);
      return;
    }
#endif
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
#if HWY_TARGET != HWY_SCALAR
    if (g + kGroupsAtOnce == groups) {
      hn::StoreU(LoadPacked<kBits>(in + g * kBytes), Codes(), codes + g * kGroup);
      return;
    }
#endif
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
