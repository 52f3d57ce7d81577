#ifndef EPS_PLANNER_SIMULATOR_DRAWS_H_
#define EPS_PLANNER_SIMULATOR_DRAWS_H_

// Random numbers of a simulation. Each is a function of (seed, purpose, stream, index) alone, so a
// change of one thing in a scenario leaves all other draws as they are; and of + - * / sqrt alone,
// so every machine draws the same.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/step_model.h"
#include "planner/units.h"

namespace eps::planner::simulator {

enum class DrawPurpose : uint32_t {
  kWorkerFailure = 1,
  kServerFailure = 2,
  kFailureHeight = 16,  // beside one of the two above
  kJitter = 3,
};

// Uniform in the open interval from 0 to 1.
double UniformDraw(uint64_t seed, DrawPurpose purpose, uint32_t stream, uint64_t index);

// The largest of `count` lognormal factors exp(sigma * z), each of median 1, from one uniform draw:
// it lies below x with the probability P(x)^count. REQUIRES count > 0.
double LargestLognormal(double uniform, double count, double sigma);

// The classes with a step's jitter: of each the slowest worker is drawn from the exact distribution
// of the largest of its factors, all others run at their median, since only the slowest is waited
// for.
std::vector<WorkerClass> Disturbed(const std::vector<WorkerClass>& classes, double sigma,
                                   uint64_t seed, uint64_t step);

// Times of failures of a rate that may change. Points lie evenly over the plane of time and rate,
// one per unit; a failure is a point below the rate of its time (thinning; Lewis and Shedler 1979).
// So the failures of a lower rate are some of those of a higher one, at the same times.
class FailurePoints {
 public:
  struct Point {
    Seconds at;
    PerSecond height;
  };
  FailurePoints(uint64_t seed, DrawPurpose purpose, PerSecond highest_rate);

  // The earliest point that was not taken; at infinity if `highest_rate` is 0.
  const Point& next() const { return next_; }
  void Take();

 private:
  // Points with heights in [low, high): between octaves of the rate, so that those below a rate are
  // the same whatever the highest rate is.
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
