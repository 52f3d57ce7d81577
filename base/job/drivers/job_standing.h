#ifndef EPS_BASE_JOB_DRIVERS_JOB_STANDING_H_
#define EPS_BASE_JOB_DRIVERS_JOB_STANDING_H_

#include <cstdint>

#include "base/job/drivers/driver_lease.h"
#include "base/job/drivers/job_scope.h"

namespace eps {

// Whether somebody drives a job, and whether it may train (docs/protocol.md, "The rules of gates").
enum class JobStanding {
  kOffTheBoard,  // the board of jobs says nothing of it
  kDriven,       // a driver has its lease
  kUndriven,     // its driver's lease is over; it trains on until the next driver has it
  kHeld,         // no driver has it, and none will: it is paused, or has ended
};

// A job of the board, and how it stands. Plain value.
struct BoardJob {
  uint64_t job_id = 0;  // of Control; 0 until a driver has reported it
  DriverLease lease;    // the last one that a driver had
  JobStanding standing = JobStanding::kOffTheBoard;
  uint32_t workers = 0;  // that are wanted; 0: nobody has said
  JobScope scope = {};   // without a name if the board does not have it
};

}  // namespace eps

#endif  // EPS_BASE_JOB_DRIVERS_JOB_STANDING_H_
