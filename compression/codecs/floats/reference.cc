#include "compression/codecs/floats/reference.h"

#include <cstring>

#include "common/flush_denormals.h"
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

// What tells one float format from another.
struct Fp32 {
  static constexpr size_t kBytes = 4;
  static void Encode(float value, uint8_t* out) { std::memcpy(out, &value, 4); }
  static void Decode(const uint8_t* in, float* out) { DecodeFp32(in, 1, 1, 1, 1, out); }
};
struct Bf16 {
  static constexpr size_t kBytes = 2;
  static void Encode(float value, uint8_t* out) { EncodeBf16(&value, 1, 1, 1, 1, out); }
  static void Decode(const uint8_t* in, float* out) { DecodeBf16(in, 1, 1, 1, 1, out); }
};

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

}  // namespace
}  // namespace eps::float_reference
