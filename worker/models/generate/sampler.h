#ifndef EPS_WORKER_MODELS_GENERATE_SAMPLER_H_
#define EPS_WORKER_MODELS_GENERATE_SAMPLER_H_

#include <cstdint>

#include "absl/types/span.h"

namespace eps {

// How to draw a token from scores.
struct SamplerOptions {
  double temperature = 0.8;  // 0 always chooses the likeliest token
  uint32_t top_k = 40;       // draw only from the k likeliest; 0 draws from all
  uint64_t seed = 0;
};

// Draws the token at place `index` of a continuation from the scores of all tokens. A pure
// function: equal arguments give the same token on every machine (equal scores rank by id; the
// random number is Philox of seed and index). REQUIRES non-empty scores, temperature >= 0.
int32_t SampleToken(absl::Span<const float> scores, const SamplerOptions& options, uint64_t index);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_GENERATE_SAMPLER_H_
