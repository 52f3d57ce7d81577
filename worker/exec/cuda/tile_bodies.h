#ifndef EPS_WORKER_EXEC_CUDA_TILE_BODIES_H_
#define EPS_WORKER_EXEC_CUDA_TILE_BODIES_H_

// Kernels (grid.h) of the block codecs, with a thread block per tile. `Codec` is one of
// codec_arithmetic.h. docs/formats/codecs.md, "Tiles of block codecs", defines the place of each
// byte.

#include "worker/exec/cuda/codec_arithmetic.h"
#include "worker/exec/cuda/grid.h"

namespace eps::grid {

constexpr uint32_t kTileRows = 32;
constexpr uint32_t kTileCols = 128;
constexpr uint32_t kGroup = 16;  // codes that are packed together

// One encoded tile: offsets from its first byte, which holds the first scale.
struct TileLayout {
  uint32_t blocks_across;
  uint32_t blocks;
  uint32_t codes;
  uint32_t row_bytes;  // of codes
  uint32_t bytes;
};

template <class Codec>
EPS_HOST_DEVICE constexpr TileLayout LayOut(bool column, uint32_t rows, uint32_t cols) {
  TileLayout tile = {};
  tile.blocks_across = column ? cols : (cols + Codec::kBlock - 1) / Codec::kBlock;
  tile.blocks = tile.blocks_across * (column ? (rows + Codec::kBlock - 1) / Codec::kBlock : rows);
  tile.codes = tile.blocks * (Codec::kMicro ? 2 : 1);
  tile.row_bytes = (cols + kGroup - 1) / kGroup * 2 * Codec::kCodeBits;
  tile.bytes = tile.codes + rows * tile.row_bytes;
  return tile;
}

template <class Codec>
EPS_HOST_DEVICE uint32_t BlockOf(const TileLayout& tile, bool column, uint32_t row, uint32_t col) {
  return column ? row / Codec::kBlock * tile.blocks_across + col
                : row * tile.blocks_across + col / Codec::kBlock;
}

// Returns the bytes of `rows` rows of a segment, with tiles next to each other.
template <class Codec>
EPS_HOST_DEVICE uint64_t BandBytes(bool column, uint32_t rows, uint32_t cols) {
  uint64_t bytes = uint64_t{cols / kTileCols} * LayOut<Codec>(column, rows, kTileCols).bytes;
  if (cols % kTileCols != 0) bytes += LayOut<Codec>(column, rows, cols % kTileCols).bytes;
  return bytes;
}

// One segment of a chunk and its place.
struct TileSegment {
  uint64_t element;  // index of its first element in the chunk
  uint64_t byte;
  uint32_t first_tile;  // index of its first tile in the launch
  uint32_t rows;
  uint32_t cols;
};

// Some segments of a chunk: as many as fit into a kernel's arguments.
struct TileSegments {
  static constexpr uint32_t kMax = 64;
  uint32_t count;
  bool column;
  TileSegment segments[kMax];
};

// The tile of one thread block.
struct TilePlace {
  uint64_t element;
  uint64_t byte;
  uint32_t stride;  // elements from row to row
  uint32_t rows;
  uint32_t cols;
};

template <class Codec>
EPS_HOST_DEVICE TilePlace PlaceOf(const TileSegments& all, uint32_t block) {
  uint32_t low = 0;
  for (uint32_t high = all.count; high - low > 1;) {
    const uint32_t middle = (low + high) / 2;
    if (all.segments[middle].first_tile <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const TileSegment& s = all.segments[low];
  const uint32_t tiles_across = (s.cols + kTileCols - 1) / kTileCols;
  const uint32_t band = (block - s.first_tile) / tiles_across;
  const uint32_t row = band * kTileRows;
  const uint32_t col = (block - s.first_tile) % tiles_across * kTileCols;
  TilePlace place;
  place.stride = s.cols;
  place.rows = s.rows - row < kTileRows ? s.rows - row : kTileRows;
  place.cols = s.cols - col < kTileCols ? s.cols - col : kTileCols;
  place.element = s.element + uint64_t{row} * s.cols + col;
  // Earlier tiles of its band have the full width, earlier bands the full height.
  place.byte = s.byte + band * BandBytes<Codec>(all.column, kTileRows, s.cols) +
               uint64_t{col / kTileCols} * LayOut<Codec>(all.column, place.rows, kTileCols).bytes;
  return place;
}

// The bytes of a tile, at the same alignment as in the chunk.
template <class Codec>
struct alignas(4) TileBytes {
  static constexpr uint32_t kMax = LayOut<Codec>(false, kTileRows, kTileCols).bytes;
  static_assert(LayOut<Codec>(true, kTileRows, kTileCols).bytes <= kMax);
  uint8_t bytes[kMax + 4];
};

template <class Codec>
EPS_HOST_DEVICE uint32_t CodeAt(const uint8_t* row, uint32_t col) {
  const uint8_t* const group = row + col / kGroup * (2 * Codec::kCodeBits);
  const uint32_t bit = col % kGroup * Codec::kCodeBits;
  uint32_t bits = group[bit / 8];
  if (bit % 8 + Codec::kCodeBits > 8) bits |= static_cast<uint32_t>(group[bit / 8 + 1]) << 8;
  return bits >> bit % 8 & ((1u << Codec::kCodeBits) - 1);
}

// Returns the microexponent of an element's pair from the block's micro byte.
template <class Codec>
EPS_HOST_DEVICE uint32_t MicroexponentOf(const uint8_t* tile, const TileLayout& layout,
                                         uint32_t block, bool column, uint32_t row, uint32_t col) {
  if (!Codec::kMicro) return 0;
  return tile[layout.blocks + block] >> (column ? row : col) % Codec::kBlock / 2 & 1u;
}

// Decodes one tile to floats, or to bfloat16 if Element is uint16_t.
template <class Codec, class Element>
struct DecodeTilesBody {
  // The arguments of a launch; `where` lists the tiles.
  struct Args {
    const uint8_t* in;
    Element* out;
    TileSegments where;
  };
  using Shared = TileBytes<Codec>;
  static constexpr int kPhases = 2;

  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t block,
                                  uint32_t thread) {
    const bool column = args.where.column;
    const TilePlace place = PlaceOf<Codec>(args.where, block);
    const TileLayout layout = LayOut<Codec>(column, place.rows, place.cols);
    const uint8_t* const in = args.in + place.byte;
    uint8_t* const tile = shared->bytes + MisalignmentOf(in);
    if (phase == 0) {
      CopyTogether(in, layout.bytes, tile, thread);
      return;
    }
    for (uint32_t i = thread; i < place.rows * kTileCols; i += kThreads) {
      const uint32_t row = i / kTileCols;
      const uint32_t col = i % kTileCols;
      if (col >= place.cols) continue;
      const uint32_t b = BlockOf<Codec>(layout, column, row, col);
      const uint32_t code = CodeAt<Codec>(tile + layout.codes + row * layout.row_bytes, col);
      const uint32_t micro = MicroexponentOf<Codec>(tile, layout, b, column, row, col);
      elementwise::Store(elementwise::FloatOf(Codec::Value(code, tile[b], micro)),
                         &args.out[place.element + uint64_t{row} * place.stride + col]);
    }
  }
};

// Encodes one tile.
template <class Codec>
struct EncodeTilesBody {
  // The arguments of a launch; `where` lists the tiles.
  struct Args {
    const float* in;
    uint8_t* out;
    bool truncate;
    TileSegments where;
  };
  // An extra word per row spreads the columns' elements over the memory's banks.
  static constexpr uint32_t kStride = kTileCols + 1;
  // The tile, before and after encoding.
  struct Shared {
    float elements[kTileRows * kStride];
    TileBytes<Codec> bytes;
  };
  static constexpr int kPhases = 4;

  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t block,
                                  uint32_t thread) {
    const bool column = args.where.column;
    const TilePlace place = PlaceOf<Codec>(args.where, block);
    const TileLayout layout = LayOut<Codec>(column, place.rows, place.cols);
    uint8_t* const out = args.out + place.byte;
    uint8_t* const tile = shared->bytes.bytes + MisalignmentOf(out);
    if (phase == 0) {
      for (uint32_t i = thread; i < place.rows * kTileCols; i += kThreads) {
        const uint32_t row = i / kTileCols;
        const uint32_t col = i % kTileCols;
        if (col >= place.cols) continue;
        shared->elements[row * kStride + col] =
            args.in[place.element + uint64_t{row} * place.stride + col];
      }
    } else if (phase == 1) {
      for (uint32_t b = thread; b < layout.blocks; b += kThreads) {
        WriteScale(place, layout, column, b, shared->elements, tile);
      }
    } else if (phase == 2) {
      const uint32_t groups = (place.cols + kGroup - 1) / kGroup;
      for (uint32_t g = thread; g < place.rows * groups; g += kThreads) {
        WriteGroup(args, place, layout, g / groups, g % groups * kGroup, shared->elements, tile);
      }
    } else {
      CopyTogether(tile, layout.bytes, out, thread);
    }
  }

 private:
  EPS_HOST_DEVICE static void WriteScale(const TilePlace& place, const TileLayout& layout,
                                         bool column, uint32_t block, const float* elements,
                                         uint8_t* tile) {
    const uint32_t major = block / layout.blocks_across;
    const uint32_t minor = block % layout.blocks_across;
    const uint32_t row = column ? major * Codec::kBlock : major;
    const uint32_t col = column ? minor : minor * Codec::kBlock;
    const uint32_t rest = column ? place.rows - row : place.cols - col;
    const codec_arithmetic::BlockScale scale =
        Codec::Scale(elements + row * kStride + col, column ? kStride : 1,
                     rest < Codec::kBlock ? rest : Codec::kBlock);
    tile[block] = static_cast<uint8_t>(scale.scale);
    if (Codec::kMicro) tile[layout.blocks + block] = static_cast<uint8_t>(scale.micro);
  }

  EPS_HOST_DEVICE static void WriteGroup(const Args& args, const TilePlace& place,
                                         const TileLayout& layout, uint32_t row, uint32_t first,
                                         const float* elements, uint8_t* tile) {
    uint8_t* to =
        tile + layout.codes + row * layout.row_bytes + first / kGroup * (2 * Codec::kCodeBits);
    uint32_t bits = 0;
    uint32_t count = 0;
    for (uint32_t col = first; col < first + kGroup; ++col) {
      uint32_t code = 0;
      if (col < place.cols) {
        const bool column = args.where.column;
        const uint32_t b = BlockOf<Codec>(layout, column, row, col);
        code =
            Codec::Code(elementwise::BitsOf(elements[row * kStride + col]), tile[b],
                        MicroexponentOf<Codec>(tile, layout, b, column, row, col), args.truncate);
      }
      bits |= code << count;
      for (count += Codec::kCodeBits; count >= 8; count -= 8) {
        *to++ = static_cast<uint8_t>(bits & 255u);
        bits >>= 8;
      }
    }
  }
};

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_TILE_BODIES_H_
