#ifndef EPS_WORKER_MODELS_LOSS_HEAD_H_
#define EPS_WORKER_MODELS_LOSS_HEAD_H_

// The loss of a block of rows from their scores, and its gradient. Shared by all models. Throws
// what LibTorch throws; call it without autograd.

#include "ATen/core/Tensor.h"
#include "base/job/models/model_program.h"

namespace eps {

// Cross entropy: `scores` is FP32 [rows, classes], `labels` int64 [rows], kIgnoreLabel in rows that
// do not count.
//
// Writes the logarithm of the probability of each row's label to `label_log_p` [rows]; arbitrary in
// rows that do not count. `scores` may have 16 bits.
void WriteLabelLogP(const at::Tensor& scores, const at::Tensor& labels,
                    const at::Tensor& label_log_p);
// The same, and returns the gradient of -scale * (sum of the rows that count) by the scores. Uses
// the memory of `scores`, whose values are lost. With `smoothing` s, a row is
// (1 - s) * log p(label) + s * (mean of log p over the classes), as in torch.nn.CrossEntropyLoss.
at::Tensor LabelLogPGradient(at::Tensor scores, const at::Tensor& labels, double scale,
                             double smoothing, const at::Tensor& label_log_p);

// The same for scores of any type, in which it returns the gradient. A device uses our kernel if
// it has it, and if there is no smoothing; WriteLabelLogP then gives the same bits.
at::Tensor CrossEntropyGradient(at::Tensor scores, const at::Tensor& labels, double scale,
                                double smoothing, const at::Tensor& label_log_p);

// Squared error: `scores` is FP32 [rows] or [rows, 1], `targets` FP32 [rows]. Writes
// -(score - target)^2 to `minus_loss` and returns the gradient of -scale * its sum.
at::Tensor SquaredErrorGradient(const at::Tensor& scores, const at::Tensor& targets, double scale,
                                const at::Tensor& minus_loss);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_LOSS_HEAD_H_
