#ifndef EPS_PLANNER_LANES_H_
#define EPS_PLANNER_LANES_H_

// Resources of a step that run one task at a time. Thread-compatible.

#include <cstddef>
#include <vector>

#include "planner/units.h"

namespace eps::planner {

// Runs tasks one at a time, in the order of the calls.
class Lane {
 public:
  // Adds a task that can begin at `ready` and returns when it ends.
  Seconds Run(Seconds ready, Seconds duration) {
    free_ = Max(free_, ready) + duration;
    busy_ += duration;
    return free_;
  }
  Seconds free() const { return free_; }
  Seconds busy() const { return busy_; }

 private:
  Seconds free_;
  Seconds busy_;
};

// Runs other work only while no urgent work is pending. The calls of each kind must be in order of
// time.
class UrgentLane {
 public:
  // Adds urgent work that can begin at `ready` and returns when it ends.
  Seconds RunUrgent(Seconds ready, Seconds work) {
    const Seconds start = Max(urgent_free_, ready);
    urgent_free_ = start + work;
    urgent_.push_back({start, urgent_free_});
    busy_ += work;
    return urgent_free_;
  }
  // Adds other work that can begin at `ready`; it runs after all earlier other work.
  void Run(Seconds ready, Seconds work) {
    const Seconds start = Max(free_, ready);
    free_ = start + work;
    busy_ += work;
    for (; next_ < urgent_.size() && urgent_[next_].start < free_; ++next_) {
      const Span& span = urgent_[next_];
      if (span.end > start) free_ += span.end - Max(span.start, start);
    }
  }
  Seconds free() const { return free_; }
  Seconds busy() const { return busy_; }

 private:
  // The time in which one piece of urgent work runs.
  struct Span {
    Seconds start;
    Seconds end;
  };
  std::vector<Span> urgent_;  // in order, without overlap
  size_t next_ = 0;           // the first span that has not delayed other work yet
  Seconds urgent_free_;
  Seconds free_;
  Seconds busy_;
};

}  // namespace eps::planner

#endif  // EPS_PLANNER_LANES_H_
