#ifndef EPS_PLANNER_PAPERS_TRANSFORMER_COUNTS_H_
#define EPS_PLANNER_PAPERS_TRANSFORMER_COUNTS_H_

// Parameters and operations of the models that the papers train, by formula and counted from the
// program's own layout. BERT's encoder layer has the same shapes as GPT-2's block.

#include <cstdint>

#include "planner/units.h"

namespace eps::planner {

// A GPT-2 model with tied embeddings and an inner width of four times the width.
struct Gpt2Shape {
  uint64_t layers = 1;
  uint64_t width = 1;
  uint64_t vocabulary = 1;
  uint64_t positions = 1;
};

// Returns the parameters of one layer of width h, 12 h^2 + 13 h: attention 4 h^2 + 4 h, inner
// layers 8 h^2 + 5 h, and two norms of 2 h.
uint64_t LayerParameters(uint64_t width);

// Returns L (12 h^2 + 13 h) + V h + T h + 2 h for T learned positions: layers, embeddings, last
// norm.
uint64_t ModelParameters(const Gpt2Shape& shape);

// The same numbers, summed over the tensors that BuildLayout creates for the model.
struct LayoutCount {
  uint64_t layers = 0;  // all inner stages together
  uint64_t total = 0;
};
// Counts the parameters of a layout. REQUIRES a shape that ValidateModel accepts.
LayoutCount CountLayout(const Gpt2Shape& shape);

// Return the operations of the matrix products of one sequence. LayersForwardFlops counts the
// forward pass of the layers: L BlockForwardFlops (base/job/models/gpt2.h) with an inner width of
// 4 E. SequenceTrainingFlops counts layers and head, forward and backward; the backward pass takes
// twice as many (NNTile section 4, counted as in its public code).
Flops LayersForwardFlops(const Gpt2Shape& shape, double tokens);
Flops SequenceTrainingFlops(const Gpt2Shape& shape, double tokens);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_TRANSFORMER_COUNTS_H_
