#include "compression/codecs/floats/reference.h"

#include <algorithm>
#include <cstring>

#include "base/numerics/flush_denormals.h"
#include "compression/reference_codec.h"

namespace eps::float_reference {
namespace {

constexpr uint32_t kMagnitude32 = 0x7fffffffu;
constexpr uint32_t kInfinity32 = 0x7f800000u;
constexpr uint32_t kLimit32 = 0x58800000u;  // 2^50
constexpr uint16_t kMagnitude16 = 0x7fffu;
constexpr uint16_t kLimit16 = 0x5880u;  // 2^50

uint32_t Load32(const uint8_t* p) {
  return uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}

uint16_t Load16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// A format with narrower exponents than FP32. Its codes without the sign are its values in
// ascending order: code 0 is zero, code 1 is the unit 2^(1 - bias - mantissa_bits), the smallest
// denormal.
struct Narrow {
  int mantissa_bits;
  int bias;
  uint32_t first_beyond;  // first code above the largest finite value
  uint32_t overflow;      // code of values beyond the range
};
constexpr Narrow kFp16{10, 15, 0x7c00, 0x7c00};
constexpr Narrow kE4m3{3, 7, 0x7f, 0x7e};
constexpr Narrow kE5m2{2, 15, 0x7c, 0x7b};

// Returns the code nearest to a magnitude that is not NaN, ties to even.
uint32_t NearestCode(const Narrow& format, uint32_t magnitude) {
  if (magnitude == kInfinity32) return format.overflow;
  if (magnitude < 0x00800000u) return 0;  // far below half a unit of every format
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;  // times 2^(exponent - 23)
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  // Count in steps of 2^step, the distance between neighbouring values of the format here.
  const int lowest = 1 - format.bias - format.mantissa_bits;
  const int step = std::max(exponent - format.mantissa_bits, lowest);
  const int dropped = step - (exponent - 23);
  if (dropped > 25) return 0;
  uint32_t steps = significand >> dropped;
  const uint32_t rest = significand & ((1u << dropped) - 1);
  const uint32_t half = 1u << (dropped - 1);
  if (rest > half || (rest == half && steps % 2 == 1)) ++steps;
  // A binade begins with 2^mantissa_bits steps; each binade below adds as many codes.
  const uint64_t code = steps + (static_cast<uint64_t>(step - lowest) << format.mantissa_bits);
  return code < format.first_beyond ? static_cast<uint32_t>(code) : format.overflow;
}

// Returns the FP32 bits of a finite code without its sign.
uint32_t MagnitudeOf(const Narrow& format, uint32_t code) {
  if (code == 0) return 0;
  const uint32_t binade = code >> format.mantissa_bits;
  uint32_t steps = code & ((1u << format.mantissa_bits) - 1);
  int step = 1 - format.bias - format.mantissa_bits;
  if (binade > 0) {
    steps |= 1u << format.mantissa_bits;
    step += static_cast<int>(binade) - 1;
  }
  int exponent = step + 23;
  while ((steps & 0x800000u) == 0) {
    steps <<= 1;
    --exponent;
  }
  return static_cast<uint32_t>(exponent + 127) << 23 | (steps & 0x7fffffu);
}

float ToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace

uint16_t RoundToBf16(uint32_t bits) {
  if ((bits & kMagnitude32) > kInfinity32) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

uint16_t RoundToFp16(uint32_t bits) {
  const uint32_t sign = bits >> 31 << 15;
  const uint32_t magnitude = bits & kMagnitude32;
  if (magnitude > kInfinity32) {
    return static_cast<uint16_t>(sign | 0x7e00u | (magnitude & 0x7fffffu) >> 13);
  }
  return static_cast<uint16_t>(sign | NearestCode(kFp16, magnitude));
}

uint8_t RoundToE4m3(uint32_t bits) {
  const uint32_t sign = bits >> 31 << 7;
  const uint32_t magnitude = bits & kMagnitude32;
  if (magnitude > kInfinity32) return static_cast<uint8_t>(sign | 0x7fu);
  return static_cast<uint8_t>(sign | NearestCode(kE4m3, magnitude));
}

uint8_t RoundToE5m2(uint32_t bits) {
  const uint32_t sign = bits >> 31 << 7;
  const uint32_t magnitude = bits & kMagnitude32;
  if (magnitude > kInfinity32) return static_cast<uint8_t>(sign | 0x7eu);
  return static_cast<uint8_t>(sign | NearestCode(kE5m2, magnitude));
}

uint32_t BitsOfFp16(uint16_t code) {
  const uint32_t sign = uint32_t{code} >> 15 << 31;
  const uint32_t unsigned_code = code & 0x7fffu;
  if (unsigned_code < 0x7c00u) return sign | MagnitudeOf(kFp16, unsigned_code);
  if (unsigned_code == 0x7c00u) return sign | kInfinity32;
  return sign | 0x7fc00000u | (unsigned_code & 0x3ffu) << 13;
}

uint32_t BitsOfE4m3(uint8_t code) {
  const uint32_t sign = uint32_t{code} >> 7 << 31;
  const uint32_t unsigned_code = code & 0x7fu;
  return sign | (unsigned_code == 0x7fu ? 0x7fc00000u : MagnitudeOf(kE4m3, unsigned_code));
}

uint32_t BitsOfE5m2(uint8_t code) {
  const uint32_t sign = uint32_t{code} >> 7 << 31;
  const uint32_t unsigned_code = code & 0x7fu;
  if (unsigned_code < 0x7cu) return sign | MagnitudeOf(kE5m2, unsigned_code);
  return sign | (unsigned_code == 0x7cu ? kInfinity32 : 0x7fc00000u);
}

size_t FirstInadmissibleFp32(const uint8_t* in, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if ((Load32(in + 4 * i) & kMagnitude32) >= kLimit32) return i;
  }
  return n;
}

size_t FirstInadmissibleBf16(const uint8_t* in, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if ((Load16(in + 2 * i) & kMagnitude16) >= kLimit16) return i;
  }
  return n;
}

void DecodeFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const uint32_t bits = Load32(in + 4 * (r * in_ld + c));
      std::memcpy(out + r * ld + c, &bits, sizeof(bits));
    }
  }
}

void DecodeBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const uint32_t bits = uint32_t{Load16(in + 2 * (r * in_ld + c))} << 16;
      std::memcpy(out + r * ld + c, &bits, sizeof(bits));
    }
  }
}

void AccumulateFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  ScopedFlushDenormals flush;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      out[r * ld + c] = out[r * ld + c] + ToFloat(Load32(in + 4 * (r * in_ld + c)));
    }
  }
}

void AccumulateBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out) {
  ScopedFlushDenormals flush;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      out[r * ld + c] = out[r * ld + c] + ToFloat(uint32_t{Load16(in + 2 * (r * in_ld + c))} << 16);
    }
  }
}

void EncodeBf16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, uint8_t* out) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const uint16_t code = RoundToBf16(ToBits(in[r * ld + c]));
      uint8_t* p = out + 2 * (r * out_ld + c);
      p[0] = static_cast<uint8_t>(code & 0xff);
      p[1] = static_cast<uint8_t>(code >> 8);
    }
  }
}

namespace {

// The properties of one float format.
struct Fp32 {
  static constexpr size_t kBytes = 4;
  static void Encode(float value, uint8_t* out) { std::memcpy(out, &value, 4); }
  static void Decode(const uint8_t* in, float* out) { DecodeFp32(in, 1, 1, 1, 1, out); }
};
// The properties of bf16.
struct Bf16 {
  static constexpr size_t kBytes = 2;
  static void Encode(float value, uint8_t* out) { EncodeBf16(&value, 1, 1, 1, 1, out); }
  static void Decode(const uint8_t* in, float* out) { DecodeBf16(in, 1, 1, 1, 1, out); }
};

// The properties of fp16.
struct Fp16 {
  static constexpr size_t kBytes = 2;
  static void Encode(float value, uint8_t* out) {
    const uint16_t code = RoundToFp16(ToBits(value));
    out[0] = static_cast<uint8_t>(code & 0xff);
    out[1] = static_cast<uint8_t>(code >> 8);
  }
  static void Decode(const uint8_t* in, float* out) { *out = ToFloat(BitsOfFp16(Load16(in))); }
};
// The properties of fp8_e4m3.
struct E4m3 {
  static constexpr size_t kBytes = 1;
  static void Encode(float value, uint8_t* out) { *out = RoundToE4m3(ToBits(value)); }
  static void Decode(const uint8_t* in, float* out) { *out = ToFloat(BitsOfE4m3(*in)); }
};
// The properties of fp8_e5m2.
struct E5m2 {
  static constexpr size_t kBytes = 1;
  static void Encode(float value, uint8_t* out) { *out = RoundToE5m2(ToBits(value)); }
  static void Decode(const uint8_t* in, float* out) { *out = ToFloat(BitsOfE5m2(*in)); }
};

// The reference of one format.
template <class Format>
class FloatReference final : public ReferenceCodec {
 public:
  std::string Encode(const Chunk& chunk, Axis /*axis*/, const float* elements,
                     float* /*residual_or_null*/) const override {
    std::string bytes(chunk.elements * Format::kBytes, '\0');
    auto* out = reinterpret_cast<uint8_t*>(&bytes[0]);
    for (uint64_t i = 0; i < chunk.elements; ++i) {
      Format::Encode(elements[i], out + i * Format::kBytes);
    }
    return bytes;
  }
  void Decode(const Chunk& chunk, Axis /*axis*/, absl::string_view bytes,
              float* elements) const override {
    const auto* in = reinterpret_cast<const uint8_t*>(bytes.data());
    for (uint64_t i = 0; i < chunk.elements; ++i) {
      Format::Decode(in + i * Format::kBytes, elements + i);
    }
  }
};

template <class Format>
absl::StatusOr<std::unique_ptr<ReferenceCodec>> New(const std::vector<std::string>&) {
  std::unique_ptr<ReferenceCodec> codec = std::make_unique<FloatReference<Format>>();
  return codec;
}

const ReferenceRegistration kFp32("fp32", &New<Fp32>);
const ReferenceRegistration kBf16("bf16", &New<Bf16>);
const ReferenceRegistration kFp16Codec("fp16", &New<Fp16>);
const ReferenceRegistration kE4m3Codec("fp8_e4m3", &New<E4m3>);
const ReferenceRegistration kE5m2Codec("fp8_e5m2", &New<E5m2>);

}  // namespace
}  // namespace eps::float_reference
