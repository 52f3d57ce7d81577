// Checks the contract of codecs for every registered codec: the reference's bytes on every
// instruction set, random access, idempotence, sizes, and robustness against untrusted bytes.
// EPS_SHORT=1 in the environment damages fewer of them.

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/numerics/flush_denormals.h"
#include "compression/codec.h"
#include "compression/reference_codec.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

struct Case {
  std::string name;
  Chunk chunk;
  std::vector<float> values;
};

std::string BytesOf(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

// Returns heavy-tailed values, like weights and gradients: a roughly normal value times a power of
// two.
std::vector<float> HeavyTailed(uint64_t n, uint64_t seed) {
  TestRandom random(seed);
  std::vector<float> values(n);
  for (float& value : values) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.Next() / 4294967296.0;
    value = static_cast<float>(std::ldexp(sum, static_cast<int>(random.Next() % 5) - 8));
  }
  return values;
}

std::vector<Case> Cases(bool finite_only) {
  std::vector<Case> cases;
  const Chunk ragged = RaggedChunk();
  cases.push_back({"heavy-tailed", ragged, HeavyTailed(ragged.elements, 1)});
  std::vector<float> sparse(ragged.elements, 0.0f);
  for (uint64_t i = 5; i < ragged.elements; i += 23) sparse[i] = 0.01f * static_cast<float>(i);
  cases.push_back({"mostly zero", ragged, sparse});
  cases.push_back({"all zero", ragged, std::vector<float>(ragged.elements, 0.0f)});
  cases.push_back({"all equal", ragged, std::vector<float>(ragged.elements, -1.5f)});
  std::vector<float> wide(ragged.elements);
  TestRandom random(3);
  for (float& value : wide) {
    value = std::ldexp(1.0f + 1e-6f * (random.Next() % 1000000),
                       static_cast<int>(random.Next() % 80) - 40);
    if (random.Next() % 2 == 0) value = -value;
  }
  cases.push_back({"forty powers of two each way", ragged, wide});
  for (const auto& [rows, cols] : std::vector<std::pair<uint32_t, uint32_t>>{{1, 1},
                                                                             {1, 15},
                                                                             {1, 16},
                                                                             {2, 17},
                                                                             {15, 33},
                                                                             {16, 128},
                                                                             {17, 129},
                                                                             {31, 31},
                                                                             {32, 128},
                                                                             {33, 127},
                                                                             {64, 256}}) {
    const Chunk chunk = MatrixChunk(rows, cols);
    cases.push_back({absl::StrCat(rows, " x ", cols), chunk, HeavyTailed(chunk.elements, rows)});
  }
  if (finite_only) return cases;
  // Special values at intervals, and raw bits.
  std::vector<float> special = HeavyTailed(ragged.elements, 5);
  for (uint64_t i = 0; i < ragged.elements; i += 37) {
    special[i] = FloatOfBits(SpecialBits()[i / 37 % SpecialBits().size()]);
  }
  cases.push_back({"special values", ragged, special});
  std::vector<float> raw(ragged.elements);
  for (float& value : raw) value = FloatOfBits(random.Next());
  cases.push_back({"raw bits", ragged, raw});
  return cases;
}

Bytes Encode(const Codec& codec, const Chunk& chunk, Axis axis, const std::vector<float>& values,
             float* residual_or_null = nullptr) {
  EncodeOptions options;
  options.axis = axis;
  options.residual_or_null = residual_or_null;
  return EncodeChunk(codec, chunk, options, values.data());
}

std::vector<float> Decode(const Codec& codec, const Chunk& chunk, Axis axis, const Bytes& bytes) {
  const auto opened = codec.Open(chunk, axis, bytes, Content::kWeights);
  EXPECT_TRUE(opened.ok()) << opened.status();
  std::vector<float> values(chunk.elements, 77.0f);
  if (opened.ok()) DecodeChunk(**opened, chunk, values.data());
  return values;
}

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  const Codec& codec() { return **FindCodec(GetParam()); }
  // Gradient codecs that omit elements are not given inadmissible values here.
  std::vector<Case> AllCases() { return Cases(/*finite_only=*/codec().traits().uses_residual); }
};

constexpr Axis kAxes[] = {Axis::kRow, Axis::kColumn};

TEST_P(Conformance, KernelsMatchTheReferenceOnEveryTarget) {
  const auto reference = NewReferenceCodec(GetParam());
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const Case& c : AllCases()) {
    for (const Axis axis : kAxes) {
      SCOPED_TRACE(absl::StrCat(c.name, axis == Axis::kRow ? ", row" : ", column"));
      const std::string expected = (*reference)->Encode(c.chunk, axis, c.values.data(), nullptr);
      std::vector<float> decoded(c.chunk.elements, 5.0f);
      (*reference)->Decode(c.chunk, axis, expected, decoded.data());
      OnEveryTarget([&] {
        const Bytes found = Encode(codec(), c.chunk, axis, c.values);
        ASSERT_TRUE(found.view() == expected);
        ASSERT_TRUE(BytesOf(Decode(codec(), c.chunk, axis, found)) == BytesOf(decoded));
      });
    }
  }
}

TEST_P(Conformance, ResidualsMatchTheReferenceOnEveryTarget) {
  if (!codec().traits().uses_residual) return;
  const auto reference = NewReferenceCodec(GetParam());
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const Case& c : AllCases()) {
    SCOPED_TRACE(c.name);
    const std::vector<float> before = HeavyTailed(c.chunk.elements, 9);
    std::vector<float> expected_residual = before;
    const std::string expected =
        (*reference)->Encode(c.chunk, Axis::kRow, c.values.data(), expected_residual.data());
    OnEveryTarget([&] {
      std::vector<float> residual = before;
      const Bytes found = Encode(codec(), c.chunk, Axis::kRow, c.values, residual.data());
      ASSERT_TRUE(found.view() == expected);
      ASSERT_TRUE(BytesOf(residual) == BytesOf(expected_residual));
      // Nothing is lost: the sent and the kept values sum to the originals.
      const std::vector<float> sent = Decode(codec(), c.chunk, Axis::kRow, found);
      ScopedFlushDenormals flush;
      for (uint64_t i = 0; i < c.chunk.elements; ++i) {
        const float sum = c.values[i] + before[i];
        ASSERT_EQ(sent[i] + residual[i], sum) << i;
      }
    });
  }
}

TEST_P(Conformance, EncodingIsIdempotent) {
  for (const Case& c : AllCases()) {
    for (const Axis axis : kAxes) {
      SCOPED_TRACE(absl::StrCat(c.name, axis == Axis::kRow ? ", row" : ", column"));
      const std::vector<float> once =
          Decode(codec(), c.chunk, axis, Encode(codec(), c.chunk, axis, c.values));
      const std::vector<float> twice =
          Decode(codec(), c.chunk, axis, Encode(codec(), c.chunk, axis, once));
      ASSERT_TRUE(BytesOf(twice) == BytesOf(once));
    }
  }
}

TEST_P(Conformance, SizesMatchTheTraits) {
  for (const Case& c : AllCases()) {
    for (const Axis axis : kAxes) {
      const Bytes bytes = Encode(codec(), c.chunk, axis, c.values);
      if (codec().traits().fixed_size) {
        EXPECT_EQ(bytes.size(), codec().MaxEncodedSize(c.chunk, axis)) << c.name;
      } else {
        EXPECT_LE(bytes.size(), codec().MaxEncodedSize(c.chunk, axis)) << c.name;
      }
    }
  }
  if (!codec().traits().fixed_size) return;
  const Chunk large = MatrixChunk(1024, 1024);
  for (const Axis axis : kAxes) {
    EXPECT_EQ(8.0 * codec().MaxEncodedSize(large, axis) / large.elements,
              codec().traits().bits_per_element);
  }
}

TEST_P(Conformance, TilesAreReadInAnyOrder) {
  const Case c = Cases(/*finite_only=*/true).front();
  for (const Axis axis : kAxes) {
    const Bytes bytes = Encode(codec(), c.chunk, axis, c.values);
    const std::vector<float> whole = Decode(codec(), c.chunk, axis, bytes);
    const auto opened = codec().Open(c.chunk, axis, bytes, Content::kGradient);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE((*opened)->bytes().view() == bytes.view());
    std::vector<Tile> tiles;
    ForEachTile(c.chunk, [&](const Tile& tile) { tiles.push_back(tile); });
    OnEveryTarget([&] {
      for (size_t i = tiles.size(); i-- > 0;) {
        const Tile& tile = tiles[i];
        const Segment& segment = c.chunk.segments[tile.segment];
        const size_t ld = tile.cols + 3;
        std::vector<float> assigned(tile.rows * ld, 8.0f);
        std::vector<float> added(tile.rows * ld, 0.125f);
        (*opened)->Read(tile, /*accumulate=*/false, ld, assigned.data());
        (*opened)->Read(tile, /*accumulate=*/true, ld, added.data());
        for (uint32_t r = 0; r < tile.rows; ++r) {
          for (size_t k = 0; k < ld; ++k) {
            const size_t at = r * ld + k;
            if (k >= tile.cols) {
              ASSERT_EQ(assigned[at], 8.0f);
              ASSERT_EQ(added[at], 0.125f);
              continue;
            }
            const float value = whole[tile.offset(segment) + uint64_t{r} * segment.cols + k];
            ASSERT_EQ(BitsOfFloat(assigned[at]), BitsOfFloat(value));
            ASSERT_EQ(added[at], 0.125f + value);
          }
        }
      }
    });
  }
}

TEST_P(Conformance, AbsentElementsAddPlusZero) {
  const Case c = Cases(/*finite_only=*/true)[2];  // all zero
  const Bytes bytes = Encode(codec(), c.chunk, Axis::kRow, c.values);
  const auto opened = codec().Open(c.chunk, Axis::kRow, bytes, Content::kGradient);
  ASSERT_TRUE(opened.ok()) << opened.status();
  Tile tile;
  tile.rows = 32;
  tile.cols = 128;
  std::vector<float> sum(32 * 128, -0.0f);
  (*opened)->Read(tile, /*accumulate=*/true, 128, sum.data());
  for (const float value : sum) ASSERT_EQ(BitsOfFloat(value), 0u);  // -0 + +0 = +0
}

TEST_P(Conformance, OtherLengthsAreRefused) {
  const Case c = Cases(/*finite_only=*/true).front();
  for (const Axis axis : kAxes) {
    const Bytes bytes = Encode(codec(), c.chunk, axis, c.values);
    for (size_t size = 0; size < bytes.size(); size += 1 + size / 7) {
      const auto opened = codec().Open(c.chunk, axis, Bytes::CopyOf(bytes.view().substr(0, size)),
                                       Content::kWeights);
      EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument) << size;
    }
    const auto longer =
        codec().Open(c.chunk, axis, Bytes::CopyOf(absl::StrCat(bytes.view(), std::string(1, '\0'))),
                     Content::kWeights);
    EXPECT_EQ(longer.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// Everything that Open accepts of untrusted bytes can be read to the end, and as a gradient it
// holds only admissible values. The address sanitizer's lane also runs this test.
TEST_P(Conformance, DamagedBytesAreRefusedOrHarmless) {
  TestRandom random(11);
  const int rounds = std::getenv("EPS_SHORT") != nullptr ? 8 : 40;
  for (const Case& c : Cases(/*finite_only=*/true)) {
    if (c.chunk.elements > 20000) continue;
    const Bytes bytes = Encode(codec(), c.chunk, Axis::kRow, c.values);
    for (int round = 0; round < rounds; ++round) {
      std::string damaged(bytes.view());
      const int flips = 1 + random.Next() % 8;
      for (int i = 0; i < flips && !damaged.empty(); ++i) {
        damaged[random.Next() %
                (round % 2 == 0 ? damaged.size() : std::min<size_t>(16, damaged.size()))] =
            static_cast<char>(random.Next());
      }
      const auto opened =
          codec().Open(c.chunk, Axis::kRow, Bytes::CopyOf(damaged), Content::kGradient);
      if (!opened.ok()) {
        EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
        EXPECT_LE(opened.status().message().size(), 1024u);
        continue;
      }
      std::vector<float> values(c.chunk.elements);
      DecodeChunk(**opened, c.chunk, values.data());
      for (const float value : values) ASSERT_LT(std::abs(value), kMaxGradient) << c.name;
    }
  }
}

TEST_P(Conformance, RefusalsLocateInadmissibleGradients) {
  if (codec().traits().uses_residual) return;  // tested in its own folder
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF, kMaxGradient, -2 * kMaxGradient}) {
    Case c = Cases(/*finite_only=*/true).front();
    c.values[3 * 200 + 150] = bad;
    const Bytes bytes = Encode(codec(), c.chunk, Axis::kRow, c.values);
    const auto opened = codec().Open(c.chunk, Axis::kRow, bytes, Content::kGradient);
    const std::vector<float> decoded = Decode(codec(), c.chunk, Axis::kRow, bytes);
    uint64_t first = 0;
    while (first < decoded.size() && std::abs(decoded[first]) < kMaxGradient) ++first;
    if (first == decoded.size()) {  // the format saturates below the limit
      EXPECT_TRUE(opened.ok()) << opened.status();
      continue;
    }
    ASSERT_FALSE(opened.ok()) << bad;
    const auto element = InadmissibleElement(opened.status());
    ASSERT_TRUE(element.has_value()) << opened.status();
    ASSERT_LT(*element, c.chunk.elements);
    EXPECT_FALSE(std::abs(decoded[*element]) < kMaxGradient);
    EXPECT_TRUE(codec().Open(c.chunk, Axis::kRow, bytes, Content::kWeights).ok());
  }
}

std::string TestName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Codecs, Conformance, ::testing::ValuesIn(CodecExamples()), TestName);

}  // namespace
}  // namespace eps
