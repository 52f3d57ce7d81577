#ifndef EPS_BENCH_PEERS_CODEC_LIMIT_H_
#define EPS_BENCH_PEERS_CODEC_LIMIT_H_

#include <cstddef>
#include <cstdint>

namespace eps {

// The memory limit for codecs: the traffic of encoding or decoding with almost no arithmetic. Bytes
// are spread evenly over the floats.

// Reads `elements` floats and writes `bytes` bytes past the caches. Processes only whole steps of
// 64 elements and whole cache lines. REQUIRES both arrays aligned to 64 bytes.
void EncodeLimit(const float* in, size_t elements, size_t bytes, uint8_t* out);

// Reads `bytes` bytes and writes `elements` floats with ordinary stores, because a decoder's caller
// uses the floats next.
void DecodeLimit(const uint8_t* in, size_t bytes, size_t elements, float* out);

}  // namespace eps

#endif  // EPS_BENCH_PEERS_CODEC_LIMIT_H_
