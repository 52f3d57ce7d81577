#ifndef EPS_WORKER_EXEC_TORCH_DEVICE_H_
#define EPS_WORKER_EXEC_TORCH_DEVICE_H_

// Which device computes, and how its threads are set up. Only worker/exec and worker/models include
// this header.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"

namespace eps {

// worker.device -> a device that is there. "auto" is a CUDA device if LibTorch's CUDA half can be
// loaded and finds one, else the CPU. Without a number it is the device of number `local_rank`, in
// turns if there are fewer.
absl::StatusOr<c10::Device> ChooseDevice(const std::string& name, int local_rank = 0);

// See TorchCuda.
std::string CudaFinding();

// worker.threads -> intra-op threads; 0 means all cores that this process may use, shared with the
// other workers of the machine, of which there are `local_count` in all.
int ResolveThreads(int threads, int local_count = 1);

// See TorchComputeProfile.
std::string ComputeProfileOf(c10::Device device, int threads);

// Sets LibTorch's intra-op threads and lets the calling thread, and those it starts, flush
// denormals from now on. FailedPrecondition if threads of LibTorch do not: they inherit the mode of
// the thread that started them, so somebody used LibTorch before.
absl::Status PrepareThreads(int threads);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_DEVICE_H_
