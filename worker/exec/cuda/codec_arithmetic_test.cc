#include "worker/exec/cuda/codec_arithmetic.h"

#include <cmath>
#include <cstring>

#include "base/numerics/flush_denormals.h"
#include "compression/codecs/floats/reference.h"
#include "gtest/gtest.h"

namespace eps::codec_arithmetic {
namespace {

// Visits every bfloat16 with lower halves around the borders of rounding.
template <class Visitor>
void ForEachInput(Visitor visit) {
  for (uint32_t code = 0; code < 65536; ++code) {
    for (const uint32_t low : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0xffffu}) {
      visit(code << 16 | low);
    }
  }
}

TEST(CodecArithmeticTest, EncodesFloatsAsTheCodecsDo) {
  ForEachInput([](uint32_t bits) {
    ASSERT_EQ(Bf16Codec::Encode(bits), float_reference::RoundToBf16(bits)) << bits;
    ASSERT_EQ(Fp16Codec::Encode(bits), float_reference::RoundToFp16(bits)) << bits;
    ASSERT_EQ(E4m3Codec::Encode(bits), float_reference::RoundToE4m3(bits)) << bits;
    ASSERT_EQ(E5m2Codec::Encode(bits), float_reference::RoundToE5m2(bits)) << bits;
  });
}

TEST(CodecArithmeticTest, DecodesEveryCodeAsTheCodecsDo) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint16_t code16 = static_cast<uint16_t>(code);
    ASSERT_EQ(Bf16Codec::Decode(code16), code << 16);
    ASSERT_EQ(Fp16Codec::Decode(code16), float_reference::BitsOfFp16(code16)) << code;
  }
  for (uint32_t code = 0; code < 256; ++code) {
    const uint8_t code8 = static_cast<uint8_t>(code);
    ASSERT_EQ(E4m3Codec::Decode(code8), float_reference::BitsOfE4m3(code8)) << code;
    ASSERT_EQ(E5m2Codec::Decode(code8), float_reference::BitsOfE5m2(code8)) << code;
  }
}

TEST(CodecArithmeticTest, SplitsFloatsExactlyInEveryDenormalMode) {
  const auto check = [](uint32_t bits) {
    const uint32_t magnitude = bits & kMagnitude;
    if (magnitude >= kInfinity) return;
    const Significand x = SignificandOf(magnitude);
    const double expected = magnitude < 0x00800000u ? std::ldexp(magnitude, -149)
                                                    : static_cast<double>(FloatOf(magnitude));
    ASSERT_EQ(std::ldexp(x.significand, x.exponent - 23), expected) << magnitude;
    ASSERT_TRUE(x.significand == 0 || x.significand >> 23 == 1) << magnitude;
    if (x.exponent >= -126) {
      ASSERT_EQ(BitsOfProduct(0, x.significand, x.exponent - 23), magnitude);
    } else {
      ASSERT_EQ(BitsOfProduct(0, magnitude, -149), magnitude);
    }
  };
  ForEachInput(check);
  const ScopedFlushDenormals flush;
  ForEachInput(check);
}

TEST(CodecArithmeticTest, ShiftsToNearest) {
  for (uint32_t significand = 0; significand < 1u << 24; significand += 1 + significand / 64) {
    for (int shift = 1; shift < 300; ++shift) {
      const double exact = std::ldexp(significand, -shift);
      ASSERT_EQ(ShiftToNearest(significand, shift), std::nearbyint(exact))
          << significand << " >> " << shift;
    }
  }
}

TEST(CodecArithmeticTest, ProductsBeyondTheFloatsAreInfinite) {
  EXPECT_EQ(BitsOfProduct(0x80000000u, 1, 127), 0xff000000u);
  EXPECT_EQ(BitsOfProduct(0x80000000u, 1, 128), 0xff800000u);
  EXPECT_EQ(BitsOfProduct(0, 3, 127), 0x7f800000u);
  EXPECT_EQ(BitsOfProduct(0, 3, 126), 0x7f400000u);
  EXPECT_EQ(BitsOfProduct(0, 1, -149), 1u);
  EXPECT_EQ(BitsOfProduct(0x80000000u, 0, 200), 0x80000000u);
}

}  // namespace
}  // namespace eps::codec_arithmetic
