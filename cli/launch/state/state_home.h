#ifndef EPS_CLI_LAUNCH_STATE_STATE_HOME_H_
#define EPS_CLI_LAUNCH_STATE_STATE_HOME_H_

// Where a run keeps its durable state if the user did not say (storage.kind=auto).

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"

namespace eps {

// Returns the bytes that the cuts of a job take on the disks of `servers` servers together: two
// slots of each chunk and of the residuals (docs/formats/extent.md). InvalidArgument for an unknown
// codec, or if a server would hold nothing.
absl::StatusOr<uint64_t> StateRoom(const JobSpec& spec, uint32_t servers);

// InvalidArgument if there are drives and no folder for the catalogue, or if a part of the state is
// to be in memory (storage.dram) that is there as a whole.
absl::Status CheckPlace(const StorageConfig& storage);

// Call this for a run that starts `servers` servers. If `config` leaves the choice open and names
// an output folder, chooses memory with cuts in checkpoint.dir/state as long as that file system
// holds them and a checkpoint, and memory alone otherwise; sets storage.kind, path, staging and
// `chosen`. Returns the line that tells the user; empty if nothing was open. Errors as StateRoom
// and CheckPlace.
absl::StatusOr<std::string> ChooseState(const JobSpec& spec, uint32_t servers, Config* config);

// Removes the state that ChooseState chose, with everything in it. REQUIRES that no server runs.
absl::Status RemoveChosenState(const Config& config);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_STATE_STATE_HOME_H_
