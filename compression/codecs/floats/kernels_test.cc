// Compares the kernels with the scalar reference on every instruction set of this machine.

#include "compression/codecs/floats/kernels.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/testing/guarded_memory.h"
#include "compression/codecs/floats/reference.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr size_t kMaxLength = 150;

// Returns `n` elements of `bytes` bytes each: a quarter are special values, the others random bits.
std::string AnyBits(size_t n, size_t bytes, TestRandom* random) {
  std::string out(n * bytes, '\0');
  for (size_t i = 0; i < n; ++i) {
    uint32_t word = random->Next();
    if (word % 4 == 0) word = SpecialBits()[random->Next() % SpecialBits().size()];
    if (bytes == 2) word >>= 16;
    std::memcpy(&out[i * bytes], &word, bytes);
  }
  return out;
}

// Expects equal bits or two NaNs: which NaN a sum of two NaNs gives depends on the compiler's
// choice of operand.
void ExpectSame(const std::vector<float>& expected, const float* found, const std::string& what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(found[i])) continue;
    ASSERT_EQ(BitsOfFloat(expected[i]), BitsOfFloat(found[i])) << what << ", element " << i;
  }
}

using Decode = void (*)(const uint8_t*, size_t, size_t, size_t, size_t, float*);

void CheckDecode(size_t bytes, Decode reference, Decode kernel) {
  TestRandom random;
  for (size_t n = 0; n <= kMaxLength; ++n) {
    const std::string encoded = AnyBits(n, bytes, &random);
    const std::string before = AnyBits(n, 4, &random);
    GuardedMemory in(encoded.size());
    GuardedMemory out(4 * n);
    std::memcpy(in.data(), encoded.data(), encoded.size());
    std::vector<float> expected(n);
    if (n > 0) std::memcpy(expected.data(), before.data(), before.size());
    std::memcpy(out.data(), before.data(), before.size());
    reference(in.data(), n, 1, n, n, expected.data());
    kernel(in.data(), n, 1, n, n, out.floats());
    ExpectSame(expected, out.floats(), "length " + std::to_string(n));
  }
}

TEST(CodecKernels, DecodeMatchesTheReferenceWithinBounds) {
  OnEveryTarget([] {
    CheckDecode(4, float_reference::DecodeFp32, float_kernels::DecodeFp32);
    CheckDecode(2, float_reference::DecodeBf16, float_kernels::DecodeBf16);
  });
}

TEST(CodecKernels, AccumulateTreatsDenormalsAsZeros) {
  OnEveryTarget([] {
    CheckDecode(4, float_reference::AccumulateFp32, float_kernels::AccumulateFp32);
    CheckDecode(2, float_reference::AccumulateBf16, float_kernels::AccumulateBf16);
    float sum = FloatOfBits(0x00000003);
    const uint32_t denormal = 0x00400000;
    float_kernels::AccumulateFp32(reinterpret_cast<const uint8_t*>(&denormal), 1, 1, 1, 1, &sum);
    EXPECT_EQ(BitsOfFloat(sum), 0u);
  });
}

TEST(CodecKernels, DecodeStridedRowsFromAnyAlignment) {
  constexpr size_t kRows = 3, kCols = 37, kInLd = 41, kLd = 50;
  OnEveryTarget([] {
    TestRandom random;
    for (size_t shift = 0; shift < 4; ++shift) {
      for (const bool fp32 : {true, false}) {
        const std::string encoded = AnyBits(kRows * kInLd + 1, 4, &random);
        const uint8_t* in = reinterpret_cast<const uint8_t*>(encoded.data()) + shift;
        std::vector<float> expected(kRows * kLd, 1.0f);
        std::vector<float> found = expected;
        const auto reference = fp32 ? float_reference::DecodeFp32 : float_reference::DecodeBf16;
        const auto kernel = fp32 ? float_kernels::DecodeFp32 : float_kernels::DecodeBf16;
        reference(in, kInLd, kRows, kCols, kLd, expected.data());
        kernel(in, kInLd, kRows, kCols, kLd, found.data());
        ExpectSame(expected, found.data(), "shift " + std::to_string(shift));
      }
    }
  });
}

TEST(CodecKernels, EncodeBf16MatchesReferenceInBounds) {
  OnEveryTarget([] {
    TestRandom random;
    for (size_t n = 0; n <= kMaxLength; ++n) {
      const std::string values = AnyBits(n, 4, &random);
      GuardedMemory in(4 * n);
      GuardedMemory out(2 * n);
      std::memcpy(in.data(), values.data(), values.size());
      std::string expected(2 * n, '\0');
      float_reference::EncodeBf16(in.floats(), n, 1, n, n,
                                  reinterpret_cast<uint8_t*>(&expected[0]));
      float_kernels::EncodeBf16(in.floats(), n, 1, n, n, n % 2 == 0, out.data());
      ASSERT_EQ(std::memcmp(expected.data(), out.data(), out.size()), 0) << "length " << n;
    }
  });
}

TEST(CodecKernels, EncodeLeavesGapsBetweenRows) {
  OnEveryTarget([] {
    TestRandom random;
    for (int round = 0; round < 300; ++round) {
      const size_t rows = 1 + random.Next() % 5;
      const size_t cols = 1 + random.Next() % 300;
      const size_t out_ld = round % 3 == 0 ? (cols + 64) / 64 * 64 : cols + random.Next() % 70;
      const size_t elements = (rows - 1) * out_ld + cols;
      const std::string values = AnyBits(rows * cols, 4, &random);
      GuardedMemory in(values.size());
      std::memcpy(in.data(), values.data(), values.size());
      GuardedMemory out(2 * elements);
      std::string expected(2 * elements, 'u');
      std::memcpy(out.data(), expected.data(), expected.size());
      float_reference::EncodeBf16(in.floats(), cols, rows, cols, out_ld,
                                  reinterpret_cast<uint8_t*>(&expected[0]));
      float_kernels::EncodeBf16(in.floats(), cols, rows, cols, out_ld, true, out.data());
      ASSERT_EQ(std::memcmp(expected.data(), out.data(), out.size()), 0)
          << rows << " x " << cols << ", " << out_ld << " apart";
    }
  });
}

// Stores past the caches need whole aligned lines; everything before and after is stored otherwise.
TEST(CodecKernels, EncodePastCachesAtEveryAddress) {
  OnEveryTarget([] {
    TestRandom random;
    const std::string values = AnyBits(170, 4, &random);
    GuardedMemory out(4 * 170 + 130);
    for (size_t shift = 0; shift < 130; ++shift) {
      const size_t n = 170 - shift % 67;
      GuardedMemory in(4 * n);
      std::memcpy(in.data(), values.data(), 4 * n);
      for (const size_t bytes : {4, 2}) {
        std::memset(out.data(), 0xa5, out.size());
        const auto encode = bytes == 4 ? float_kernels::EncodeFp32 : float_kernels::EncodeBf16;
        encode(in.floats(), n, 1, n, n, true, out.data() + shift);
        std::string expected(out.size(), '\xa5');
        uint8_t* const place = reinterpret_cast<uint8_t*>(&expected[shift]);
        if (bytes == 4) {
          std::memcpy(place, values.data(), 4 * n);
        } else {
          float_reference::EncodeBf16(in.floats(), n, 1, n, n, place);
        }
        ASSERT_EQ(std::memcmp(expected.data(), out.data(), out.size()), 0)
            << bytes << " bytes, shift " << shift;
      }
    }
  });
}

// One float per upper half and per relevant lower half: everything that rounding can depend on.
TEST(CodecKernels, EncodeBf16CoversEveryUpperHalf) {
  std::vector<uint32_t> bits;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      bits.push_back(upper << 16 | lower);
    }
  }
  std::vector<float> values(bits.size());
  std::memcpy(values.data(), bits.data(), 4 * bits.size());
  std::vector<uint16_t> found(bits.size());
  OnEveryTarget([&] {
    float_kernels::EncodeBf16(values.data(), values.size(), 1, values.size(), values.size(), false,
                              reinterpret_cast<uint8_t*>(found.data()));
    for (size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(found[i], float_reference::RoundToBf16(bits[i])) << std::hex << bits[i];
    }
  });
}

// Checks the definition of rounding with arithmetic in double: the nearer neighbour, or the even
// one.
TEST(CodecReference, RoundsToNearestBf16TiesEven) {
  TestRandom random;
  for (int i = 0; i < 200'000; ++i) {
    const uint32_t bits = random.Next();
    const double exact = FloatOfBits(bits);
    if (!std::isfinite(exact) || std::fabs(exact) >= 3.38e38) continue;
    const uint32_t down = bits & 0xffff0000u;  // towards zero
    const uint32_t up = down + 0x10000u;
    const double below = std::fabs(exact - FloatOfBits(down));
    const double above = std::fabs(FloatOfBits(up) - exact);
    const uint32_t nearest = below < above || (below == above && (down >> 16) % 2 == 0) ? down : up;
    ASSERT_EQ(float_reference::RoundToBf16(bits), nearest >> 16) << std::hex << bits;
  }
}

TEST(CodecKernels, FindTheFirstInadmissibleElementAnywhere) {
  const std::vector<uint32_t> bad = {0x58800000, 0xd8800000, 0x7f800000,
                                     0xff800000, 0x7f810000, 0xffffffff};
  OnEveryTarget([&] {
    constexpr size_t kLength = 1100;  // beyond the block of the widest vectors, with a tail
    for (size_t at = 0; at < kLength; at = at < 40 || at > kLength - 80 ? at + 1 : at + 13) {
      const uint32_t word = bad[at % bad.size()];
      std::vector<uint32_t> words(kLength, 0xd87f0000);  // barely admissible
      words[at] = word;
      words[kLength - 1] = bad[0];
      std::vector<uint16_t> halves;
      for (const uint32_t w : words) halves.push_back(static_cast<uint16_t>(w >> 16));
      EXPECT_EQ(float_kernels::FirstInadmissibleFp32(reinterpret_cast<const uint8_t*>(words.data()),
                                                     kLength),
                at);
      EXPECT_EQ(float_kernels::FirstInadmissibleBf16(
                    reinterpret_cast<const uint8_t*>(halves.data()), kLength),
                at);
    }
  });
}

TEST(CodecKernels, ScanMatchesTheReferenceWithinBounds) {
  OnEveryTarget([] {
    for (size_t n = 0; n <= 600; n = n < kMaxLength ? n + 1 : n + 29) {
      GuardedMemory words(4 * n);
      GuardedMemory halves(2 * n);
      std::memset(words.data(), 0x58, words.size());
      std::memset(halves.data(), 0x58, halves.size());
      EXPECT_EQ(float_kernels::FirstInadmissibleFp32(words.data(), n), n);
      EXPECT_EQ(float_kernels::FirstInadmissibleBf16(halves.data(), n), n);
    }
    TestRandom random;
    for (int i = 0; i < 20'000; ++i) {
      const uint32_t word = i < 30 ? SpecialBits()[i] : random.Next();
      uint8_t bytes[4];
      std::memcpy(bytes, &word, 4);
      ASSERT_EQ(float_kernels::FirstInadmissibleFp32(bytes, 1),
                float_reference::FirstInadmissibleFp32(bytes, 1));
      ASSERT_EQ(float_kernels::FirstInadmissibleFp32(bytes, 1) == 1,
                std::fabs(FloatOfBits(word)) < 1125899906842624.0f)
          << std::hex << word;
      ASSERT_EQ(float_kernels::FirstInadmissibleBf16(bytes, 2),
                float_reference::FirstInadmissibleBf16(bytes, 2));
    }
  });
}

}  // namespace
}  // namespace eps
