#include "worker/exec/torch_results.h"

#include <cstddef>

#include "base/check.h"

namespace eps {

using at::Tensor;

LossSum LossOf(const std::vector<int32_t>& labels, const Tensor& label_log_p) {
  const auto rows = static_cast<size_t>(label_log_p.numel());
  EPS_CHECK(labels.empty() || rows == labels.size());
  const float* const values = label_log_p.const_data_ptr<float>();
  LossSum loss;
  for (size_t i = 0; i < rows; ++i) {
    if (!labels.empty() && labels[i] == kIgnoreLabel) continue;
    loss.sum -= values[i];
    ++loss.tokens;
  }
  return loss;
}

Predictions PredictionsOf(const Tensor& predicted) {
  const Tensor values = predicted.contiguous().to(at::kCPU);
  const auto rows = static_cast<size_t>(values.numel());
  Predictions predictions;
  if (values.scalar_type() == at::kFloat) {
    const float* const numbers = values.const_data_ptr<float>();
    predictions.numbers.assign(numbers, numbers + rows);
    return predictions;
  }
  const int64_t* const classes = values.const_data_ptr<int64_t>();
  for (size_t i = 0; i < rows; ++i) {
    predictions.classes.push_back(static_cast<int32_t>(classes[i]));
  }
  return predictions;
}

}  // namespace eps
