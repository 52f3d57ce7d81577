#ifndef EPS_WORKER_EXEC_TORCH_DEVICE_H_
#define EPS_WORKER_EXEC_TORCH_DEVICE_H_

// Chooses the device that computes and prepares its threads. Only worker/exec and worker/models
// include this header.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"

namespace eps {

// Resolves worker.device to a device that exists. "auto" is a CUDA device if LibTorch's CUDA half
// can be loaded and finds one, otherwise the CPU. A name without a number selects device number
// `local_rank`, modulo the number of devices.
absl::StatusOr<c10::Device> ChooseDevice(const std::string& name, int local_rank = 0);

// See TorchCuda.
std::string CudaFinding();

// Resolves worker.threads to intra-op threads; 0 means this worker's share of all cores that the
// process may use, divided among the `local_count` workers of the machine.
int ResolveThreads(int threads, int local_count = 1);

// See TorchComputeProfile. FailedPrecondition if the driver does not tell which GPU it is.
absl::StatusOr<std::string> ComputeProfileOf(c10::Device device, int threads);

// Sets LibTorch's intra-op threads and makes the calling thread, and those that it starts, flush
// denormals from now on. Returns FailedPrecondition if threads of LibTorch do not flush them: they
// inherit the mode of the thread that started them, so LibTorch was used before this call.
absl::Status PrepareThreads(int threads);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_DEVICE_H_
