#ifndef EPS_PLANNER_SIMULATOR_DRAWS_H_
#define EPS_PLANNER_SIMULATOR_DRAWS_H_

// Random numbers for a simulation. Each draw is a function of (seed, purpose, stream, index) alone,
// so changing one part of a scenario leaves all other draws unchanged. The draws use only + - * /
// sqrt, so every machine draws the same numbers.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/step_model.h"
#include "planner/units.h"

namespace eps::planner::simulator {

// The uses of random numbers, which draw from separate sequences.
enum class DrawPurpose : uint32_t {
  kWorkerFailure = 1,
  kServerFailure = 2,
  kFailureHeight = 16,  // added to one of the two purposes above
  kJitter = 3,
};

// Returns a uniform draw from the open interval (0, 1).
double UniformDraw(uint64_t seed, DrawPurpose purpose, uint32_t stream, uint64_t index);

// Returns the largest of `count` lognormal factors exp(sigma * z), each with median 1, from one
// uniform draw: it is below x with probability P(x)^count. REQUIRES count > 0.
double LargestLognormal(double uniform, double count, double sigma);

// Returns the classes with the jitter of one step. The slowest worker of each class is drawn from
// the exact distribution of the largest of its factors; all others run at their median, since a
// step waits only for the slowest.
std::vector<WorkerClass> Disturbed(const std::vector<WorkerClass>& classes, double sigma,
                                   uint64_t seed, uint64_t step);

// The failure times of a process whose rate may change. Points are spread evenly over the plane of
// time and rate, one per unit of area; a point below the current rate is a failure (thinning; Lewis
// and Shedler 1979). The failures of a lower rate are therefore a subset of those of a higher rate,
// at the same times. Not thread-safe.
class FailurePoints {
 public:
  // A failure at every rate above `height`.
  struct Point {
    Seconds at;
    PerSecond height;
  };
  FailurePoints(uint64_t seed, DrawPurpose purpose, PerSecond highest_rate);

  // The earliest point that has not been taken; at infinity if `highest_rate` is 0.
  const Point& next() const { return next_; }
  void Take();

 private:
  // Points with heights in [low, high). The bands are octaves of the rate, so the points below a
  // rate do not depend on the highest rate.
  struct Band {
    PerSecond low;
    PerSecond high;
    Seconds at;  // of its next point
    uint64_t index = 0;
  };
  void Draw(size_t band);
  void Find();

  const uint64_t seed_;
  const DrawPurpose purpose_;
  std::vector<Band> bands_;
  size_t earliest_ = 0;
  Point next_;
};

}  // namespace eps::planner::simulator

#endif  // EPS_PLANNER_SIMULATOR_DRAWS_H_
