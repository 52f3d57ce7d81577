#ifndef EPS_WORKER_EXEC_CUDA_DEVICE_GRID_H_
#define EPS_WORKER_EXEC_CUDA_DEVICE_GRID_H_

// Runs the bodies of grid.h on a device. For nvcc only.

#include <cuda_runtime.h>

#include "worker/exec/cuda/grid.h"

namespace eps::grid {

template <class Body>
__global__ void __launch_bounds__(kThreads)
    RunPhases(const __grid_constant__ typename Body::Args args) {
  __shared__ typename Body::Shared shared;
#pragma unroll
  for (int phase = 0; phase < Body::kPhases; ++phase) {
    if (phase > 0) __syncthreads();
    Body::Run(phase, args, &shared, blockIdx.x, threadIdx.x);
  }
}

// A launcher for one stream.
class DeviceGrid {
 public:
  explicit DeviceGrid(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  template <class Body>
  int Run(uint32_t blocks, const typename Body::Args& args) {
    static_assert(sizeof(args) <= 4096, "a kernel's arguments");
    RunPhases<Body><<<blocks, kThreads, 0, stream_>>>(args);
    return static_cast<int>(cudaGetLastError());
  }

 private:
  const cudaStream_t stream_;
};

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_DEVICE_GRID_H_
