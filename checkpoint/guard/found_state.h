#ifndef EPS_CHECKPOINT_GUARD_FOUND_STATE_H_
#define EPS_CHECKPOINT_GUARD_FOUND_STATE_H_

// Looks into a state folder before servers start there. A server that starts in an empty folder
// creates a new state, so a disk that is not mounted has to be noticed earlier.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"

namespace eps {

// The state of one job in the folders server-0 to server-N-1 of a state folder.
struct FoundState {
  bool known = false;   // whether a catalogue names the job
  std::string missing;  // what is gone although other parts are there, with its path; or empty
};

// Looks for the job and changes nothing. A part is missing if a server has job folders and no
// catalogue, or if it lacks the job although another one of the same number of servers has a cut of
// it. A folder that a server is using counts as complete. DataLoss names a damaged catalogue.
absl::StatusOr<FoundState> FindState(const std::string& state, uint32_t servers, JobId job);

// Moves all folders server-K of an incomplete state to lost+found in the state folder, durably, so
// that servers can start over. REQUIRES that no server uses them.
absl::Status SetStateAside(const std::string& state);

}  // namespace eps

#endif  // EPS_CHECKPOINT_GUARD_FOUND_STATE_H_
