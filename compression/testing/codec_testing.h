#ifndef EPS_COMPRESSION_TESTING_CODEC_TESTING_H_
#define EPS_COMPRESSION_TESTING_CODEC_TESTING_H_

// Helpers for the tests of codecs.

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/job/layout/chunk_map.h"
#include "base/testing/every_target.h"
#include "gtest/gtest.h"

namespace eps {

// A linear congruential generator with equal results on every machine.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed = 42) : state_(seed) {}
  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }

 private:
  uint64_t state_;
};

inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Bit patterns at the boundaries of every rule: zeros, denormals, halves between neighbours, 2^50,
// the largest finite values, infinities, quiet and signalling NaN.
inline const std::vector<uint32_t>& SpecialBits() {
  static const std::vector<uint32_t>* const bits = new std::vector<uint32_t>{
      0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00008000,
      0x00018000, 0x00800000, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001,
      0x3f807fff, 0xbf818000, 0x587fffff, 0x58800000, 0x58800001, 0xd8800000,
      0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
      0x7f800001, 0x7fc00000, 0x7fbfffff, 0xff80ffff, 0xffffffff, 0x7fffffff};
  return *bits;
}

// Returns a chunk of one segment: rows x cols elements of a rank-2 tensor.
inline Chunk MatrixChunk(uint32_t rows, uint32_t cols) {
  Chunk chunk;
  Segment segment;
  segment.rows = rows;
  segment.cols = cols;
  chunk.segments = {segment};
  chunk.elements = segment.elements();
  return chunk;
}

// Returns rows 32…101 of a [*, 200] matrix, then vectors of 37, 1 and 300 elements: ragged on every
// side.
inline Chunk RaggedChunk() {
  Chunk chunk = MatrixChunk(70, 200);
  chunk.id = ChunkId(7);
  chunk.segments[0].tensor = TensorId(4);
  chunk.segments[0].row = 32;
  uint32_t tensor = 9;
  for (const uint32_t cols : {37u, 1u, 300u}) {
    Segment vector;
    vector.tensor = TensorId(tensor++);
    vector.rows = 1;
    vector.cols = cols;
    vector.offset = chunk.elements;
    chunk.elements += cols;
    chunk.segments.push_back(vector);
  }
  return chunk;
}

}  // namespace eps

#endif  // EPS_COMPRESSION_TESTING_CODEC_TESTING_H_
