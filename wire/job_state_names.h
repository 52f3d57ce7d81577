#ifndef EPS_WIRE_JOB_STATE_NAMES_H_
#define EPS_WIRE_JOB_STATE_NAMES_H_

// The names of a job's states in texts and metrics.

#include <utility>

#include "eps/v1/control.pb.h"

namespace eps {

inline constexpr std::pair<v1::JobState, const char*> kJobStateNames[] = {
    {v1::JOB_STATE_IMPORTING, "importing"}, {v1::JOB_STATE_RECOVERING, "recovering"},
    {v1::JOB_STATE_RUNNING, "running"},     {v1::JOB_STATE_DONE, "done"},
    {v1::JOB_STATE_FAILED, "failed"},
};

// Returns "idle" for a server without a job.
inline const char* JobStateName(v1::JobState state) {
  for (const auto& [named, name] : kJobStateNames) {
    if (named == state) return name;
  }
  return "idle";
}

}  // namespace eps

#endif  // EPS_WIRE_JOB_STATE_NAMES_H_
