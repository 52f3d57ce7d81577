// Compares the kernels with plain loops on every instruction set of this machine, in memory that
// ends at the last byte that may be accessed.

#include "compression/codecs/topk/kernels.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/numerics/flush_denormals.h"
#include "base/testing/guarded_memory.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps::topk_kernels {
namespace {

// Returns the random bits of a finite float, a third of them special or denormal.
float AnyFinite(TestRandom* random) {
  uint32_t bits = random->Next();
  if (bits % 6 == 0) bits = SpecialBits()[random->Next() % SpecialBits().size()];
  if (bits % 6 == 1) bits &= 0x807fffffu;
  if ((bits & 0x7f800000u) == 0x7f800000u) bits &= 0xbfffffffu;
  return FloatOfBits(bits);
}

// A bitmap of n elements and the values of the present ones, each in its own memory that ends with
// its last byte.
struct World {
  World(size_t n, uint32_t percent, size_t value_bytes, TestRandom* random)
      : words(8 * ((n + 63) / 64 + 1)), before((n + 63) / 64 + 1), elements(n), present(n) {
    std::memset(words.data(), 0, words.size());
    auto* word = reinterpret_cast<uint64_t*>(words.data());
    std::vector<uint8_t> encoded;
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
      if (random->Next() % 100 >= percent) continue;
      word[i / 64] |= uint64_t{1} << (i % 64);
      const uint32_t kept = value_bytes == 2 ? 0xffff0000u : 0xffffffffu;
      const uint32_t bits = BitsOfFloat(AnyFinite(random)) & kept;
      for (size_t b = 4 - value_bytes; b < 4; ++b) {
        encoded.push_back(static_cast<uint8_t>(bits >> (8 * b)));
      }
      ++count;
      elements[i] = FloatOfBits(bits);
      present[i] = true;
    }
    values = std::make_unique<GuardedMemory>(encoded.size());
    if (!encoded.empty()) std::memcpy(values->data(), encoded.data(), encoded.size());
    EXPECT_EQ(CountBits(word, before.size(), before.data()), count);
    sparse.words = word;
    sparse.before = before.data();
    sparse.values = values->data();
    sparse.count = count;
    sparse.value_bytes = value_bytes;
  }

  GuardedMemory words;
  std::vector<uint32_t> before;
  std::unique_ptr<GuardedMemory> values;
  std::vector<float> elements;
  std::vector<bool> present;
  SparseElements sparse{};
};

constexpr uint32_t kPercents[] = {0, 1, 10, 50, 99, 100};

// Tests with values of 2 bytes, bf16, and of 4, FP32.
class OfValueBytes : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Expand, OfValueBytes, testing::Values(2, 4));

TEST_P(OfValueBytes, ReturnsEveryPieceWithinBounds) {
  OnEveryTarget([] {
    TestRandom random;
    for (const uint32_t percent : kPercents) {
      for (const size_t n : {1u, 31u, 64u, 65u, 300u, 700u}) {
        const World world(n, percent, GetParam(), &random);
        for (int round = 0; round < 60; ++round) {
          const size_t cols = 1 + random.Next() % std::min(n, kMaxCols);
          const size_t first = random.Next() % (n - cols + 1);
          GuardedMemory out(4 * cols);
          Expand(world.sparse, first, cols, 1, cols, cols, out.floats());
          for (size_t c = 0; c < cols; ++c) {
            ASSERT_EQ(BitsOfFloat(out.floats()[c]), BitsOfFloat(world.elements[first + c]))
                << percent << " % of " << n << ", element " << first << " + " << c;
          }
        }
      }
    }
  });
}

TEST_P(OfValueBytes, FindsTheValuesOfStridedRows) {
  OnEveryTarget([] {
    TestRandom random;
    for (const size_t stride : {40u, 64u, 128u, 150u}) {
      constexpr size_t kRows = 7, kCols = 37, kLd = 41;
      const World world(kRows * stride, 30, GetParam(), &random);
      std::vector<float> out(kRows * kLd, 77.0f);
      Expand(world.sparse, 3, stride, kRows, kCols, kLd, out.data());
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t c = 0; c < kLd; ++c) {
          const float expected = c < kCols ? world.elements[3 + r * stride + c] : 77.0f;
          ASSERT_EQ(BitsOfFloat(out[r * kLd + c]), BitsOfFloat(expected)) << r << " " << c;
        }
      }
    }
  });
}

// Returns the scalar sum in the same mode; a function of its own, so that it is not moved out of
// it.
__attribute__((noinline)) float FlushedSum(float a, float b) {
  ScopedFlushDenormals flush;
  volatile float x = a;
  volatile float y = b;
  volatile float sum = x + y;
  return sum;
}

TEST_P(OfValueBytes, AddsPlusZeroForAbsentElements) {
  OnEveryTarget([] {
    TestRandom random;
    for (const uint32_t percent : kPercents) {
      const World world(400, percent, GetParam(), &random);
      for (int round = 0; round < 30; ++round) {
        const size_t cols = 1 + random.Next() % kMaxCols;
        const size_t first = random.Next() % (400 - cols + 1);
        std::vector<float> before(cols);
        for (float& value : before) value = random.Next() % 4 == 0 ? -0.0f : AnyFinite(&random);
        GuardedMemory out(4 * cols);
        std::memcpy(out.data(), before.data(), 4 * cols);
        ExpandAdd(world.sparse, first, cols, 1, cols, cols, out.floats());
        for (size_t c = 0; c < cols; ++c) {
          const float sum = FlushedSum(before[c], world.elements[first + c]);
          ASSERT_EQ(BitsOfFloat(out.floats()[c]), BitsOfFloat(sum)) << first << " + " << c;
        }
      }
    }
  });
}

TEST(Collect, ListsElementsThatReachTheThreshold) {
  OnEveryTarget([] {
    TestRandom random;
    for (size_t n = 0; n <= 150; ++n) {
      GuardedMemory x(4 * n);
      for (size_t i = 0; i < n; ++i) {
        x.floats()[i] = FloatOfBits(SpecialBits()[random.Next() % SpecialBits().size()]);
      }
      for (const uint32_t threshold : {1u, 0x00800000u, 0x3f808000u, 0x7f800000u, kNanKey}) {
        std::vector<uint32_t> expected;
        for (uint32_t i = 0; i < n; ++i) {
          if (KeyOfBits(BitsOfFloat(x.floats()[i])) >= threshold) expected.push_back(i);
        }
        for (const size_t limit : {size_t{0}, size_t{1}, n / 3, n, n + 20}) {
          GuardedMemory out(4 * (limit + kCollectSlack));
          auto* numbers = reinterpret_cast<uint32_t*>(out.data());
          const size_t found = CollectAtLeast(x.floats(), n, threshold, limit, numbers);
          ASSERT_EQ(found, std::min(limit, expected.size())) << n << " " << limit;
          for (size_t i = 0; i < found; ++i) ASSERT_EQ(numbers[i], expected[i]) << n;
        }
      }
    }
  });
}

TEST(Rows, AreCopiedAndAddedWithinBounds) {
  OnEveryTarget([] {
    TestRandom random;
    for (size_t cols = 1; cols <= 70; ++cols) {
      constexpr size_t kRows = 3;
      const size_t ld = cols + 2;
      GuardedMemory in(4 * ((kRows - 1) * ld + cols));
      GuardedMemory sum(in.size());
      GuardedMemory copy(in.size());
      for (size_t i = 0; i < in.size() / 4; ++i) {
        in.floats()[i] = AnyFinite(&random);
        sum.floats()[i] = AnyFinite(&random);
        copy.floats()[i] = 77.0f;
      }
      const std::vector<float> before(sum.floats(), sum.floats() + sum.size() / 4);
      CopyRows(in.floats(), ld, kRows, cols, ld, copy.floats());
      AddRows(in.floats(), ld, kRows, cols, ld, sum.floats());
      for (size_t i = 0; i < in.size() / 4; ++i) {
        const bool inside = i % ld < cols;
        ASSERT_EQ(BitsOfFloat(copy.floats()[i]), BitsOfFloat(inside ? in.floats()[i] : 77.0f));
        ASSERT_EQ(BitsOfFloat(sum.floats()[i]),
                  BitsOfFloat(inside ? FlushedSum(in.floats()[i], before[i]) : before[i]));
      }
    }
  });
}

TEST(Encode, SubtractsTheRoundedValues) {
  const std::vector<uint32_t> indexes = {0, 2, 3, 4, 5};
  // An exact value, one that is not selected, a tie, one with a denormal remainder, and infinity.
  const std::vector<uint32_t> bits = {0x3f800000, 0x40000000, 0x3f818001,
                                      0x3f808000, 0x00800001, 0x7f7fffff};
  const std::vector<uint16_t> codes = {0x3f80, 0x3f82, 0x3f80, 0x0080, 0x7f80};
  const std::vector<uint32_t> rest = {0x00000000, 0x40000000, 0xbb7ffe00,
                                      0x3b800000, 0x00000000, 0xff800000};
  OnEveryTarget([&] {
    std::vector<float> x;
    for (const uint32_t b : bits) x.push_back(FloatOfBits(b));
    std::vector<uint8_t> values(2 * indexes.size());
    EncodeChosen(x.data(), indexes.data(), indexes.size(), 2, values.data());
    EXPECT_EQ(std::memcmp(values.data(), codes.data(), values.size()), 0);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(BitsOfFloat(x[i]), bits[i]);
    values.assign(values.size(), 0);
    EncodeAndSubtractChosen(x.data(), indexes.data(), indexes.size(), 2, values.data());
    EXPECT_EQ(std::memcmp(values.data(), codes.data(), values.size()), 0);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(BitsOfFloat(x[i]), rest[i]) << i;
  });
}

TEST(Encode, LeavesNothingOfFp32Values) {
  OnEveryTarget([] {
    TestRandom random;
    constexpr size_t kN = 300;
    std::vector<float> before(kN);
    for (float& value : before) value = AnyFinite(&random);
    std::vector<uint32_t> indexes;
    for (uint32_t i = 0; i < kN; i += 1 + random.Next() % 5) indexes.push_back(i);
    for (const bool subtract : {false, true}) {
      std::vector<float> x = before;
      GuardedMemory values(4 * indexes.size());
      const auto encode = [&](auto* function) {
        function(x.data(), indexes.data(), indexes.size(), 4, values.data());
      };
      subtract ? encode(EncodeAndSubtractChosen) : encode(EncodeChosen);
      std::vector<float> expected = before;
      for (size_t i = 0; i < indexes.size(); ++i) {
        const uint32_t at = indexes[i];
        ASSERT_EQ(BitsOfFloat(values.floats()[i]), BitsOfFloat(before[at])) << at;
        if (subtract) expected[at] = 0.0f;
      }
      ASSERT_EQ(std::memcmp(x.data(), expected.data(), 4 * kN), 0);
    }
  });
}

}  // namespace
}  // namespace eps::topk_kernels
