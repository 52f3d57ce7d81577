#ifndef EPS_BASE_NUMERICS_SMALL_FLOATS_H_
#define EPS_BASE_NUMERICS_SMALL_FLOATS_H_

// Conversions of the 16-bit floats in files, one value at a time, in integer arithmetic, so that no
// mode of the processor (rounding, flushing of subnormals) can change a bit. Pure functions.

#include <cstdint>
#include <cstring>

namespace eps {

inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Exact, because every value of both formats is a float; a NaN keeps its payload.
inline float FloatFromBf16(uint16_t bits) { return FloatFromBits(uint32_t{bits} << 16); }

inline float FloatFromF16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 31u;
  uint32_t mantissa = bits & 1023u;
  if (exponent == 31) return FloatFromBits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return FloatFromBits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  if (mantissa == 0) return FloatFromBits(sign);
  uint32_t wide = 113;  // of mantissa 2^10, the smallest normal value
  while ((mantissa & 1024u) == 0) {
    mantissa <<= 1;
    --wide;
  }
  return FloatFromBits(sign | (wide << 23) | ((mantissa & 1023u) << 13));
}

// Round to the nearest value, ties to even, as PyTorch does. Values beyond the largest become
// infinity; a NaN stays a NaN.
inline uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = BitsOfFloat(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline uint16_t F16FromFloat(float value) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // from 65520 on
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);             // below 2^-25
  uint32_t digits = magnitude - (112u << 23);
  uint32_t dropped = 13;          // digits that the result has no room for
  if (magnitude < 0x38800000u) {  // a subnormal of the result: multiples of 2^-24
    digits = (magnitude & 0x7fffffu) | 0x800000u;
    dropped = 126u - (magnitude >> 23);
  }
  const uint32_t rest = digits & ((1u << dropped) - 1u);
  const uint32_t half = 1u << (dropped - 1u);
  uint32_t result = digits >> dropped;
  if (rest > half || (rest == half && (result & 1u) != 0)) ++result;  // may carry into the exponent
  return static_cast<uint16_t>(sign | result);
}

}  // namespace eps

#endif  // EPS_BASE_NUMERICS_SMALL_FLOATS_H_
