#ifndef EPS_WIRE_JOB_TERMS_H_
#define EPS_WIRE_JOB_TERMS_H_

// The terms of the Scheduler service that servers and clients share. Pure functions.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "eps/v1/scheduler.pb.h"

namespace eps {

// The owner of jobs that any driver may claim.
inline constexpr char kServiceOwner[] = "service";

inline constexpr size_t kMaxJobNameBytes = 63;
inline constexpr size_t kMaxJobConfigBytes = size_t{256} << 10;
// Says in errors what a name has to be.
inline constexpr char kJobNameRule[] =
    "1 to 63 characters a-z, 0-9 and \"-\", without \"-\" at either end";

// Returns whether a job may have this name: a DNS label (RFC 1123), because it also names folders
// and the objects of schedulers.
bool IsJobName(absl::string_view name);

// Names a phase for people: "RUNNING". A number for one that this release does not know.
std::string PhaseName(v1::JobPhase phase);
// Returns whether a job in this phase has ended.
bool HasEnded(v1::JobPhase phase);

}  // namespace eps

#endif  // EPS_WIRE_JOB_TERMS_H_
