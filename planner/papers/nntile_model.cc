#include "planner/papers/nntile_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace eps::planner {
namespace {

constexpr uint64_t kWidthUnit = 1024;
constexpr Bytes kStatePerParameter(16);  // four FP32 numbers

constexpr double kMasked = -std::numeric_limits<double>::infinity();

}  // namespace

Gpt2Shape NntileShape(uint64_t layers, uint64_t width_1024) {
  return {layers, kWidthUnit * width_1024, kGpt2Vocabulary, kGpt2Positions};
}

Bytes TrainingState(const Gpt2Shape& shape) {
  const uint64_t parameters = ModelParameters(shape) + shape.vocabulary * shape.width;
  return static_cast<double>(parameters) * kStatePerParameter;
}

bool FitsHost(const Gpt2Shape& shape, Bytes host) {
  return TrainingState(shape) <= kUsableHostMemory * host;
}

uint64_t LargestWidth(uint64_t layers, Bytes host) {
  uint64_t width_1024 = 0;
  while (FitsHost(NntileShape(layers, width_1024 + 1), host)) ++width_1024;
  return width_1024;
}

FlopsPerSecond ComputeRate(double devices, FlopsPerSecond peak, double efficiency) {
  return devices * efficiency * peak;
}

std::vector<uint64_t> TileExtents(uint64_t extent, uint64_t base) {
  std::vector<uint64_t> extents;
  for (uint64_t begin = 0; begin < extent; begin += base) {
    extents.push_back(std::min(base, extent - begin));
  }
  return extents;
}

MaxSumExp OfTile(absl::Span<const double> values) {
  MaxSumExp result;
  for (const double value : values) result = Merge(result, {value, value == kMasked ? 0.0 : 1.0});
  return result;
}

MaxSumExp Merge(const MaxSumExp& a, const MaxSumExp& b) {
  if (a.max == kMasked) return b;  // the difference of two infinities is not a number
  const double max = std::max(a.max, b.max);
  return {max, a.sum * std::exp(a.max - max) + b.sum * std::exp(b.max - max)};
}

float NextSecondMoment(float v, float gradient, double beta2) {
  return static_cast<float>(beta2) * v + static_cast<float>(1 - beta2) * (gradient * gradient);
}

float NextRootSecondMoment(float s, float gradient, double beta2) {
  return std::hypot(static_cast<float>(std::sqrt(beta2)) * s,
                    static_cast<float>(std::sqrt(1 - beta2)) * gradient);
}

}  // namespace eps::planner
