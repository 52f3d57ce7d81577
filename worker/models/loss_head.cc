#include "worker/models/loss_head.h"

#include <utility>

#include "ATen/ops/_log_softmax.h"
#include "ATen/ops/_log_softmax_backward_data.h"
#include "c10/util/Exception.h"
#include "worker/exec/device_kernels.h"
#include "worker/relay/stage_program.h"

namespace eps {
namespace {

using at::Tensor;

void CopyLabels(const Tensor& log_p, const Tensor& targets, const Tensor& out) {
  out.copy_(log_p.gather(1, targets).squeeze(1));
}

// Sets `scores` to other * counted[row] except value * counted[row] at each row's target.
void SetLabels(const Tensor& targets, const Tensor& counted, float value, float other,
               Tensor* scores) {
  if (scores->device().is_cpu()) {
    if (other == 0) {
      scores->zero_();
    } else {
      scores->copy_(counted.mul(other).expand_as(*scores));
    }
    scores->scatter_(1, targets, counted.mul(value));
  } else {  // a device's scatter of a tensor counts as nondeterministic
    scores->fill_(other).scatter_(1, targets, value).mul_(counted);
  }
}

// Returns null if LibTorch computes the loss of these scores.
const DeviceKernels* KernelsFor(const Tensor& scores) {
  if (!DeviceKernels::Takes(scores.scalar_type())) return nullptr;
  return DeviceKernels::ForOrNull(scores);
}

}  // namespace

void WriteLabelLogP(const Tensor& scores, const Tensor& labels, const Tensor& label_log_p) {
  if (const DeviceKernels* const kernels = KernelsFor(scores)) {
    return kernels->CrossEntropy(scores.clone(at::MemoryFormat::Contiguous), labels, 1.0,
                                 label_log_p);
  }
  CopyLabels(at::_log_softmax(scores.to(at::kFloat), 1, /*half_to_float=*/false),
             labels.clamp_min(0).unsqueeze(1), label_log_p);
}

Tensor CrossEntropyGradient(Tensor scores, const Tensor& labels, double scale, double smoothing,
                            const Tensor& label_log_p) {
  const DeviceKernels* const kernels = smoothing > 0 ? nullptr : KernelsFor(scores);
  if (kernels == nullptr) {
    const at::ScalarType type = scores.scalar_type();
    return LabelLogPGradient(scores.to(at::kFloat), labels, scale, smoothing, label_log_p).to(type);
  }
  scores = scores.contiguous();
  kernels->CrossEntropy(scores, labels, scale, label_log_p);
  return scores;
}

Tensor LabelLogPGradient(Tensor scores, const Tensor& labels, double scale, double smoothing,
                         const Tensor& label_log_p) {
  const Tensor counted = labels.ne(kIgnoreLabel);
  const Tensor targets = labels.clamp_min(0).unsqueeze(1);
  const Tensor log_p = at::_log_softmax(scores, 1, /*half_to_float=*/false);
  CopyLabels(log_p, targets, label_log_p);
  const double share = smoothing / static_cast<double>(scores.size(1));  // of each class
  if (smoothing > 0) label_log_p.mul_(1 - smoothing).add_(log_p.sum(1).mul_(share));
  const auto of_all = static_cast<float>(-scale * share);
  SetLabels(targets, counted.to(at::kFloat).unsqueeze(1),
            static_cast<float>(-scale * (1 - smoothing)) + of_all, of_all, &scores);
  return at::_log_softmax_backward_data(scores, log_p, 1, at::kFloat);
}

Tensor SquaredErrorGradient(const Tensor& scores, const Tensor& targets, double scale,
                            const Tensor& minus_loss) {
  TORCH_CHECK(scores.numel() == targets.numel(), "the head gives ", scores.numel(), " scores for ",
              targets.numel(), " samples");
  const Tensor error = scores.view({-1}).sub(targets);
  minus_loss.copy_(error.mul(error).neg_());
  return error.mul(2 * scale).view(scores.sizes());
}

}  // namespace eps
