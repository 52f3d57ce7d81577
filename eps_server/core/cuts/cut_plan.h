#ifndef EPS_SERVER_CORE_CUTS_CUT_PLAN_H_
#define EPS_SERVER_CORE_CUTS_CUT_PLAN_H_

#include <cstdint>

namespace eps {

// Chooses the steps that end with a cut: by their number, and by the time since the last cut. A
// plain value. Times are those of the lead's events.
class CutPlan {
 public:
  CutPlan() = default;  // disables cuts
  // Takes values of CoreLimits. The last step of a job always ends with a cut.
  CutPlan(uint64_t cut_steps, uint64_t cut_ms);

  bool enabled() const { return cuts_; }
  // Call when the job opens after the border of `step`, which is durable if cuts are enabled.
  void OnOpened(uint64_t step, uint64_t now_ms);
  // Returns whether `step`, which is decided now, ends with a cut, if `last_step` is the last one
  // of the job.
  bool Due(uint64_t step, uint64_t last_step, uint64_t now_ms) const;
  // Call for each step that ends with a cut, in order.
  void OnDecided(uint64_t step, uint64_t now_ms);
  // Allows at most `most_steps` from one cut to the next; 0 sets no limit.
  void Limit(uint64_t most_steps) { most_ = most_steps; }
  // Reports the durations of a cut, from its border until it is durable on all shards, and of a
  // step. They set the interval of later cuts (base/job/cut_interval.h).
  void OnMeasured(double cut_seconds, double step_seconds);
  // Every shard has the youngest cut that was decided, or a cut that is durable on all shards is
  // younger.
  void OnEverywhere(uint64_t step);
  // Returns the current interval in steps; 0 sets none.
  uint64_t interval() const { return interval_; }

 private:
  bool TimeIsUp(uint64_t now_ms) const;

  bool cuts_ = false;
  bool auto_ = false;
  uint64_t interval_ = 0;  // in steps; 0 sets none
  uint64_t most_ = 0;      // in steps; 0 sets no limit
  uint64_t cut_ms_ = 0;    // 0 sets no limit
  uint64_t last_cut_ = 0;
  uint64_t last_cut_ms_ = 0;  // when it was decided
  bool in_flight_ = false;    // some shard may not have the last cut yet
  double cut_seconds_ = 0;    // the duration of the last measured cut
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_CUTS_CUT_PLAN_H_
