#ifndef EPS_CLI_COMMANDS_WATCH_STEP_HISTORY_H_
#define EPS_CLI_COMMANDS_WATCH_STEP_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "eps/v1/types.pb.h"

namespace eps {

// The records of one job for a curve: all of a short run, and every second, fourth, eighth ... step
// of a longer one. Evaluations are kept, and so is the last step. Thread-compatible.
class StepHistory {
 public:
  // A record, and its place in the order in which records were added.
  struct Point {
    uint64_t serial = 0;  // from 1
    v1::StepRecord record;
  };

  // Keeps at most about `most` steps.
  explicit StepHistory(size_t most) : most_(most) {}

  // Adds the record of a step or of an evaluation. Leaves out what was added before.
  void Add(const v1::StepRecord& record);
  // Forgets everything: another job begins.
  void Clear();

  // Returns the points that were added after the one with this serial number, in order; 0: all.
  std::vector<Point> After(uint64_t serial) const;
  // The last step; null before it.
  const v1::StepRecord* last_step_or_null() const;

 private:
  // Keeps every second one of the kept steps.
  void ThinOut();

  const size_t most_;
  std::vector<Point> points_;
  Point last_step_;  // serial 0: none
  uint64_t last_serial_ = 0;
  uint64_t last_evaluation_ = 0;
  uint64_t stride_ = 1;  // steps that it divides are kept
  size_t steps_ = 0;     // among points_
};

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_WATCH_STEP_HISTORY_H_
