#ifndef EPS_PLANNER_PAPERS_NNTILE_MODEL_H_
#define EPS_PLANNER_PAPERS_NNTILE_MODEL_H_

// What NNTile's paper lets one compute: which models a machine trains, its rate at a share of the
// peak, and the small pieces of tiled arithmetic that its layers and optimizers rest on.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "planner/papers/transformer_counts.h"
#include "planner/units.h"

namespace eps::planner {

// GPT-2's vocabulary and positions, and NNTile's widths in units of 1024.
inline constexpr uint64_t kGpt2Vocabulary = 50257;
inline constexpr uint64_t kGpt2Positions = 1024;
Gpt2Shape NntileShape(uint64_t layers, uint64_t width_1024);

// FP32 weight, gradient and Adam's two moments of every parameter. The head is not tied to the
// embedding, which adds vocabulary * width parameters (NNTile's public code).
Bytes TrainingState(const Gpt2Shape& shape);
// Whether a model is trained on a host of so much memory, which holds all of TrainingState. Of the
// host's memory 0.92 can be used: a fit to the sizes that Figures 1 and 2 show as running and as
// out of memory. Everything from 0.918 to 0.928 gives the same answers.
inline constexpr double kUsableHostMemory = 0.92;
bool FitsHost(const Gpt2Shape& shape, Bytes host);
// The largest width, in units of 1024, that fits; 0 if none does.
uint64_t LargestWidth(uint64_t layers, Bytes host);

// What some devices compute at an assumed share `efficiency` of their peak, with the data where it
// is needed: devices * peak * efficiency. No bound: the paper measures more than with the 0.55 that
// it names for other frameworks.
FlopsPerSecond ComputeRate(double devices, FlopsPerSecond peak, double efficiency);

// Extents of the tiles of an axis: whole ones of `base`, then the rest. REQUIRES base > 0.
std::vector<uint64_t> TileExtents(uint64_t extent, uint64_t base);

// What SoftMax keeps of a tile (section 3, "SoftMax"): the maximum, and the sum of
// exp(value - max). Of no values, or of masked ones (-infinity) alone: -infinity and 0.
struct MaxSumExp {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
};
MaxSumExp OfTile(absl::Span<const double> values);
// m = max(m1, m2), s = s1 e^(m1 - m) + s2 e^(m2 - m).
MaxSumExp Merge(const MaxSumExp& a, const MaxSumExp& b);

// One step of Adam's second moment in FP32: v <- beta2 v + (1 - beta2) g^2, and NNTile's way of
// keeping its root: s <- hypot(sqrt(beta2) s, sqrt(1 - beta2) g).
float NextSecondMoment(float v, float gradient, double beta2);
float NextRootSecondMoment(float s, float gradient, double beta2);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_NNTILE_MODEL_H_
