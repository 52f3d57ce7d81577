// Tests the packing of codes that block formats share, bit by bit on every instruction set, and the
// layout of their tiles.

#include <cstring>
#include <string>
#include <vector>

#include "base/testing/guarded_memory.h"
#include "compression/block_tiles.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/mx/block_pack_test.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// After Highway.
#include "compression/block_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace bp = block_pack::HWY_NAMESPACE;

void Pack(int bits, const uint8_t* codes, size_t groups, uint8_t* out) {
  if (bits == 3) bp::PackGroups<3>(codes, groups, out);
  if (bits == 4) bp::PackGroups<4>(codes, groups, out);
  if (bits == 5) bp::PackGroups<5>(codes, groups, out);
  if (bits == 6) bp::PackGroups<6>(codes, groups, out);
  if (bits == 8) bp::PackGroups<8>(codes, groups, out);
}

void Unpack(int bits, const uint8_t* in, size_t groups, uint8_t* codes) {
  if (bits == 3) bp::UnpackGroups<3>(in, groups, codes);
  if (bits == 4) bp::UnpackGroups<4>(in, groups, codes);
  if (bits == 5) bp::UnpackGroups<5>(in, groups, codes);
  if (bits == 6) bp::UnpackGroups<6>(in, groups, codes);
  if (bits == 8) bp::UnpackGroups<8>(in, groups, codes);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(Pack);
HWY_EXPORT(Unpack);

// Packs bit by bit, as docs/formats/codecs.md specifies.
std::string Packed(const std::vector<uint8_t>& codes, int bits) {
  std::string out(codes.size() * bits / 8, '\0');
  for (size_t i = 0; i < codes.size(); ++i) {
    for (int k = 0; k < bits; ++k) {
      const size_t bit = i * bits + k;  // groups are whole bytes, so their bits are contiguous
      if (codes[i] >> k & 1) out[bit / 8] = static_cast<char>(out[bit / 8] | 1 << bit % 8);
    }
  }
  return out;
}

TEST(BlockPack, PacksAnyNumberOfGroupsWithinBounds) {
  OnEveryTarget([] {
    TestRandom random;
    for (const int bits : {3, 4, 5, 6, 8}) {
      for (size_t groups = 0; groups <= 21; ++groups) {
        std::vector<uint8_t> codes(16 * groups);
        for (uint8_t& code : codes) code = static_cast<uint8_t>(random.Next() % (1u << bits));
        const std::string expected = Packed(codes, bits);
        ASSERT_EQ(expected.size(), groups * 2 * bits);
        GuardedMemory in(codes.size());
        GuardedMemory out(expected.size());
        if (groups > 0) std::memcpy(in.data(), codes.data(), codes.size());
        HWY_DYNAMIC_DISPATCH(Pack)(bits, in.data(), groups, out.data());
        ASSERT_EQ(std::string(reinterpret_cast<char*>(out.data()), out.size()), expected)
            << bits << " bits, " << groups << " groups";
        GuardedMemory back(codes.size());
        HWY_DYNAMIC_DISPATCH(Unpack)(bits, out.data(), groups, back.data());
        ASSERT_EQ(std::vector<uint8_t>(back.data(), back.data() + back.size()), codes)
            << bits << " bits, " << groups << " groups";
      }
    }
  });
}

// Finds the bytes of a tile by walking over all earlier tiles.
TEST(BlockTiles, AreContiguousInGridOrder) {
  Chunk chunk = RaggedChunk();
  Segment matrix;
  matrix.rows = 64;
  matrix.cols = 256;
  matrix.offset = chunk.elements;
  chunk.segments.push_back(matrix);
  chunk.elements += matrix.elements();
  for (const uint32_t block : {16u, 32u}) {
    for (const uint32_t bits : {3u, 8u}) {
      for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
        const BlockTiles tiles(chunk, {block, bits, block == 16}, axis);
        size_t at = 0;
        ForEachTile(chunk, [&](const Tile& tile) {
          EXPECT_EQ(tiles.offset(tile), at) << tile.segment << " " << tile.row << " " << tile.col;
          const size_t blocks = axis == Axis::kRow ? tile.rows * ((tile.cols + block - 1) / block)
                                                   : tile.cols * ((tile.rows + block - 1) / block);
          const BlockTile layout = tiles.layout(tile);
          EXPECT_EQ(layout.blocks(), blocks);
          EXPECT_EQ(layout.micro, blocks);
          EXPECT_EQ(layout.codes, block == 16 ? 2 * blocks : blocks);
          EXPECT_EQ(layout.bytes, layout.codes + tile.rows * ((tile.cols + 15) / 16) * 2 * bits);
          at += layout.bytes;
        });
        EXPECT_EQ(tiles.bytes(), at);
      }
    }
  }
}

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
