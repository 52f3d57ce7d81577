#ifndef EPS_WORKER_EXEC_TORCH_RUNTIME_H_
#define EPS_WORKER_EXEC_TORCH_RUNTIME_H_

// Stages computed by LibTorch. On a CPU the weights are used where the client decoded them, and
// "device memory" is what LibTorch's tensors occupy plus the loaded weights, without the stash:
// what a device would hold. The same code drives a CUDA device if libtorch_cuda.so can be loaded.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/memory_account.h"
#include "base/job/job_spec.h"
#include "worker/relay/stage_program.h"

namespace eps {

// What the bits of a runtime with these options depend on, e.g.
// "libtorch 2.11.0 cpu AVX512 AuthenticAMD/25/17 threads=2". Needed before the job is known: a
// worker joins with it. Errors as NewTorchRuntime.
absl::StatusOr<std::string> TorchComputeProfile(const RuntimeOptions& options);

// What this LibTorch finds of CUDA: "2 devices", with why our own kernels are not used if they are
// not there; or "not used: " and why (no driver, no CUDA half of LibTorch, no device). One line.
std::string TorchCuda();

// The runtime of a gpt2 job. `spec` and `account` (may be null) outlive it. From this call on the
// calling thread flushes denormals, and so do the threads that LibTorch starts from it: call it
// from the thread that will compute, before anything else uses LibTorch. The peak of device memory
// counts from here; there is one such account per process.
// InvalidArgument names worker.device, worker.stash, worker.stash_codec or the tensor that the
// model lacks; FailedPrecondition if the device is not there or LibTorch's threads do not flush
// denormals.
absl::StatusOr<std::unique_ptr<StageRuntime>> NewTorchRuntime(const JobSpec& spec,
                                                              const RuntimeOptions& options,
                                                              MemoryAccount* account);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_RUNTIME_H_
