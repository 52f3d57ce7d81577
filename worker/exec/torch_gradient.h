#ifndef EPS_WORKER_EXEC_TORCH_GRADIENT_H_
#define EPS_WORKER_EXEC_TORCH_GRADIENT_H_

// Gradients as tensors of LibTorch. Only worker/exec includes this header.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "base/memory_account.h"
#include "worker/exec/torch_stage.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Tensors by use, undefined for a frozen one whose gradient was not computed. `status` is an error
// of computing them, which every later call returns.
class TorchGradient final : public StageGradient {
 public:
  StageTensors tensors;
  absl::Status status;
};

// Returns tensors of a CPU, by use, as a HostStage without copying them. From now on they count as
// kStage of `account` (may be null) and not in TensorMemory. REQUIRES that nothing else refers to
// their memory. Throws what LibTorch throws.
std::unique_ptr<HostStage> MoveTensorsToHost(StageTensors tensors, MemoryAccount* account);

// Replaces denormals in the FP32 tensor x by zeros of their sign, as a CPU with FTZ and DAZ reads
// and writes them. Throws what LibTorch throws.
at::Tensor Flushed(const at::Tensor& x);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_GRADIENT_H_
