#ifndef EPS_BASE_JOB_LAYOUT_VISITS_H_
#define EPS_BASE_JOB_LAYOUT_VISITS_H_

// The order in which a worker visits the stages in a step, and the visits for which it fetches
// weights: pure functions of the spec, so that what workers fetch, servers encode ahead and plans
// count is the same.

#include <optional>
#include <tuple>
#include <vector>

#include "base/ids.h"
#include "base/job/job_spec.h"

namespace eps {

// A worker's pass over a stage within a step: forward or backward. The last stage runs both passes
// in one visit, which is a backward one.
struct Visit {
  StageId stage;
  bool backward = false;
  friend bool operator==(const Visit& a, const Visit& b) {
    return a.stage == b.stage && a.backward == b.backward;
  }
  friend bool operator<(const Visit& a, const Visit& b) {
    return std::tie(a.stage, a.backward) < std::tie(b.stage, b.backward);
  }
};

// Returns the visits of a step: up, the last stage once, and down to the lowest stage that has
// something to train.
std::vector<Visit> VisitsOfStep(const JobSpec& spec);
// Returns whether a worker fetches the stage's weights for the visit.
bool FetchesWeights(const JobSpec& spec, const Visit& visit);
// Returns the next visit of the step for which a worker fetches weights. After the forward visit of
// the last stage, with which an evaluation ends, there is none.
std::optional<Visit> NextFetch(const JobSpec& spec, const Visit& visit);

}  // namespace eps

#endif  // EPS_BASE_JOB_LAYOUT_VISITS_H_
