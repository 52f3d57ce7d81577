#ifndef EPS_WORKER_MODELS_STAGE_INPUTS_H_
#define EPS_WORKER_MODELS_STAGE_INPUTS_H_

// The inputs of a stage that are made on the host: token ids, labels and masks, and the products
// with masks. A device copies them while the program continues, or draws masks itself. Pure
// functions; they throw what LibTorch throws.

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/numerics/rng.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Returns ids as an int64 tensor [samples, seq] on the device of `like`.
at::Tensor IdTensor(const std::vector<int32_t>& ids, const MicroBatch& batch,
                    const at::Tensor& like);
// Returns one label for each sample, int64 or FP32 [samples], on the device of `like`.
at::Tensor SampleLabels(const std::vector<int32_t>& labels, const MicroBatch& batch,
                        const at::Tensor& like);
at::Tensor SampleTargets(const std::vector<float>& targets, const MicroBatch& batch,
                         const at::Tensor& like);

// Returns the images as FP32 [samples, channels, height, width] on the device of `like`; `image`
// has the last three.
at::Tensor ImageTensor(const std::vector<int64_t>& image, const MicroBatch& batch,
                       const at::Tensor& like);

// Returns [samples, 1, seq, seq] on the device of `like`: whether the token of a row sees the one
// of a column, which is not later and belongs to the same document. REQUIRES positions.
at::Tensor SeenTokens(const MicroBatch& batch, const at::Tensor& like);

// The key of the mask that a site of a stage draws for a micro-batch.
RngKey MaskKey(const JobSpec& spec, StageId stage, const MicroBatch& batch, uint16_t site);
// Returns the inverted-dropout mask of a key in the given shape, on the device of `like`.
at::Tensor DropoutMask(const RngKey& key, double p, at::IntArrayRef shape, const at::Tensor& like);
// Returns x times the mask of a key, plus `residual` unless that is undefined, in the type of x: of
// 16 bits, the product is rounded before the sum. A device with our kernels rounds FP32 and BF16
// once, after the sum, and draws the mask again for the derivative.
at::Tensor Drop(const RngKey& key, double p, const at::Tensor& x,
                const at::Tensor& residual = at::Tensor());
// As Drop, and draws the mask again on every device, so that no graph keeps it.
at::Tensor DropKeepingNoMask(const RngKey& key, double p, const at::Tensor& x,
                             const at::Tensor& residual = at::Tensor());

}  // namespace eps

#endif  // EPS_WORKER_MODELS_STAGE_INPUTS_H_
