#ifndef EPS_WORKER_EXEC_STASH_TENSORS_H_
#define EPS_WORKER_EXEC_STASH_TENSORS_H_

// Stage inputs as they lie in the stash: tensors of the stash codec's own type and the shape of
// what they encode. Only worker/exec includes this header.

#include "ATen/core/Tensor.h"
#include "worker/relay/stash_codec.h"

namespace eps {

// `x` is FP32 and contiguous, on a CPU or another device; the result is on the same. Throws what
// LibTorch throws. REQUIRES !codec.exact().
at::Tensor EncodeForStash(const StashCodec& codec, const at::Tensor& x);
// The inverse, into `out`: FP32, contiguous, of the shape and on the device of `encoded`.
void DecodeFromStash(const StashCodec& codec, const at::Tensor& encoded, const at::Tensor& out);

// The same by LibTorch's conversions, as a device other than the CPU does it: the same bits but for
// those of NaN. For tests.
at::Tensor EncodeByTorch(const StashCodec& codec, const at::Tensor& x);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_STASH_TENSORS_H_
