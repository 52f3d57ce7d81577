// Vector access to SparseElements, for kernels to include inside Highway's foreach_target.
//
//   namespace sp = sparse::HWY_NAMESPACE;
//   const uint64_t bits = sp::BitsFrom(sparse, first);
//   const uint8_t* values = sparse.values + sparse.value_bytes * sp::Rank(sparse, first);
//   sp::Expand<sp::Bf16>(d, values, bits & 0xff)  // eight elements, if value_bytes is 2

#if defined(EPS_COMPRESSION_SPARSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_SPARSE_INL_H_
#undef EPS_COMPRESSION_SPARSE_INL_H_
#else
#define EPS_COMPRESSION_SPARSE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/floats/formats-inl.h"
#include "compression/sparse.h"
#include "hwy/highway.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "encoded values are little-endian");

HWY_BEFORE_NAMESPACE();
namespace eps::sparse {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE size_t SetBits(uint64_t bits) { return static_cast<size_t>(hwy::PopCount(bits)); }

// Returns which of the 64 elements from `first` on are present, the first in the lowest bit.
HWY_INLINE uint64_t BitsFrom(const SparseElements& sparse, size_t first) {
  const uint64_t* const words = sparse.words + first / 64;
  return words[0] >> (first % 64) | words[1] << 1 << (63 - first % 64);
}

// Returns the number of present elements before `first`, which is the index of the first value from
// there on.
HWY_INLINE size_t Rank(const SparseElements& sparse, size_t first) {
  const uint64_t earlier = (uint64_t{1} << (first % 64)) - 1;
  return sparse.before[first / 64] + SetBits(sparse.words[first / 64] & earlier);
}

// A format of values, with the bytes of one: FP32.
struct Fp32 : float_formats::HWY_NAMESPACE::Fp32 {
  static constexpr size_t kBytes = sizeof(Word);
};
// The same for bf16.
struct Bf16 : float_formats::HWY_NAMESPACE::Bf16 {
  static constexpr size_t kBytes = sizeof(Word);
};

#if HWY_TARGET == HWY_SCALAR

constexpr size_t kMaxLanes = 1;

template <class Format, class D>
HWY_INLINE hn::Vec<D> Expand(D d, const uint8_t* values, uint32_t bits) {
  return bits != 0 ? Format::Load(d, values) : hn::Zero(d);
}

#else  // HWY_TARGET != HWY_SCALAR

// Returns in lane i the next lane of v if bit i is set, else zero. (Highway 1.0.3 has no Expand.)
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
constexpr size_t kMaxLanes = 16;

HWY_INLINE hn::Vec512<uint32_t> ExpandLanes(hn::Full512<uint32_t>, hn::Vec512<uint32_t> v,
                                            uint32_t bits) {
  return hn::Vec512<uint32_t>{_mm512_maskz_expand_epi32(static_cast<__mmask16>(bits), v.raw)};
}
#else
constexpr size_t kMaxLanes = 8;

// For each byte, the number of bits set before each position: the lane of v that moves there.
struct Sources {
  constexpr Sources() : lane() {
    for (size_t bits = 0; bits < 256; ++bits) {
      uint8_t before = 0;
      for (size_t i = 0; i < 8; ++i) {
        lane[bits][i] = before;
        before = static_cast<uint8_t>(before + (bits >> i & 1));
      }
    }
  }
  uint8_t lane[256][8];
};
constexpr Sources kSources;
constexpr uint32_t kBitOfLane[8] = {1, 2, 4, 8, 16, 32, 64, 128};

template <class DU>
HWY_INLINE hn::Vec<DU> ExpandLanes(DU du, hn::Vec<DU> v, uint32_t bits) {
  const hn::Rebind<uint8_t, DU> d8;
  const auto sources = hn::PromoteTo(du, hn::LoadU(d8, kSources.lane[bits]));
  const auto moved = hn::TableLookupLanes(v, hn::IndicesFromVec(du, sources));
  const auto lane_bits = hn::LoadU(du, kBitOfLane);
  const auto present = hn::Eq(hn::And(hn::Set(du, bits), lane_bits), lane_bits);
  return hn::IfThenElseZero(present, moved);
}
#endif

// Returns in lane i the next of `values` if bit i is set, else +0.0. Reads Lanes(d) values.
// REQUIRES that no bit beyond the lanes is set, and a float tag of at most kMaxLanes lanes.
template <class Format, class D>
HWY_INLINE hn::Vec<D> Expand(D d, const uint8_t* values, uint32_t bits) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, ExpandLanes(du, hn::BitCast(du, Format::Load(d, values)), bits));
}

#endif  // HWY_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace eps::sparse
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_SPARSE_INL_H_
