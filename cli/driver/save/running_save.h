#ifndef EPS_CLI_DRIVER_SAVE_RUNNING_SAVE_H_
#define EPS_CLI_DRIVER_SAVE_RUNNING_SAVE_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/ids.h"

namespace eps {

// A request to save the job that runs on some servers.
struct RunningSave {
  std::string server;                    // the address of one of its servers
  std::optional<JobId> job;              // refuses any other one
  std::string root;                      // the folder of the checkpoint
  std::chrono::seconds patience{600};    // for the end of the open step
  std::function<bool()> is_interrupted;  // whether to give up
};

// Writes `root`/checkpoint-<step> of a running job at the first border that it has not passed, and
// returns its path. The job waits at the border until the servers' state is read, and goes on by
// itself if this process dies (cli/driver/save/lapsing_gate.h). The checkpoint is that of `eps
// train` at this border: the same state, and the records of the steps that the servers know. Prints
// the border and what the servers do not know. REQUIRES that nobody else writes to `root`.
//
// Unavailable if the job cannot be saved now (it recovers, or goes back to a cut), or a server does
// not answer; FailedPrecondition if it failed; NotFound if the server runs no job, or another one;
// DeadlineExceeded if the step does not end; Cancelled if it was interrupted; ResourceExhausted if
// the disk has no room. Other errors are those of ExportBorder.
absl::StatusOr<std::string> SaveRunningJob(const RunningSave& save);

}  // namespace eps

#endif  // EPS_CLI_DRIVER_SAVE_RUNNING_SAVE_H_
