#include "planner/simulator/draws.h"

#include <algorithm>
#include <limits>

#include "base/numerics/deterministic_math.h"
#include "base/numerics/rng.h"

namespace eps::planner::simulator {
namespace {

// Upper end of the lowest band: one failure in 35,000 years.
constexpr double kLowestRate = 0x1p-40;
constexpr uint64_t kUniforms = uint64_t{1} << 53;

uint32_t Low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

DrawPurpose HeightOf(DrawPurpose failure) {
  return static_cast<DrawPurpose>(static_cast<uint32_t>(DrawPurpose::kFailureHeight) +
                                  static_cast<uint32_t>(failure));
}

}  // namespace

double UniformDraw(uint64_t seed, DrawPurpose purpose, uint32_t stream, uint64_t index) {
  const PhiloxBlock block = Philox4x32(
      {Low(index), High(index), stream, static_cast<uint32_t>(purpose)}, {Low(seed), High(seed)});
  // With 52 bits, adding 1/2 is exact and neither end is reached.
  const uint64_t k = (uint64_t{block[1]} << 32 | block[0]) >> 12;
  return (static_cast<double>(k) + 0.5) * 0x1p-52;
}

double LargestLognormal(double uniform, double count, double sigma) {
  const double below = DeterministicExp(DeterministicLog(uniform) / count);
  const auto k = static_cast<uint64_t>(below * static_cast<double>(kUniforms));
  return DeterministicExp(sigma * StandardNormal(std::min(k, kUniforms - 1)));
}

std::vector<WorkerClass> Disturbed(const std::vector<WorkerClass>& classes, double sigma,
                                   uint64_t seed, uint64_t step) {
  std::vector<WorkerClass> disturbed;
  for (size_t i = 0; i < classes.size(); ++i) {
    const double uniform = UniformDraw(seed, DrawPurpose::kJitter, static_cast<uint32_t>(i), step);
    const double largest = LargestLognormal(uniform, classes[i].workers, sigma);
    WorkerClass slowest = classes[i];
    slowest.workers = 1;
    slowest.slowdown *= largest;
    disturbed.push_back(slowest);
    if (classes[i].workers == 1) continue;
    WorkerClass others = classes[i];
    --others.workers;
    others.slowdown *= std::min(1.0, largest);
    disturbed.push_back(others);
  }
  return disturbed;
}

FailurePoints::FailurePoints(uint64_t seed, DrawPurpose purpose, PerSecond highest_rate)
    : seed_(seed), purpose_(purpose) {
  PerSecond low(0);
  for (PerSecond high(kLowestRate); low < highest_rate; high = 2 * high) {
    bands_.push_back({low, high, Seconds(0)});
    low = high;
  }
  for (size_t band = 0; band < bands_.size(); ++band) Draw(band);
  Find();
}

void FailurePoints::Take() {
  if (bands_.empty()) return;
  Draw(earliest_);
  Find();
}

// The gaps of a Poisson process are exponential.
void FailurePoints::Draw(size_t band) {
  Band& b = bands_[band];
  const double uniform = UniformDraw(seed_, purpose_, static_cast<uint32_t>(band), b.index++);
  b.at += Seconds(-DeterministicLog(uniform) / (b.high - b.low).value());
}

void FailurePoints::Find() {
  next_ = {Seconds(std::numeric_limits<double>::infinity()), PerSecond(0)};
  if (bands_.empty()) return;
  for (size_t band = 0; band < bands_.size(); ++band) {
    if (bands_[band].at < bands_[earliest_].at) earliest_ = band;
  }
  const Band& b = bands_[earliest_];
  const double uniform =
      UniformDraw(seed_, HeightOf(purpose_), static_cast<uint32_t>(earliest_), b.index);
  next_ = {b.at, b.low + uniform * (b.high - b.low)};
}

}  // namespace eps::planner::simulator
