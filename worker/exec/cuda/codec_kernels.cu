#include "worker/exec/cuda/codec_launches.h"
#include "worker/exec/cuda/crc_bodies.h"
#include "worker/exec/cuda/device_grid.h"
#include "worker/exec/cuda/kernels.h"

#define EPS_EXPORT extern "C" __attribute__((visibility("default")))

EPS_EXPORT int eps_cuda_decode_chunk(uint32_t codec, const eps_cuda_chunk* chunk, const void* in,
                                     float* out, void* stream) {
  eps::grid::DeviceGrid device(stream);
  return eps::grid::LaunchDecodeChunk(codec, *chunk, in, out, device);
}

EPS_EXPORT int eps_cuda_encode_chunk(uint32_t codec, int truncate, const eps_cuda_chunk* chunk,
                                     const float* in, void* out, void* stream) {
  eps::grid::DeviceGrid device(stream);
  return eps::grid::LaunchEncodeChunk(codec, truncate != 0, *chunk, in, out, device);
}

EPS_EXPORT int eps_cuda_decode_chunk_bf16(uint32_t codec, const eps_cuda_chunk* chunk,
                                          const void* in, uint16_t* out, void* stream) {
  eps::grid::DeviceGrid device(stream);
  return eps::grid::LaunchDecodeChunk(codec, *chunk, in, out, device);
}

EPS_EXPORT int eps_cuda_crc32c(const void* bytes, uint64_t n, uint32_t* crcs, void* stream) {
  eps::grid::DeviceGrid device(stream);
  return eps::grid::LaunchCrc32c(bytes, n, crcs, device);
}
