#include "worker/exec/cuda/elementwise.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/numerics/flush_denormals.h"
#include "base/numerics/tree_add.h"
#include "compression/codecs/floats/reference.h"
#include "gtest/gtest.h"

namespace eps::elementwise {
namespace {

uint64_t SplitMix(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// Zeros, denormals, the smallest normals, powers of two, the largest floats, infinities and NaN,
// each with both signs, and the neighbours of all of them.
std::vector<uint32_t> Corners() {
  std::vector<uint32_t> corners;
  for (const uint32_t magnitude :
       {0x00000000u, 0x00000001u, 0x00000100u, 0x00400000u, 0x007fffffu, 0x00800000u, 0x00800001u,
        0x00ffffffu, 0x01000000u, 0x01000001u, 0x33800000u, 0x3f7fffffu, 0x3f800000u, 0x3f808000u,
        0x3f818000u, 0x3f807fffu, 0x3f808001u, 0x7f7f0000u, 0x7f7f7fffu, 0x7f7f8000u, 0x7f7fffffu,
        0x7f800000u, 0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu}) {
    corners.push_back(magnitude);
    corners.push_back(magnitude | 0x80000000u);
  }
  return corners;
}

// Random floats: arbitrary bits, and pairs whose sum cancels to about the smallest normal.
void AddRandomPairs(std::vector<float>* left, std::vector<float>* right) {
  uint64_t state = 1;
  for (int i = 0; i < 2'000'000; ++i) {
    const uint64_t r = SplitMix(&state);
    uint32_t a = static_cast<uint32_t>(r);
    uint32_t b = static_cast<uint32_t>(r >> 32);
    if (i % 2 == 1) {
      a = (a & 0x80ffffffu) + ((i % 3) << 23);
      b = (a ^ 0x80000000u) + (b % 64) - 32;
    }
    left->push_back(FloatOf(a));
    right->push_back(FloatOf(b));
  }
}

TEST(ElementwiseTest, AddsLikeTheTreeInEveryMode) {
  std::vector<float> left, right;
  for (const uint32_t a : Corners()) {
    for (const uint32_t b : Corners()) {
      left.push_back(FloatOf(a));
      right.push_back(FloatOf(b));
    }
  }
  AddRandomPairs(&left, &right);
  const size_t n = left.size();
  std::vector<float> expected(n), in_normal_mode(n), in_flush_mode(n);
  for (size_t i = 0; i < n; ++i) in_normal_mode[i] = TreeAddOne(left[i], right[i]);
  {
    const ScopedFlushDenormals flush;
    TreeAdd(left.data(), right.data(), n, expected.data());
    for (size_t i = 0; i < n; ++i) in_flush_mode[i] = TreeAddOne(left[i], right[i]);
  }
  size_t flushed = 0;
  for (size_t i = 0; i < n; ++i) {
    flushed += std::fpclassify(left[i] + right[i]) == FP_SUBNORMAL;
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(in_normal_mode[i]) && std::isnan(in_flush_mode[i]));
      continue;
    }
    ASSERT_EQ(BitsOf(in_normal_mode[i]), BitsOf(expected[i])) << left[i] << " + " << right[i];
    ASSERT_EQ(BitsOf(in_flush_mode[i]), BitsOf(expected[i])) << left[i] << " + " << right[i];
  }
  EXPECT_GT(flushed, 1000u) << "the inputs do not test denormals";
}

TEST(ElementwiseTest, DecodesEveryBf16AsTheCodec) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint8_t bytes[] = {static_cast<uint8_t>(code & 0xff), static_cast<uint8_t>(code >> 8)};
    float expected;
    float_reference::DecodeBf16(bytes, 1, 1, 1, 1, &expected);
    ASSERT_EQ(BitsOf(DecodeBf16One(static_cast<uint16_t>(code))), BitsOf(expected)) << code;
  }
}

TEST(ElementwiseTest, EncodesAsTheCodecAroundEveryBf16) {
  for (uint32_t code = 0; code < 65536; ++code) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const uint32_t bits = code << 16 | low;
      ASSERT_EQ(EncodeBf16One(FloatOf(bits)), float_reference::RoundToBf16(bits)) << bits;
    }
  }
}

TEST(ElementwiseTest, EncodesRandomFloatsAsTheCodec) {
  uint64_t state = 2;
  for (int i = 0; i < 4'000'000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(SplitMix(&state) >> 32);
    ASSERT_EQ(EncodeBf16One(FloatOf(bits)), float_reference::RoundToBf16(bits)) << bits;
  }
}

}  // namespace
}  // namespace eps::elementwise
