#include "worker/models/generate/sampler.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/numerics/deterministic_math.h"
#include "base/numerics/rng.h"

namespace eps {
namespace {

// Returns a uniform number in [0, 1) with 53 bits.
double Uniform(uint64_t seed, uint64_t index) {
  constexpr uint32_t kPurpose = 0x67656e65;  // "gene": distinct from every draw of training
  const PhiloxBlock block =
      Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, kPurpose},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{block[1]} << 32 | block[0]) >> 11;
  return static_cast<double>(bits) / 9007199254740992.0;  // 2^53
}

}  // namespace

int32_t SampleToken(absl::Span<const float> scores, const SamplerOptions& options, uint64_t index) {
  EPS_CHECK(!scores.empty() && options.temperature >= 0);
  std::vector<int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  const bool greedy = options.temperature == 0;
  const size_t wanted = greedy ? 1 : options.top_k;
  const size_t kept = wanted == 0 ? ids.size() : std::min(wanted, ids.size());
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<int64_t>(kept), ids.end(),
      [&](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  if (greedy) return ids[0];

  const double highest = scores[ids[0]];
  std::vector<double> cumulative(kept);
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += DeterministicExp((scores[ids[i]] - highest) / options.temperature);
    cumulative[i] = sum;
  }
  const double drawn = Uniform(options.seed, index) * sum;
  const auto place = std::upper_bound(cumulative.begin(), cumulative.end(), drawn);
  return ids[std::min<size_t>(static_cast<size_t>(place - cumulative.begin()), kept - 1)];
}

}  // namespace eps
