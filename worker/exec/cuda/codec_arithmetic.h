#ifndef EPS_WORKER_EXEC_CUDA_CODEC_ARITHMETIC_H_
#define EPS_WORKER_EXEC_CUDA_CODEC_ARITHMETIC_H_

// The codecs' arithmetic on one element or block (docs/formats/codecs.md), for nvcc and for a C++
// compiler, so that tests on a CPU compare the code that a device runs with the references. Uses
// integer arithmetic on the bits of floats, and conversions of small integers, which are exact: no
// result depends on a rounding or denormal mode.

#include <cstdint>

#include "worker/exec/cuda/elementwise.h"

namespace eps::codec_arithmetic {

using elementwise::BitsOf;
using elementwise::FloatOf;

constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr uint32_t kNan = 0x7fc00000u;
constexpr uint32_t kNanScale = 255;

// significand * 2^(exponent - 23) with a significand in [2^23, 2^24), or zero with significand 0.
struct Significand {
  uint32_t significand;
  int exponent;
};

// Returns the significand of a finite float's bits without the sign; denormals are not flushed.
EPS_HOST_DEVICE inline Significand SignificandOf(uint32_t magnitude) {
  if (magnitude >= 0x00800000u) {
    return {(magnitude & 0x7fffffu) | 0x800000u, static_cast<int>(magnitude >> 23) - 127};
  }
  if (magnitude == 0) return {0, -149};
  // A denormal is this integer times 2^-149.
  const uint32_t integer = BitsOf(static_cast<float>(magnitude));
  return {(integer & 0x7fffffu) | 0x800000u, static_cast<int>(integer >> 23) - 127 - 149};
}

// Returns significand / 2^shift, rounded to nearest, ties to even. REQUIRES significand < 2^24,
// shift >= 1.
EPS_HOST_DEVICE inline uint32_t ShiftToNearest(uint32_t significand, int shift) {
  if (shift > 25) shift = 25;  // less than half either way
  return (significand + ((1u << (shift - 1)) - 1) + (significand >> shift & 1u)) >> shift;
}

// Returns the bits of magnitude * 2^exponent with that sign bit; infinity beyond the floats.
// REQUIRES magnitude < 2^24, exponent >= -149.
EPS_HOST_DEVICE inline uint32_t BitsOfProduct(uint32_t sign, uint32_t magnitude, int exponent) {
  if (magnitude == 0) return sign;
  const uint32_t integer = BitsOf(static_cast<float>(magnitude));
  const int biased = static_cast<int>(integer >> 23) + exponent;
  if (biased >= 255) return sign | kInfinity;
  if (biased < 1) return sign | magnitude << (exponent + 149);
  return sign | static_cast<uint32_t>(biased) << 23 | (integer & 0x7fffffu);
}

// Formats with a sign, an exponent and a mantissa. Codes without their sign are in ascending order
// of their values. kNone marks a code that the format lacks.
constexpr uint32_t kNone = ~0u;
template <int kExponent, int kMantissa, int kBiasOfFormat, uint32_t kLargest, uint32_t kInf,
          uint32_t kFirstNan>
struct FloatFormat {
  static constexpr int kBits = 1 + kExponent + kMantissa;
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kBias = kBiasOfFormat;
  static constexpr int kLargestExponent =
      static_cast<int>(kLargest >> kMantissa) - kBiasOfFormat;  // of the largest value
  static constexpr uint32_t kLargestCode = kLargest;
  static constexpr uint32_t kInfinityCode = kInf;
  static constexpr uint32_t kNanCode = kFirstNan;  // and all codes above it
  static constexpr uint32_t kSignBit = 1u << (kBits - 1);
};
using Fp16 = FloatFormat<5, 10, 15, 0x7bff, 0x7c00, 0x7c01>;
using E4m3 = FloatFormat<4, 3, 7, 0x7e, kNone, 0x7f>;
using E5m2 = FloatFormat<5, 2, 15, 0x7b, 0x7c, 0x7d>;
using E2m3 = FloatFormat<2, 3, 1, 0x1f, kNone, kNone>;
using E3m2 = FloatFormat<3, 2, 3, 0x1f, kNone, kNone>;
using E2m1 = FloatFormat<2, 1, 1, 0x7, kNone, kNone>;

// Returns the code nearest to x / 2^scale, as if codes continued after the largest.
template <class Format>
EPS_HOST_DEVICE inline uint32_t NearestCode(Significand x, int scale) {
  constexpr int kLowest = 1 - Format::kBias - Format::kMantissaBits;
  const int exponent = x.exponent - scale;
  // Neighbours are 2^step apart here.
  const int step =
      exponent - Format::kMantissaBits > kLowest ? exponent - Format::kMantissaBits : kLowest;
  const uint32_t steps = ShiftToNearest(x.significand, step - (exponent - 23));
  // A binade begins with 2^mantissa_bits steps; each skipped binade adds as many codes.
  return steps + (static_cast<uint32_t>(step - kLowest) << Format::kMantissaBits);
}

// Returns the FP32 bits of a code times 2^scale. Infinities stay infinite; NaN becomes `nan`.
template <class Format>
EPS_HOST_DEVICE inline uint32_t BitsOfCode(uint32_t code, int scale, uint32_t nan) {
  const uint32_t magnitude = code & (Format::kSignBit - 1);
  const uint32_t sign = (code & Format::kSignBit) != 0 ? 0x80000000u : 0;
  if (magnitude >= Format::kNanCode) return nan;
  if (magnitude == Format::kInfinityCode) return sign | kInfinity;
  constexpr uint32_t kImplicit = 1u << Format::kMantissaBits;
  const uint32_t binade = magnitude >> Format::kMantissaBits;
  const uint32_t fraction = magnitude & (kImplicit - 1);
  const uint32_t steps = binade > 0 ? fraction | kImplicit : fraction;
  const int skipped = binade > 0 ? static_cast<int>(binade) - 1 : 0;
  return BitsOfProduct(sign, steps, 1 - Format::kBias - Format::kMantissaBits + skipped + scale);
}

// The codecs of floats without blocks: one code for the bits of one element, and back.
struct Fp32Codec {
  using Code = uint32_t;
  EPS_HOST_DEVICE static Code Encode(uint32_t bits) { return bits; }
  EPS_HOST_DEVICE static uint32_t Decode(Code code) { return code; }
};

// bfloat16: the upper half of a float, rounded to nearest.
struct Bf16Codec {
  using Code = uint16_t;
  EPS_HOST_DEVICE static Code Encode(uint32_t bits) {
    return elementwise::EncodeBf16One(FloatOf(bits));
  }
  EPS_HOST_DEVICE static uint32_t Decode(Code code) { return static_cast<uint32_t>(code) << 16; }
};

// IEEE half precision.
struct Fp16Codec {
  using Code = uint16_t;
  EPS_HOST_DEVICE static Code Encode(uint32_t bits) {
    const uint32_t sign = bits >> 31 << 15;
    const uint32_t magnitude = bits & kMagnitude;
    if (magnitude > kInfinity) {
      return static_cast<Code>(sign | 0x7e00u | (magnitude & 0x7fffffu) >> 13);
    }
    if (magnitude == kInfinity) return static_cast<Code>(sign | Fp16::kInfinityCode);
    const uint32_t code = NearestCode<Fp16>(SignificandOf(magnitude), 0);
    return static_cast<Code>(sign | (code < Fp16::kInfinityCode ? code : Fp16::kInfinityCode));
  }
  EPS_HOST_DEVICE static uint32_t Decode(Code code) {
    const uint32_t nan = static_cast<uint32_t>(code >> 15) << 31 | kNan | (code & 0x3ffu) << 13;
    return BitsOfCode<Fp16>(code, 0, nan);
  }
};

// The 8-bit formats, which saturate; kWrittenNan is the code that encodes NaN.
template <class Format, uint32_t kWrittenNan>
struct Fp8Codec {
  using Code = uint8_t;
  EPS_HOST_DEVICE static Code Encode(uint32_t bits) {
    const uint32_t sign = bits >> 31 << 7;
    const uint32_t magnitude = bits & kMagnitude;
    if (magnitude > kInfinity) return static_cast<Code>(sign | kWrittenNan);
    if (magnitude == kInfinity) return static_cast<Code>(sign | Format::kLargestCode);
    const uint32_t code = NearestCode<Format>(SignificandOf(magnitude), 0);
    return static_cast<Code>(sign | (code < Format::kLargestCode ? code : Format::kLargestCode));
  }
  EPS_HOST_DEVICE static uint32_t Decode(Code code) {
    return BitsOfCode<Format>(code, 0, static_cast<uint32_t>(code >> 7) << 31 | kNan);
  }
};
using E4m3Codec = Fp8Codec<E4m3, 0x7f>;
using E5m2Codec = Fp8Codec<E5m2, 0x7e>;

// The scale of a block, and its micro byte, which only some formats have.
struct BlockScale {
  uint32_t scale;
  uint32_t micro;
};

// The block codecs. `Scale` computes the scale of the `present` elements first[i * stride], i below
// kBlock; the other functions convert an element's bits to a code and back, given the block's scale
// and, if the format has one, the microexponent (0 or 1) of the element's pair.
template <int kMagnitudeBits>
struct MxCodec {
  static constexpr uint32_t kBlock = 16;
  static constexpr uint32_t kCodeBits = kMagnitudeBits + 1;
  static constexpr bool kMicro = true;

  EPS_HOST_DEVICE static BlockScale Scale(const float* first, uint32_t stride, uint32_t present) {
    BlockScale result = {0, 0};
    for (uint32_t i = 0; i < present; ++i) {
      const uint32_t exponent = BitsOf(first[i * stride]) >> 23 & 255u;
      if (exponent > result.scale) result.scale = exponent;
    }
    if (result.scale == kNanScale) return result;
    for (uint32_t pair = 0; 2 * pair < present; ++pair) {
      bool below = true;
      for (uint32_t i = 2 * pair; i < 2 * pair + 2 && i < present; ++i) {
        below = below && (BitsOf(first[i * stride]) >> 23 & 255u) < result.scale;
      }
      if (below) result.micro |= 1u << pair;
    }
    return result;
  }

  EPS_HOST_DEVICE static uint32_t Code(uint32_t bits, uint32_t scale, uint32_t microexponent,
                                       bool truncate) {
    if (scale == kNanScale) return 0;
    const uint32_t sign = bits >> 31 << kMagnitudeBits;
    const uint32_t exponent = bits >> 23 & 255u;
    if (exponent == 0) return sign;  // denormals are zero
    const uint32_t significand = (bits & 0x7fffffu) | 0x800000u;
    const int shift = static_cast<int>(scale - microexponent - exponent) + 24 - kMagnitudeBits;
    const uint32_t magnitude =
        truncate ? significand >> (shift < 31 ? shift : 31) : ShiftToNearest(significand, shift);
    constexpr uint32_t kLargest = (1u << kMagnitudeBits) - 1;
    return sign | (magnitude < kLargest ? magnitude : kLargest);
  }

  EPS_HOST_DEVICE static uint32_t Value(uint32_t code, uint32_t scale, uint32_t microexponent) {
    if (scale == kNanScale) return kNan;
    return BitsOfProduct(
        code >> kMagnitudeBits << 31, code & ((1u << kMagnitudeBits) - 1),
        static_cast<int>(scale) - 127 - static_cast<int>(microexponent) + 1 - kMagnitudeBits);
  }
};

// The scale that the OCP formats share; `kLargestExponent` is their emax.
template <int kLargestExponent>
struct OcpScale {
  static constexpr uint32_t kBlock = 32;
  static constexpr bool kMicro = false;

  EPS_HOST_DEVICE static BlockScale Scale(const float* first, uint32_t stride, uint32_t present) {
    uint32_t largest = 0;
    for (uint32_t i = 0; i < present; ++i) {
      const uint32_t magnitude = BitsOf(first[i * stride]) & kMagnitude;
      if (magnitude > largest) largest = magnitude;
    }
    if (largest >= kInfinity) return {kNanScale, 0};
    const int shared = SignificandOf(largest).exponent - kLargestExponent;
    return {static_cast<uint32_t>(shared > -127 ? shared + 127 : 0), 0};
  }
};

// The OCP formats of floats.
template <class Format>
struct OcpFloatCodec : OcpScale<Format::kLargestExponent> {
  static constexpr uint32_t kCodeBits = Format::kBits;

  EPS_HOST_DEVICE static uint32_t Code(uint32_t bits, uint32_t scale, uint32_t /*microexponent*/,
                                       bool /*truncate*/) {
    if (scale == kNanScale) return 0;
    const uint32_t code =
        NearestCode<Format>(SignificandOf(bits & kMagnitude), static_cast<int>(scale) - 127);
    return (code < Format::kLargestCode ? code : Format::kLargestCode) |
           bits >> 31 << (Format::kBits - 1);
  }

  EPS_HOST_DEVICE static uint32_t Value(uint32_t code, uint32_t scale, uint32_t /*microexponent*/) {
    if (scale == kNanScale) return kNan;
    return BitsOfCode<Format>(code, static_cast<int>(scale) - 127, kNan);
  }
};

// Two's complement times 2^-6.
struct OcpInt8Codec : OcpScale<0> {
  static constexpr uint32_t kCodeBits = 8;

  EPS_HOST_DEVICE static uint32_t Code(uint32_t bits, uint32_t scale, uint32_t /*microexponent*/,
                                       bool /*truncate*/) {
    if (scale == kNanScale) return 0;
    const Significand x = SignificandOf(bits & kMagnitude);
    const int exponent = x.exponent - (static_cast<int>(scale) - 127);
    const uint32_t rounded = ShiftToNearest(x.significand, 17 - exponent);
    const uint32_t magnitude = rounded < 127 ? rounded : 127;
    return (bits >> 31 != 0 ? 0u - magnitude : magnitude) & 255u;
  }

  EPS_HOST_DEVICE static uint32_t Value(uint32_t code, uint32_t scale, uint32_t /*microexponent*/) {
    if (scale == kNanScale) return kNan;
    const bool negative = code >= 128;
    return BitsOfProduct(negative ? 0x80000000u : 0, negative ? 256 - code : code,
                         static_cast<int>(scale) - 127 - 6);
  }
};

}  // namespace eps::codec_arithmetic

#endif  // EPS_WORKER_EXEC_CUDA_CODEC_ARITHMETIC_H_
