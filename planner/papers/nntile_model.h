#ifndef EPS_PLANNER_PAPERS_NNTILE_MODEL_H_
#define EPS_PLANNER_PAPERS_NNTILE_MODEL_H_

// The computable parts of NNTile's paper: which models a machine can train, its rate at a share of
// the peak, and the tiled arithmetic of its layers and optimizers.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "planner/papers/transformer_counts.h"
#include "planner/units.h"

namespace eps::planner {

// GPT-2's vocabulary and positions. NNTile's widths are multiples of 1024.
inline constexpr uint64_t kGpt2Vocabulary = 50257;
inline constexpr uint64_t kGpt2Positions = 1024;
Gpt2Shape NntileShape(uint64_t layers, uint64_t width_1024);

// Returns the bytes of the FP32 weight, the gradient and Adam's two moments of every parameter. The
// head is not tied to the embedding, which adds vocabulary * width parameters (NNTile's public
// code).
Bytes TrainingState(const Gpt2Shape& shape);
// Returns true if a host with `host` bytes can train the model, that is, if it can hold all of
// TrainingState. Of the host's memory a share of 0.92 is usable. This is a fit to the sizes that
// Figures 1 and 2 show as running and as out of memory; any value from 0.918 to 0.928 gives the
// same answers.
inline constexpr double kUsableHostMemory = 0.92;
bool FitsHost(const Gpt2Shape& shape, Bytes host);
// Returns the largest width that fits, in units of 1024; 0 if none does.
uint64_t LargestWidth(uint64_t layers, Bytes host);

// Returns devices * peak * efficiency: the rate at an assumed share `efficiency` of the peak, with
// the data already in place. This is not a bound: the paper measures more than the 0.55 that it
// attributes to other frameworks would give.
FlopsPerSecond ComputeRate(double devices, FlopsPerSecond peak, double efficiency);

// Returns the extents of the tiles of an axis: whole tiles of `base`, then the remainder. REQUIRES
// base > 0.
std::vector<uint64_t> TileExtents(uint64_t extent, uint64_t base);

// The state of SoftMax for one tile (section 3, "SoftMax"): the maximum, and the sum of
// exp(value - max). For no values, or only masked ones (-infinity), they are -infinity and 0.
struct MaxSumExp {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
};
MaxSumExp OfTile(absl::Span<const double> values);
// Returns m = max(m1, m2), s = s1 e^(m1 - m) + s2 e^(m2 - m).
MaxSumExp Merge(const MaxSumExp& a, const MaxSumExp& b);

// Return Adam's second moment after one step in FP32: v <- beta2 v + (1 - beta2) g^2; and its root,
// as NNTile keeps it: s <- hypot(sqrt(beta2) s, sqrt(1 - beta2) g).
float NextSecondMoment(float v, float gradient, double beta2);
float NextRootSecondMoment(float s, float gradient, double beta2);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_NNTILE_MODEL_H_
