// Compares the kernels with the scalar reference: every shape of tile including ragged edges, every
// scale, both modes for denormals, on every instruction set of this machine.

#include "compression/codecs/mx/kernels.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/numerics/flush_denormals.h"
#include "base/testing/guarded_memory.h"
#include "compression/block_tiles.h"
#include "compression/reference_codec.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

struct Variant {
  std::string name;
  mx_kernels::Format format;
  uint32_t magnitude_bits;
  bool truncate;
};

const std::vector<Variant>& Variants() {
  static const auto* const variants =
      new std::vector<Variant>{{"mx9", mx_kernels::Format::kMx9, 7, false},
                               {"mx9:truncate", mx_kernels::Format::kMx9, 7, true},
                               {"mx6", mx_kernels::Format::kMx6, 4, false},
                               {"mx6:truncate", mx_kernels::Format::kMx6, 4, true},
                               {"mx4", mx_kernels::Format::kMx4, 2, false},
                               {"mx4:truncate", mx_kernels::Format::kMx4, 2, true}};
  return *variants;
}

struct Shape {
  uint32_t rows;
  uint32_t cols;
};
constexpr Shape kShapes[] = {{1, 1},   {1, 2},   {1, 16},  {2, 17},  {3, 63},   {16, 16},
                             {17, 64}, {15, 65}, {16, 80}, {31, 96}, {32, 112}, {32, 128}};
constexpr Axis kAxes[] = {Axis::kRow, Axis::kColumn};

template <class Byte>
mx_kernels::Planes<Byte> PlanesAt(Byte* bytes, const BlockTile& layout) {
  return {bytes, bytes + layout.micro, bytes + layout.codes};
}

// Returns values with exponents near one that changes from row to row, and some special values.
std::vector<uint32_t> AnyValues(size_t n, size_t run, TestRandom* random) {
  std::vector<uint32_t> bits(n);
  uint32_t exponent = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i % run == 0) exponent = random->Next() % 256;
    const uint32_t below = random->Next() % 10;
    const uint32_t own = exponent > below ? exponent - below : 0;
    bits[i] = (random->Next() & 0x807fffff) | own << 23;
    if (random->Next() % 4 == 0) bits[i] &= 0xffff0000;  // ties
    if (random->Next() % 8 == 0) bits[i] &= 0x80000000;
    if (random->Next() % 300 == 0) bits[i] = SpecialBits()[random->Next() % SpecialBits().size()];
  }
  return bits;
}

// Rows of five tiles at every address within a cache line: codes of mx9 are stored as whole lines
// where they are aligned.
TEST(MxKernels, RowsMatchTheReferenceAtEveryAddress) {
  constexpr uint32_t kRows = 3, kCols = 640;
  const Chunk chunk = MatrixChunk(kRows, kCols);
  for (const Variant& v : Variants()) {
    TestRandom random;
    const auto reference = NewReferenceCodec(v.name);
    ASSERT_TRUE(reference.ok()) << reference.status();
    const std::vector<uint32_t> bits = AnyValues(kRows * kCols, 16, &random);
    std::vector<float> values(bits.size());
    std::memcpy(values.data(), bits.data(), 4 * bits.size());
    const std::string encoded = (*reference)->Encode(chunk, Axis::kRow, values.data(), nullptr);
    std::vector<float> decoded(values.size());
    (*reference)->Decode(chunk, Axis::kRow, encoded, decoded.data());
    const BlockTile layout = LayOutTile({16, v.magnitude_bits + 1, true}, Axis::kRow, kRows, 128);
    ASSERT_EQ(encoded.size(), 5 * layout.bytes);
    OnEveryTarget([&] {
      for (size_t shift = 0; shift < 64; ++shift) {
        std::string expected(encoded.size() + 128, '\xa5');
        std::string found = expected;
        expected.replace(shift, encoded.size(), encoded);
        const auto planes = PlanesAt(reinterpret_cast<uint8_t*>(&found[shift]), layout);
        for (size_t r = 0; r < kRows; ++r) {
          const size_t n = 8 * r;
          const mx_kernels::Planes<uint8_t> row = {planes.scales + n, planes.micro + n,
                                                   planes.codes + n * 2 * (v.magnitude_bits + 1)};
          mx_kernels::EncodeRow(v.format, v.truncate, values.data() + r * kCols, kCols, row,
                                layout.bytes);
          std::vector<float> back(kCols);
          mx_kernels::DecodeRow(v.format, {row.scales, row.micro, row.codes}, layout.bytes, kCols,
                                back.data());
          ASSERT_EQ(std::memcmp(back.data(), decoded.data() + r * kCols, 4 * kCols), 0) << v.name;
        }
        ASSERT_TRUE(found == expected) << v.name << ", shift " << shift;
      }
    });
  }
}

TEST(MxKernels, EncodeMatchesTheReferenceWithinBounds) {
  for (const Variant& v : Variants()) {
    const auto reference = NewReferenceCodec(v.name);
    ASSERT_TRUE(reference.ok()) << reference.status();
    TestRandom random;
    for (const Shape shape : kShapes) {
      for (const Axis axis : kAxes) {
        SCOPED_TRACE(absl::StrCat(v.name, ", ", shape.rows, " x ", shape.cols,
                                  axis == Axis::kRow ? ", row" : ", column"));
        const size_t n = shape.rows * shape.cols;
        const BlockTile layout =
            LayOutTile({16, v.magnitude_bits + 1, true}, axis, shape.rows, shape.cols);
        for (const size_t run : {size_t{16}, n}) {
          const std::vector<uint32_t> bits = AnyValues(n, run, &random);
          GuardedMemory in(4 * n);
          std::memcpy(in.data(), bits.data(), 4 * n);
          const std::string expected =
              (*reference)->Encode(MatrixChunk(shape.rows, shape.cols), axis, in.floats(), nullptr);
          ASSERT_EQ(expected.size(), layout.bytes);
          OnEveryTarget([&] {
            for (const bool flush : {false, true}) {
              absl::optional<ScopedFlushDenormals> mode;
              if (flush) mode.emplace();
              GuardedMemory out(layout.bytes);
              mx_kernels::Encode(v.format, v.truncate,
                                 {shape.rows, shape.cols, axis == Axis::kColumn}, in.floats(),
                                 shape.cols, PlanesAt(out.data(), layout));
              ASSERT_TRUE(std::memcmp(out.data(), expected.data(), expected.size()) == 0)
                  << "flush " << flush;
            }
          });
        }
      }
    }
  }
}

// Arbitrary bytes are a valid encoded tile.
TEST(MxKernels, DecodeMatchesTheReferenceForAnyBytes) {
  for (const Variant& v : Variants()) {
    if (v.truncate) continue;
    const auto reference = NewReferenceCodec(v.name);
    ASSERT_TRUE(reference.ok()) << reference.status();
    TestRandom random;
    for (const Shape shape : kShapes) {
      for (const Axis axis : kAxes) {
        SCOPED_TRACE(absl::StrCat(v.name, ", ", shape.rows, " x ", shape.cols,
                                  axis == Axis::kRow ? ", row" : ", column"));
        const size_t n = shape.rows * shape.cols;
        const BlockTile layout =
            LayOutTile({16, v.magnitude_bits + 1, true}, axis, shape.rows, shape.cols);
        // All scales, the low ones, and those of ordinary values.
        for (const int scales : {0, 1, 2}) {
          GuardedMemory in(layout.bytes);
          for (size_t i = 0; i < layout.bytes; ++i) {
            const uint32_t byte = random.Next() >> 8 & 255;
            const bool is_scale = i < layout.micro;
            in.data()[i] = static_cast<uint8_t>(!is_scale || scales == 0 ? byte
                                                : scales == 1            ? byte % 12
                                                                         : 90 + byte % 60);
          }
          std::vector<float> expected(n);
          (*reference)
              ->Decode(MatrixChunk(shape.rows, shape.cols), axis,
                       {reinterpret_cast<const char*>(in.data()), in.size()}, expected.data());
          const mx_kernels::Tile tile{shape.rows, shape.cols, axis == Axis::kColumn};
          const auto planes = PlanesAt(const_cast<const uint8_t*>(in.data()), layout);
          OnEveryTarget([&] {
            for (const bool flush : {false, true}) {
              absl::optional<ScopedFlushDenormals> mode;
              if (flush) mode.emplace();
              GuardedMemory out(4 * n);
              mx_kernels::Decode(v.format, tile, planes, shape.cols, out.floats());
              ASSERT_TRUE(std::memcmp(out.data(), expected.data(), 4 * n) == 0)
                  << "flush " << flush << ", scales " << scales;
              // Sums flush denormals in any mode: compare them with sums of a flushing thread.
              for (size_t i = 0; i < n; ++i) {
                out.floats()[i] = FloatOfBits(i % 3 == 0 ? 0x80000003 : 0x01900000);
              }
              mx_kernels::Accumulate(v.format, tile, planes, shape.cols, out.floats());
              ScopedFlushDenormals flushing;
              for (size_t i = 0; i < n; ++i) {
                volatile float sum = FloatOfBits(i % 3 == 0 ? 0x80000003 : 0x01900000);
                sum = sum + expected[i];
                const uint32_t found = BitsOfFloat(out.floats()[i]);
                if ((found & 0x7fffffff) > 0x7f800000) {
                  ASSERT_EQ(BitsOfFloat(expected[i]), 0x7fc00000u) << i;
                } else {
                  ASSERT_EQ(found, BitsOfFloat(sum)) << i;
                }
              }
            }
          });
        }
      }
    }
  }
}

TEST(MxKernels, FindTheFirstLargeScale) {
  OnEveryTarget([] {
    for (size_t n = 0; n <= 150; ++n) {
      GuardedMemory scales(n);
      std::memset(scales.data(), 176, n);
      ASSERT_EQ(mx_kernels::FirstScaleFrom(scales.data(), n, 177), n);
      for (size_t at = 0; at < n; ++at) {
        scales.data()[at] = at % 2 == 0 ? 177 : 255;
        scales.data()[n - 1] = 200;
        ASSERT_EQ(mx_kernels::FirstScaleFrom(scales.data(), n, 177), at);
        scales.data()[at] = scales.data()[n - 1] = 176;
      }
    }
  });
}

}  // namespace
}  // namespace eps
