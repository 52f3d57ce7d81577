#ifndef EPS_WORKER_EXEC_TORCH_RESULTS_H_
#define EPS_WORKER_EXEC_TORCH_RESULTS_H_

// Reads the results of the last stage from LibTorch's tensors.

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Sums the labels that count (all rows without labels), in order. `label_log_p` is on the host.
LossSum LossOf(const std::vector<int32_t>& labels, const at::Tensor& label_log_p);

// Copies the predictions of TorchStage::LabelLogP to the host, and waits for them.
Predictions PredictionsOf(const at::Tensor& predicted);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_RESULTS_H_
