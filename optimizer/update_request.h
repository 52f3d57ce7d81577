#ifndef EPS_OPTIMIZER_UPDATE_REQUEST_H_
#define EPS_OPTIMIZER_UPDATE_REQUEST_H_

// The request and the result of one step on one chunk. Plain values, shared by all backends and by
// all code that computes over a chunk.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/job/layout/chunk_map.h"
#include "base/numerics/reduction_tree.h"
#include "compression/codec.h"
#include "optimizer/reduced_gradient.h"
#include "optimizer/update_rule.h"

namespace eps {

// One counted contribution: parts [parts.first, parts.first + parts.count) of one use.
struct UpdateInput {
  uint32_t use = 0;  // index into Chunk::uses
  TreeRange parts;
  std::shared_ptr<const EncodedChunk> data;
};

// An update of one chunk, or with Reduce only its reduction.
struct UpdateRequest {
  ChunkId chunk;
  Version from;
  Version to;  // from + 1
  // All contributions: for every use, ranges that are nodes of the tree over `parts` and together
  // cover it, in any order. They are reduced along the tree over parts, then left to right over
  // uses. Anything else is refused with InvalidArgument.
  std::vector<UpdateInput> inputs;
  // The result of Reduce for these inputs; if set, `inputs` is empty.
  std::shared_ptr<const ReducedGradient> reduced;
  uint32_t parts = 1;
  StepScalars step;
  // One for each segment of the chunk, if the optimizer adapts. Update only.
  std::vector<double> trust_ratios;
  // Scales the gradient in UpdateResult::sum_squares: 2^k / tokens, without the clip factor that
  // StepScalars::grad_scale contains.
  float norm_scale = 1;
  // Encodings of the chunk's weights at `to`, made while they are in cache for the next readers.
  // Usually empty; at most one per axis; no codec that uses_residual. Update only.
  struct Encode {
    const Codec* codec = nullptr;
    Axis axis = Axis::kRow;
  };
  std::vector<Encode> encode;
};

// The sums of squares of a segment, from which its tensor's trust ratio is made.
struct SegmentSquares {
  double weights = 0;
  double steps = 0;  // of what learning rate and trust ratio multiply
};

// The result of Measure: one entry for each segment of the chunk.
struct MeasureResult {
  std::vector<SegmentSquares> segments;
};

// The result of an update or of Reduce.
struct UpdateResult {
  double sum_squares = 0;  // of the chunk's reduced gradient times norm_scale, in canonical order
  std::shared_ptr<const ReducedGradient> reduced;  // from Reduce: the sum of the inputs
  // From Update: for each entry of UpdateRequest::encode the bytes that Read(to, codec, axis) would
  // give, charged in the same way.
  std::vector<Bytes> encoded;
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_UPDATE_REQUEST_H_
