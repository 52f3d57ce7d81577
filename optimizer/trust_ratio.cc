#include "optimizer/trust_ratio.h"

#include <cmath>
#include <limits>

namespace eps {

double TrustRatio(const SegmentSquares& tensor) {
  if (!(tensor.weights > 0) || !(tensor.steps > 0)) return 1;
  const double ratio = std::sqrt(tensor.weights) / std::sqrt(tensor.steps);
  return ratio > 0 && ratio <= std::numeric_limits<float>::max() ? ratio : 1;
}

}  // namespace eps
