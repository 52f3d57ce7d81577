#ifndef EPS_BASE_JOB_LAYOUT_CHUNK_MAP_H_
#define EPS_BASE_JOB_LAYOUT_CHUNK_MAP_H_

// How a job's tensors are cut into chunks, the unit of storage, reduction, update, quantization
// and placement. Boundaries are a function of the spec alone; only placement knows the servers.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "base/job/job_spec.h"

namespace eps {

inline constexpr uint32_t kPanelRows = 32;  // row panels are multiples of it (the last may be less)
inline constexpr uint32_t kTileRows = 32;
inline constexpr uint32_t kTileCols = 128;

// The part of a tensor in one chunk: `rows` whole rows, beginning with `row`.
struct Segment {
  TensorId tensor;
  uint32_t row = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
  GroupId group;
  uint64_t offset = 0;         // in elements, from the chunk's first
  uint64_t tensor_offset = 0;  // in elements, from the tensor's first

  uint64_t elements() const { return uint64_t{rows} * cols; }
};

// A row panel of one rank-2 tensor (one segment), or rank-1 tensors first used by one stage,
// packed in spec order up to chunk_elements (a longer one is alone; tensors that are used by
// different stages do not share a chunk, nor do frozen ones and others, so that `uses` and `frozen`
// hold for every segment). Elements are stored segment after segment, row-major.
struct Chunk {
  ChunkId id;
  std::vector<Segment> segments;
  uint64_t elements = 0;
  std::vector<StageId> uses;  // stages that use it, in relay order
  // Whether its tensors, all of them, keep their initial values. Its content is that of version 0
  // at every version: nobody pushes a gradient of it, and its state has no fields.
  bool frozen = false;
};

// The arrays of a chunk's state: the weights, and the fields of the optimizer unless it is frozen.
size_t StateArrays(const JobSpec& spec, const Chunk& chunk);
// Their bytes without padding, as state is sent and imported.
uint64_t StateBytes(const JobSpec& spec, const Chunk& chunk);
// The version that made the content that a chunk has at `version`.
inline Version ContentVersion(const Chunk& chunk, Version version) {
  return chunk.frozen ? Version(0) : version;
}

// A piece of one segment, grid-aligned: at most kTileRows x kTileCols, so that it stays in L1 and
// holds whole quantization blocks along both axes.
struct Tile {
  uint32_t segment = 0;
  uint32_t row = 0;  // within the segment
  uint32_t col = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;

  // Element offset of the tile's first element within its chunk.
  uint64_t offset(const Segment& s) const { return s.offset + uint64_t{row} * s.cols + col; }
};

// Calls `visit(tile)` for every tile of the chunk in grid order: segments, then rows, then columns.
template <class Visitor>
void ForEachTile(const Chunk& chunk, Visitor visit) {
  for (uint32_t i = 0; i < chunk.segments.size(); ++i) {
    const Segment& s = chunk.segments[i];
    for (uint32_t row = 0; row < s.rows; row += kTileRows) {
      const uint32_t rows = s.rows - row < kTileRows ? s.rows - row : kTileRows;
      for (uint32_t col = 0; col < s.cols; col += kTileCols) {
        const uint32_t cols = s.cols - col < kTileCols ? s.cols - col : kTileCols;
        visit(Tile{i, row, col, rows, cols});
      }
    }
  }
}

// Returns the bytes that a server at most needs to describe a job's chunks, beside their state. The
// specification can be much smaller. REQUIRES spec.Validate().ok().
uint64_t DescriptionBytes(const JobSpec& spec);

// Immutable after Build; thread-safe.
class ChunkMap {
 public:
  // REQUIRES spec.Validate().ok().
  static ChunkMap Build(const JobSpec& spec);

  absl::Span<const Chunk> chunks() const { return chunks_; }
  const Chunk& chunk(ChunkId id) const { return chunks_[id.value()]; }
  // The chunks that a stage uses, ascending.
  absl::Span<const ChunkId> ChunksOfStage(StageId stage) const {
    return stage_chunks_[stage.value()];
  }
  // The chunks of the matrix that lies in this one, in row order; of vectors, the chunk alone.
  absl::Span<const Chunk> ChunksOfTensor(ChunkId id) const;
  uint64_t StageElements(StageId stage) const { return stage_elements_[stage.value()]; }

  // Returns the shard of each chunk for `shards` servers. Each stage is striped: its chunks are
  // assigned, in order, to the server with the fewest elements of that stage (then of the job, then
  // the lowest id). Frozen chunks count among themselves, because they cost less.
  std::vector<ShardId> Place(uint32_t shards) const;

 private:
  std::vector<Chunk> chunks_;
  std::vector<std::vector<ChunkId>> stage_chunks_;
  std::vector<uint64_t> stage_elements_;
};

// The default chunk size of a model: about 1/64 of it as a power of two, within [64 Ki, 1 Mi].
uint64_t DefaultChunkElements(uint64_t total_elements);

}  // namespace eps

#endif  // EPS_BASE_JOB_LAYOUT_CHUNK_MAP_H_
