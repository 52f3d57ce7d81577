// Compares the kernels with the scalar reference on tiles of every shape, in memory with guarded
// ends, on every instruction set of this machine.

#include "compression/codecs/ocp_mx/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/numerics/flush_denormals.h"
#include "base/testing/guarded_memory.h"
#include "compression/block_tiles.h"
#include "compression/reference_codec.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ocp_mx_kernels::Element;
using ocp_mx_kernels::TileShape;

struct Format {
  const char* name;
  Element element;
  uint32_t bits;
};
constexpr Format kFormats[] = {
    {"mxfp8_e4m3", Element::kE4m3, 8}, {"mxfp8_e5m2", Element::kE5m2, 8},
    {"mxfp6_e2m3", Element::kE2m3, 6}, {"mxfp6_e3m2", Element::kE3m2, 6},
    {"mxfp4_e2m1", Element::kE2m1, 4}, {"mxint8", Element::kInt8, 8},
};

// Returns ordinary values, with zeros and tiny, huge and special values in some of the tiles.
std::vector<float> Values(size_t n, TestRandom* random) {
  const uint32_t kind = random->Next() % 6;
  std::vector<float> values(n);
  for (float& value : values) {
    uint32_t bits = random->Next();
    const uint32_t exponent = 110 + bits % 16;
    const uint32_t ordinary = (random->Next() & 0x807fffffu) | exponent << 23;
    switch (kind) {
      case 0:
        bits = ordinary;
        break;
      case 1:
        bits = bits % 5 == 0 ? ordinary : bits & 0x80000000u;
        break;
      case 2:
        bits = bits % 9 == 0 ? bits & 0x807fffffu : bits & 0x8fffffffu;
        break;
      case 3:
        bits = bits % 64 == 0 ? SpecialBits()[bits / 64 % SpecialBits().size()] : ordinary;
        break;
      case 4:
        bits = bits % 40 == 0 ? 0x7f000000u | bits : ordinary;
        break;
      default:
        break;  // raw
    }
    std::memcpy(&value, &bits, 4);
  }
  return values;
}

struct Case {
  Chunk chunk;
  Axis axis;
  BlockTile layout;
  std::vector<float> values;
  std::string encoded;
  std::vector<float> decoded;

  TileShape shape() const {
    return {chunk.segments[0].rows, chunk.segments[0].cols, axis == Axis::kColumn};
  }
};

std::vector<Case> Cases(const Format& format) {
  TestRandom random;
  const auto reference = NewReferenceCodec(format.name);
  EXPECT_TRUE(reference.ok()) << reference.status();
  std::vector<Case> cases;
  const auto add = [&](uint32_t rows, uint32_t cols) {
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      Case c;
      c.chunk = MatrixChunk(rows, cols);
      c.axis = axis;
      c.layout = LayOutTile({32, format.bits, false}, axis, rows, cols);
      c.values = Values(rows * cols, &random);
      c.encoded = (*reference)->Encode(c.chunk, axis, c.values.data(), nullptr);
      c.decoded.resize(c.values.size());
      (*reference)->Decode(c.chunk, axis, c.encoded, c.decoded.data());
      EXPECT_EQ(c.encoded.size(), c.layout.bytes);
      cases.push_back(c);
    }
  };
  for (uint32_t cols = 1; cols <= 128; cols += 1 + cols / 48) add(1 + cols % 3, cols);
  for (uint32_t rows = 1; rows <= 32; rows += 3) add(rows, 1 + random.Next() % 128);
  for (int i = 0; i < 6; ++i) add(32, 128);
  return cases;
}

template <class Body>
void ForEachCase(Body body) {
  for (const Format& format : kFormats) {
    for (const Case& c : Cases(format)) {
      SCOPED_TRACE(::testing::Message()
                   << format.name << ", " << c.shape().rows << " x " << c.shape().cols
                   << (c.axis == Axis::kRow ? ", row" : ", column"));
      OnEveryTarget([&] { body(format, c); });
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Kernels, EncodeMatchesTheReferenceWithinBounds) {
  ForEachCase([](const Format& format, const Case& c) {
    GuardedMemory in(4 * c.values.size());
    std::memcpy(in.data(), c.values.data(), in.size());
    GuardedMemory out(c.layout.bytes);
    for (const bool flushed : {false, true}) {
      std::memset(out.data(), 0xaa, out.size());
      uint8_t* codes = out.data() + c.layout.codes;
      if (flushed) {
        ScopedFlushDenormals flush;
        ocp_mx_kernels::Encode(format.element, c.shape(), in.floats(), c.shape().cols, out.data(),
                               codes);
      } else {
        ocp_mx_kernels::Encode(format.element, c.shape(), in.floats(), c.shape().cols, out.data(),
                               codes);
      }
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(out.data()[i], static_cast<uint8_t>(c.encoded[i])) << "byte " << i << flushed;
      }
    }
  });
}

TEST(Kernels, DecodeMatchesTheReferenceWithinBounds) {
  ForEachCase([](const Format& format, const Case& c) {
    GuardedMemory in(c.encoded.size());
    std::memcpy(in.data(), c.encoded.data(), in.size());
    GuardedMemory out(4 * c.values.size());
    for (const bool flushed : {false, true}) {
      std::memset(out.data(), 0xaa, out.size());
      const uint8_t* codes = in.data() + c.layout.codes;
      if (flushed) {
        ScopedFlushDenormals flush;
        ocp_mx_kernels::Decode(format.element, c.shape(), in.data(), codes, c.shape().cols,
                               out.floats());
      } else {
        ocp_mx_kernels::Decode(format.element, c.shape(), in.data(), codes, c.shape().cols,
                               out.floats());
      }
      ASSERT_EQ(std::memcmp(out.data(), c.decoded.data(), out.size()), 0) << flushed;
    }
  });
}

// Expects equal bits or two NaNs: which NaN a sum of two NaNs gives depends on the compiler's
// choice of operand.
TEST(Kernels, AccumulateTreatsDenormalsAsZeros) {
  ForEachCase([](const Format& format, const Case& c) {
    TestRandom random(c.values.size());
    const std::vector<float> before = Values(c.values.size(), &random);
    std::vector<float> expected(before.size());
    {
      ScopedFlushDenormals flush;
      for (size_t i = 0; i < before.size(); ++i) expected[i] = before[i] + c.decoded[i];
    }
    GuardedMemory in(c.encoded.size());
    std::memcpy(in.data(), c.encoded.data(), in.size());
    GuardedMemory out(4 * before.size());
    std::memcpy(out.data(), before.data(), out.size());
    ocp_mx_kernels::Accumulate(format.element, c.shape(), in.data(), in.data() + c.layout.codes,
                               c.shape().cols, out.floats());
    for (size_t i = 0; i < before.size(); ++i) {
      if (std::isnan(expected[i]) && std::isnan(out.floats()[i])) continue;
      ASSERT_EQ(BitsOfFloat(out.floats()[i]), BitsOfFloat(expected[i])) << i;
    }
  });
}

// Rows of five tiles at every address within a cache line, because codes of 8 bits are stored as
// whole lines where they are aligned; and rows of a narrower tile.
TEST(Kernels, RowsMatchTheReferenceAtEveryAddress) {
  constexpr uint32_t kRows = 3;
  for (const Format& format : kFormats) {
    const auto reference = NewReferenceCodec(format.name);
    ASSERT_TRUE(reference.ok()) << reference.status();
    TestRandom random;
    for (const uint32_t cols : {640u, 77u}) {
      const uint32_t of_tile = std::min(cols, 128u);
      const BlockTile layout = LayOutTile({32, format.bits, false}, Axis::kRow, kRows, of_tile);
      const size_t row_bytes = (of_tile + 15) / 16 * 2 * format.bits;
      for (size_t shift = 0; shift < 64; ++shift) {
        const std::vector<float> values = Values(kRows * cols, &random);
        const std::string encoded =
            (*reference)->Encode(MatrixChunk(kRows, cols), Axis::kRow, values.data(), nullptr);
        std::string expected(encoded.size() + 128, '\xa5');
        std::string found = expected;
        expected.replace(shift, encoded.size(), encoded);
        OnEveryTarget([&] {
          uint8_t* const scales = reinterpret_cast<uint8_t*>(&found[shift]);
          for (size_t r = 0; r < kRows; ++r) {
            ocp_mx_kernels::EncodeRow(format.element, values.data() + r * cols, cols,
                                      scales + r * layout.blocks_across,
                                      scales + layout.codes + r * row_bytes, layout.bytes);
          }
          ASSERT_TRUE(found == expected) << format.name << ", " << cols << ", shift " << shift;
        });
      }
    }
  }
}

// The gaps between rows are neither read as elements nor written.
TEST(Kernels, StayInTheTileOfWiderMatrices) {
  constexpr size_t kRows = 32, kCols = 77, kLd = 131;
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      const TileShape shape{kRows, kCols, axis == Axis::kColumn};
      const BlockTile layout = LayOutTile({32, format.bits, false}, axis, kRows, kCols);
      TestRandom random;
      std::vector<float> dense(kRows * kCols);
      for (float& value : dense) value = static_cast<float>(random.Next() % 1000) - 500.0f;
      std::vector<float> wide(kRows * kLd, 1e30f);
      for (size_t i = 0; i < dense.size(); ++i) wide[i / kCols * kLd + i % kCols] = dense[i];
      OnEveryTarget([&] {
        std::vector<uint8_t> expected(layout.bytes), found(layout.bytes);
        ocp_mx_kernels::Encode(format.element, shape, dense.data(), kCols, expected.data(),
                               expected.data() + layout.codes);
        ocp_mx_kernels::Encode(format.element, shape, wide.data(), kLd, found.data(),
                               found.data() + layout.codes);
        ASSERT_EQ(found, expected);
        std::vector<float> narrow(dense.size()), out(kRows * kLd, 5.0f);
        ocp_mx_kernels::Decode(format.element, shape, found.data(), found.data() + layout.codes,
                               kCols, narrow.data());
        ocp_mx_kernels::Decode(format.element, shape, found.data(), found.data() + layout.codes,
                               kLd, out.data());
        for (size_t i = 0; i < out.size(); ++i) {
          const float value = i % kLd < kCols ? narrow[i / kLd * kCols + i % kLd] : 5.0f;
          ASSERT_EQ(out[i], value) << i;
        }
      });
    }
  }
}

TEST(Kernels, FindAByteAboveALimitAnywhere) {
  OnEveryTarget([] {
    for (size_t n = 0; n <= 300; n = n < 140 ? n + 1 : n + 31) {
      GuardedMemory in(n);
      std::memset(in.data(), 0xfe, n);
      EXPECT_FALSE(ocp_mx_kernels::AnyAbove(in.data(), n, 0x7f, 0x7e)) << n;
      EXPECT_EQ(ocp_mx_kernels::AnyAbove(in.data(), n, 0xff, 0x7e), n > 0) << n;
      for (size_t at = 0; at < n; at += 1 + n / 40) {
        in.data()[at] = 0x7f;
        EXPECT_TRUE(ocp_mx_kernels::AnyAbove(in.data(), n, 0x7f, 0x7e)) << n << " " << at;
        in.data()[at] = 0xfe;
      }
    }
  });
}

}  // namespace
}  // namespace eps
