#include "worker/exec/testing/test_queues.h"

#include "base/check.h"
#include "worker/exec/cuda/codec_launches.h"
#include "worker/exec/cuda/crc_bodies.h"
#include "worker/exec/cuda/kernels.h"
#include "worker/exec/cuda/testing/simulated_grid.h"

namespace eps {

void DecodeOnGrid(const SegmentCode& code, const void* in, at::ScalarType type, void* out) {
  const eps_cuda_segment segment = {code.rows, code.cols};
  const eps_cuda_chunk chunk = {&segment, 1, code.column ? 1 : 0};
  grid::SimulatedGrid grid(/*seed=*/1);
  const int error =
      type == at::kFloat
          ? grid::LaunchDecodeChunk(code.codec, chunk, in, static_cast<float*>(out), grid)
          : grid::LaunchDecodeChunk(code.codec, chunk, in, static_cast<uint16_t*>(out), grid);
  EPS_CHECK(error == 0);
}

void EncodeOnGrid(const SegmentCode& code, const float* in, void* out) {
  const eps_cuda_segment segment = {code.rows, code.cols};
  const eps_cuda_chunk chunk = {&segment, 1, code.column ? 1 : 0};
  grid::SimulatedGrid grid(/*seed=*/1);
  EPS_CHECK(grid::LaunchEncodeChunk(code.codec, code.truncate, chunk, in, out, grid) == 0);
}

void ChecksumOnGrid(const void* in, uint64_t bytes, void* out) {
  grid::SimulatedGrid grid(/*seed=*/1);
  EPS_CHECK(grid::LaunchCrc32c(in, bytes, static_cast<uint32_t*>(out), grid) == 0);
}

}  // namespace eps
