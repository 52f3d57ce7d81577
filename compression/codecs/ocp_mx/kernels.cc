#include "compression/codecs/ocp_mx/kernels.h"

#include "base/numerics/flush_denormals.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/ocp_mx/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow foreach_target.h, for which they are included again for each instruction set.
#include "compression/codecs/ocp_mx/decode-inl.h"
#include "compression/codecs/ocp_mx/encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::ocp_mx_kernels {
namespace HWY_NAMESPACE {
namespace {

void EncodeAny(Element element, const TileShape& shape, const float* in, size_t ld, uint8_t* scales,
               uint8_t* codes) {
  switch (element) {
    case Element::kE4m3:
      return EncodeTile<E4m3>(shape, in, ld, scales, codes);
    case Element::kE5m2:
      return EncodeTile<E5m2>(shape, in, ld, scales, codes);
    case Element::kE2m3:
      return EncodeTile<E2m3>(shape, in, ld, scales, codes);
    case Element::kE3m2:
      return EncodeTile<E3m2>(shape, in, ld, scales, codes);
    case Element::kE2m1:
      return EncodeTile<E2m1>(shape, in, ld, scales, codes);
    case Element::kInt8:
      return EncodeTile<Integer>(shape, in, ld, scales, codes);
  }
}

void EncodeAnyRow(Element element, const float* in, size_t cols, uint8_t* scales, uint8_t* codes,
                  size_t stride) {
  switch (element) {
    case Element::kE4m3:
      return EncodeRowOfTiles<E4m3>(in, cols, scales, codes, stride);
    case Element::kE5m2:
      return EncodeRowOfTiles<E5m2>(in, cols, scales, codes, stride);
    case Element::kE2m3:
      return EncodeRowOfTiles<E2m3>(in, cols, scales, codes, stride);
    case Element::kE3m2:
      return EncodeRowOfTiles<E3m2>(in, cols, scales, codes, stride);
    case Element::kE2m1:
      return EncodeRowOfTiles<E2m1>(in, cols, scales, codes, stride);
    case Element::kInt8:
      return EncodeRowOfTiles<Integer>(in, cols, scales, codes, stride);
  }
}

bool EncodesFourAtOnce() { return kFourAtOnce; }

template <class Operation>
HWY_INLINE void DecodeAny(Element element, const TileShape& shape, const uint8_t* scales,
                          const uint8_t* codes, size_t ld, float* out) {
  switch (element) {
    case Element::kE4m3:
      return DecodeTile<E4m3, Operation>(shape, scales, codes, ld, out);
    case Element::kE5m2:
      return DecodeTile<E5m2, Operation>(shape, scales, codes, ld, out);
    case Element::kE2m3:
      return DecodeTile<E2m3, Operation>(shape, scales, codes, ld, out);
    case Element::kE3m2:
      return DecodeTile<E3m2, Operation>(shape, scales, codes, ld, out);
    case Element::kE2m1:
      return DecodeTile<E2m1, Operation>(shape, scales, codes, ld, out);
    case Element::kInt8:
      return DecodeTile<Integer, Operation>(shape, scales, codes, ld, out);
  }
}

void AssignAny(Element element, const TileShape& shape, const uint8_t* scales, const uint8_t* codes,
               size_t ld, float* out) {
  DecodeAny<Assign>(element, shape, scales, codes, ld, out);
}
void AddAny(Element element, const TileShape& shape, const uint8_t* scales, const uint8_t* codes,
            size_t ld, float* out) {
  DecodeAny<Add>(element, shape, scales, codes, ld, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::ocp_mx_kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::ocp_mx_kernels {

HWY_EXPORT(EncodeAny);
HWY_EXPORT(EncodeAnyRow);
HWY_EXPORT(EncodesFourAtOnce);
HWY_EXPORT(AssignAny);
HWY_EXPORT(AddAny);
HWY_EXPORT(ScanBytes);

void Encode(Element element, const TileShape& shape, const float* in, size_t ld, uint8_t* scales,
            uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(EncodeAny)(element, shape, in, ld, scales, codes);
}
bool EncodesRows() { return HWY_DYNAMIC_DISPATCH(EncodesFourAtOnce)(); }
void EncodeRow(Element element, const float* in, size_t cols, uint8_t* scales, uint8_t* codes,
               size_t stride) {
  HWY_DYNAMIC_DISPATCH(EncodeAnyRow)(element, in, cols, scales, codes, stride);
}
void Decode(Element element, const TileShape& shape, const uint8_t* scales, const uint8_t* codes,
            size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(AssignAny)(element, shape, scales, codes, ld, out);
}
// Sets the mode outside of the indirect call, across which the compiler moves no arithmetic.
void Accumulate(Element element, const TileShape& shape, const uint8_t* scales,
                const uint8_t* codes, size_t ld, float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(AddAny)(element, shape, scales, codes, ld, out);
}
bool AnyAbove(const uint8_t* in, size_t n, uint8_t mask, uint8_t limit) {
  return HWY_DYNAMIC_DISPATCH(ScanBytes)(in, n, mask, limit);
}

}  // namespace eps::ocp_mx_kernels
#endif  // HWY_ONCE
