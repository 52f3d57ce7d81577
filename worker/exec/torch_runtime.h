#ifndef EPS_WORKER_EXEC_TORCH_RUNTIME_H_
#define EPS_WORKER_EXEC_TORCH_RUNTIME_H_

// Stages computed by LibTorch. On a CPU the weights are used where the client decoded them. "Device
// memory" then is what LibTorch's tensors occupy plus the loaded weights, without a stash in host
// memory: what a device would hold. The same code drives a CUDA device if libtorch_cuda.so can be
// loaded.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/memory_account.h"
#include "worker/relay/stage_program.h"

namespace eps {

class TorchStage;  // worker/exec/torch_stage.h

// Returns a text that names everything that the bits of a runtime with these options depend on,
// such as "libtorch 2.11.0 cpu AVX512 AuthenticAMD/25/17 threads=2" or "libtorch 2.11.0 cuda NVIDIA
// H100 80GB HBM3 sm_90". A worker sends it when it joins, before it knows the job. Errors as in
// NewTorchRuntime.
absl::StatusOr<std::string> TorchComputeProfile(const RuntimeOptions& options);

// Returns one line on what this LibTorch finds of CUDA: "2 devices", with the reason if our own
// kernels are not used; or "not used: " and why (no driver, no CUDA half of LibTorch, no device).
std::string TorchCuda();

// Returns the bytes of memory that the device has; 0 for a CPU. Errors as in NewTorchRuntime.
absl::StatusOr<uint64_t> TorchDeviceMemory(const RuntimeOptions& options);

// Makes the program of one stage of the job's model, e.g. NewModelStage of
// worker/models/model_stages.h. `spec` outlives the stage.
using TorchStageFactory = absl::StatusOr<std::unique_ptr<TorchStage>> (*)(const JobSpec& spec,
                                                                          StageId stage);

// Returns the runtime of a job whose stages `new_stage` makes. `spec` and `account` (may be null)
// outlive it. No call on the runtime throws. From this call on the calling thread flushes
// denormals, and so do the threads that LibTorch starts from it: call it from the thread that will
// compute, before anything else uses LibTorch. The peak of device memory counts from here; there is
// one such account per process. InvalidArgument names worker.device, worker.stash or
// worker.stash_codec, or is an error of `new_stage`; FailedPrecondition if the device is missing or
// LibTorch's threads do not flush denormals.
absl::StatusOr<std::unique_ptr<StageRuntime>> NewTorchRuntime(const JobSpec& spec,
                                                              TorchStageFactory new_stage,
                                                              const RuntimeOptions& options,
                                                              MemoryAccount* account);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_RUNTIME_H_
