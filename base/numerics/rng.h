#ifndef EPS_BASE_NUMERICS_RNG_H_
#define EPS_BASE_NUMERICS_RNG_H_

// Counter-based random numbers: a value is a function of its key and its position, independent of
// the process that computes it and of the order. Generator: Philox4x32-10 (Salmon et al., SC'11).

#include <array>
#include <cstdint>

#include "absl/types/span.h"

namespace eps {

using PhiloxBlock = std::array<uint32_t, 4>;
// The published function: 10 rounds over a 128-bit counter with a 64-bit key.
PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key);

// Where a random draw belongs. Sites number the draws of one stage (0: embedding or attention
// weights, 1: attention projection, 2: MLP).
struct RngKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t micro_batch = 0;  // global: part * g + j
  uint16_t stage = 0;
  uint16_t site = 0;
};

// Inverted-dropout mask: mask[i] = 0 with probability p, else float(1 / (1 - p)). Element i takes
// word i%4 of block i/4; it is dropped if the word < p * 2^32. REQUIRES 0 <= p < 1.
void FillDropoutMask(const RngKey& key, double p, absl::Span<float> mask);

// Draws four uniform words for each token of a step, by its place in a sample of the data, so that
// they do not depend on the micro-batch that holds it. Immutable; thread-safe.
class TokenDraws {
 public:
  TokenDraws(uint64_t seed, uint64_t step);
  PhiloxBlock operator()(uint64_t sample, uint32_t place) const;

 private:
  const std::array<uint32_t, 2> key_;
};

// Returns the number of words w with w < p * 2^32. REQUIRES 0 <= p <= 1.
uint64_t WordsBelow(double p);

// The standard normal deviate below which a draw lies with probability (k + 1/2) / 2^53: inverse
// CDF by AS 241 (PPND16). REQUIRES k < 2^53.
double StandardNormal(uint64_t k);

// out[i] = stddev times the normal deviate of element first + i of tensor number `tensor`, drawn by
// StandardNormal from 53-bit uniforms keyed by (seed, tensor, element), with +,-,*,/ and sqrt only,
// so that every machine gives the same bits.
void FillNormalDeviates(uint64_t seed, uint32_t tensor, uint64_t first, double stddev,
                        absl::Span<float> out);

// out[i] = low + (high - low) k / 2^53, with the 53 bits k from which FillNormalDeviates draws the
// same element; computed in double.
void FillUniformDeviates(uint64_t seed, uint32_t tensor, uint64_t first, double low, double high,
                         absl::Span<float> out);

}  // namespace eps

#endif  // EPS_BASE_NUMERICS_RNG_H_
