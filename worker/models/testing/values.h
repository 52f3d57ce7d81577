#ifndef EPS_WORKER_MODELS_TESTING_VALUES_H_
#define EPS_WORKER_MODELS_TESTING_VALUES_H_

// Tensors with reproducible values. For tests.

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/zeros.h"

namespace eps {

// Returns an FP32 tensor whose values differ everywhere, from -scale / 2 to scale / 2.
inline at::Tensor Values(std::vector<int64_t> shape, uint32_t seed, float scale = 0.5f) {
  at::Tensor out = at::zeros(shape);
  uint32_t state = seed * 2654435761u + 1;
  float* const data = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    data[i] = (static_cast<float>(state >> 8) / 16777216.0f - 0.5f) * scale;
  }
  return out;
}

}  // namespace eps

#endif  // EPS_WORKER_MODELS_TESTING_VALUES_H_
