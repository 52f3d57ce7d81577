#include "base/numerics/rng.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/numerics/deterministic_math.h"

namespace eps {
namespace {

constexpr uint32_t kMultiplier0 = 0xd2511f53;
constexpr uint32_t kMultiplier1 = 0xcd9e8d57;
constexpr uint32_t kWeyl0 = 0x9e3779b9;
constexpr uint32_t kWeyl1 = 0xbb67ae85;
constexpr int kRounds = 10;

// Last counter word of the draws that are no element's own: keeps purposes apart under one seed.
constexpr uint32_t kStepKeyPurpose = 1;
constexpr uint32_t kInitialValuePurpose = 2;
constexpr uint32_t kTokenKeyPurpose = 3;

std::array<uint32_t, 2> Words(uint64_t value) {
  return {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
}

// Makes a key of a seed and a step, where a place does not fit into one counter beside the step.
std::array<uint32_t, 2> StepKey(uint64_t seed, uint64_t step, uint32_t purpose) {
  const std::array<uint32_t, 2> words = Words(step);
  const PhiloxBlock drawn = Philox4x32({words[0], words[1], 0, purpose}, Words(seed));
  return {drawn[0], drawn[1]};
}

// `kLanes` consecutive blocks at once, word by word, so that a compiler can put blocks into lanes.
constexpr size_t kLanes = 16;
struct PhiloxLanes {
  uint32_t word[4][kLanes];
};

void RunPhilox(std::array<uint32_t, 2> key, PhiloxLanes* lanes) {
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{kMultiplier0} * lanes->word[0][i];
      const uint64_t p1 = uint64_t{kMultiplier1} * lanes->word[2][i];
      lanes->word[0][i] = static_cast<uint32_t>(p1 >> 32) ^ lanes->word[1][i] ^ key[0];
      lanes->word[1][i] = static_cast<uint32_t>(p1);
      lanes->word[2][i] = static_cast<uint32_t>(p0 >> 32) ^ lanes->word[3][i] ^ key[1];
      lanes->word[3][i] = static_cast<uint32_t>(p0);
    }
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
}

// Highest power first.
template <size_t N>
double Polynomial(const double (&coefficient)[N], double x) {
  double sum = coefficient[0];
  for (size_t i = 1; i < N; ++i) sum = sum * x + coefficient[i];
  return sum;
}

// Wichura's PPND16 (Applied Statistics 37, 1988, algorithm AS 241): three rational functions.
constexpr double kCentreNumerator[] = {2.5090809287301226727e3, 3.3430575583588128105e4,
                                       6.7265770927008700853e4, 4.5921953931549871457e4,
                                       1.3731693765509461125e4, 1.9715909503065514427e3,
                                       1.3314166789178437745e2, 3.3871328727963666080e0};
constexpr double kCentreDenominator[] = {5.2264952788528545610e3, 2.8729085735721942674e4,
                                         3.9307895800092710610e4, 2.1213794301586595867e4,
                                         5.3941960214247511077e3, 6.8718700749205790830e2,
                                         4.2313330701600911252e1, 1.0};
constexpr double kShoulderNumerator[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2,
                                         2.41780725177450611770e-1, 1.27045825245236838258e0,
                                         3.64784832476320460504e0,  5.76949722146069140550e0,
                                         4.63033784615654529590e0,  1.42343711074968357734e0};
constexpr double kShoulderDenominator[] = {1.05075007164441684324e-9, 5.47593808499534494600e-4,
                                           1.51986665636164571966e-2, 1.48103976427480074590e-1,
                                           6.89767334985100004550e-1, 1.67638483018380384940e0,
                                           2.05319162663775882187e0,  1.0};
constexpr double kTailNumerator[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                                     1.24266094738807843860e-3, 2.65321895265761230930e-2,
                                     2.96560571828504891230e-1, 1.78482653991729133580e0,
                                     5.46378491116411436990e0,  6.65790464350110377720e0};
constexpr double kTailDenominator[] = {2.04426310338993978564e-15, 1.42151175831644588870e-7,
                                       1.84631831751005468180e-5,  7.86869131145613259100e-4,
                                       1.48753612908506148525e-2,  1.36929880922735805310e-1,
                                       5.99832206555887937690e-1,  1.0};

// The deviate above which a standard normal lies with probability `tail`, 0 < tail <= 1/2.
double UpperDeviate(double tail) {
  const double q = 0.5 - tail;
  if (q <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * Polynomial(kCentreNumerator, r) / Polynomial(kCentreDenominator, r);
  }
  const double r = std::sqrt(-DeterministicLog(tail));
  if (r <= 5.0) {
    return Polynomial(kShoulderNumerator, r - 1.6) / Polynomial(kShoulderDenominator, r - 1.6);
  }
  return Polynomial(kTailNumerator, r - 5.0) / Polynomial(kTailDenominator, r - 5.0);
}

// Sets out[i] = value(k) with the 53 bits k of element first + i.
template <class Value>
void FillInitial(uint64_t seed, uint32_t tensor, uint64_t first, absl::Span<float> out,
                 Value value) {
  // A block serves two elements.
  const std::array<uint32_t, 2> key = Words(seed);
  uint64_t have = UINT64_MAX;
  PhiloxBlock block{};
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t element = first + i;
    if (element / 2 != have) {
      have = element / 2;
      const std::array<uint32_t, 2> place = Words(have);
      block = Philox4x32({place[0], place[1], tensor, kInitialValuePurpose}, key);
    }
    const size_t word = element % 2 * 2;
    out[i] = value((uint64_t{block[word]} << 32 | block[word + 1]) >> 11);
  }
}

}  // namespace

double StandardNormal(uint64_t k) {
  // (k + 1/2) / 2^53 itself needs 54 bits when it lies above 1/2; its distance to the nearer end is
  // exact.
  constexpr uint64_t kHalf = uint64_t{1} << 52;
  const bool upper = k >= kHalf;
  const uint64_t nearer = upper ? 2 * kHalf - 1 - k : k;
  const double deviate = UpperDeviate((static_cast<double>(nearer) + 0.5) * 0x1p-53);
  return upper ? deviate : -deviate;
}

PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t p1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

TokenDraws::TokenDraws(uint64_t seed, uint64_t step)
    : key_(StepKey(seed, step, kTokenKeyPurpose)) {}

PhiloxBlock TokenDraws::operator()(uint64_t sample, uint32_t place) const {
  const std::array<uint32_t, 2> words = Words(sample);
  return Philox4x32({place, words[0], words[1], 0}, key_);
}

uint64_t WordsBelow(double p) {
  // A word is below p * 2^32 if and only if it is below the ceiling of that.
  const double scaled = p * 0x1p32;
  const auto floor = static_cast<uint64_t>(scaled);
  return static_cast<double>(floor) < scaled ? floor + 1 : floor;
}

void FillDropoutMask(const RngKey& key, double p, absl::Span<float> mask) {
  const uint64_t threshold = WordsBelow(p);
  const auto kept = static_cast<float>(1.0 / (1.0 - p));
  const std::array<uint32_t, 2> step_key = StepKey(key.seed, key.step, kStepKeyPurpose);
  const uint32_t site = uint32_t{key.stage} << 16 | key.site;

  constexpr size_t kElements = 4 * kLanes;
  PhiloxLanes lanes;
  float values[kElements];
  for (size_t first = 0; first < mask.size(); first += kElements) {
    const uint64_t block = first / 4;
    for (size_t i = 0; i < kLanes; ++i) {
      lanes.word[0][i] = static_cast<uint32_t>(block + i);
      lanes.word[1][i] = static_cast<uint32_t>((block + i) >> 32);
      lanes.word[2][i] = key.micro_batch;
      lanes.word[3][i] = site;
    }
    RunPhilox(step_key, &lanes);
    for (size_t i = 0; i < kLanes; ++i) {
      for (size_t j = 0; j < 4; ++j) {
        values[4 * i + j] = lanes.word[j][i] < threshold ? 0.0f : kept;
      }
    }
    std::copy_n(values, std::min(kElements, mask.size() - first), mask.data() + first);
  }
}

void FillNormalDeviates(uint64_t seed, uint32_t tensor, uint64_t first, double stddev,
                        absl::Span<float> out) {
  FillInitial(seed, tensor, first, out,
              [&](uint64_t k) { return static_cast<float>(stddev * StandardNormal(k)); });
}

void FillUniformDeviates(uint64_t seed, uint32_t tensor, uint64_t first, double low, double high,
                         absl::Span<float> out) {
  FillInitial(seed, tensor, first, out, [&](uint64_t k) {
    return static_cast<float>(low + (high - low) * (static_cast<double>(k) * 0x1p-53));
  });
}

}  // namespace eps
