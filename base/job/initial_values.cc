#include "base/job/initial_values.h"

#include <algorithm>

#include "base/numerics/rng.h"

namespace eps {

void FillInitialValues(const JobSpec& spec, TensorId tensor, uint64_t first,
                       absl::Span<float> out) {
  const TensorSpec& t = spec.tensors[tensor.value()];
  if (t.init == Initializer::kNormal) {
    FillNormalDeviates(spec.training.seed, tensor.value(), first, t.init_std, out);
    return;
  }
  if (t.init == Initializer::kUniform) {
    FillUniformDeviates(spec.training.seed, tensor.value(), first, t.init_low, t.init_high, out);
    return;
  }
  std::fill(out.begin(), out.end(), t.init == Initializer::kOnes ? 1.0f : 0.0f);
}

}  // namespace eps
