#ifndef EPS_WORKER_EXEC_QUEUES_TORCH_QUEUES_H_
#define EPS_WORKER_EXEC_QUEUES_TORCH_QUEUES_H_

#include <memory>
#include <optional>

#include "c10/core/Device.h"
#include "worker/exec/cuda_library.h"
#include "worker/exec/queues/device_queues.h"

namespace eps {

// Returns the queues of a device as LibTorch's streams; kCompute is its current stream. Without
// `kernels` the device does not decode.
std::unique_ptr<DeviceQueues> NewTorchQueues(c10::Device device,
                                             std::optional<CudaKernels> kernels);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_TORCH_QUEUES_H_
