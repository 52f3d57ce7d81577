#include "worker/exec/testing/test_queues.h"

#include "base/check.h"
#include "worker/exec/cuda/codec_launches.h"
#include "worker/exec/cuda/kernels.h"
#include "worker/exec/cuda/testing/simulated_grid.h"

namespace eps {

void DecodeOnGrid(const SegmentCode& code, const void* in, float* out) {
  const eps_cuda_segment segment = {code.rows, code.cols};
  const eps_cuda_chunk chunk = {&segment, 1, code.column ? 1 : 0};
  grid::SimulatedGrid grid(/*seed=*/1);
  EPS_CHECK(grid::LaunchDecodeChunk(code.codec, chunk, in, out, grid) == 0);
}

void EncodeOnGrid(const SegmentCode& code, const float* in, void* out) {
  const eps_cuda_segment segment = {code.rows, code.cols};
  const eps_cuda_chunk chunk = {&segment, 1, code.column ? 1 : 0};
  grid::SimulatedGrid grid(/*seed=*/1);
  EPS_CHECK(grid::LaunchEncodeChunk(code.codec, code.truncate, chunk, in, out, grid) == 0);
}

}  // namespace eps
