#ifndef EPS_WORKER_EXEC_STASH_STASH_TENSORS_H_
#define EPS_WORKER_EXEC_STASH_STASH_TENSORS_H_

// Stage inputs as the stash holds them: tensors of the stash codec's own type, in the shape of what
// they encode. Only worker/exec includes this header.

#include "ATen/core/Tensor.h"
#include "worker/relay/stash_codec.h"

namespace eps {

// Encodes `x`, which is FP32 and contiguous, on a CPU or another device; the result is on the same
// device. Throws what LibTorch throws. REQUIRES !codec.exact().
at::Tensor EncodeForStash(const StashCodec& codec, const at::Tensor& x);
// The inverse, into `out`, which is FP32, contiguous, and has `encoded`'s shape and device.
void DecodeFromStash(const StashCodec& codec, const at::Tensor& encoded, const at::Tensor& out);

// Encodes with LibTorch's conversions, as a device other than the CPU does: the same bits except
// those of NaN. For tests.
at::Tensor EncodeByTorch(const StashCodec& codec, const at::Tensor& x);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_STASH_STASH_TENSORS_H_
