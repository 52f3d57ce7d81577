#ifndef EPS_CLI_LAUNCH_HOOK_CHECKPOINT_HOOK_H_
#define EPS_CLI_LAUNCH_HOOK_CHECKPOINT_HOOK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "cli/launch/child_process.h"

namespace eps {

// The command that a user wants after each checkpoint (checkpoint.on_saved), for uploads. One call
// at a time. For one thread, which has to live as long as the command may run.
class CheckpointHook {
 public:
  // `command` is for /bin/sh; empty: Start does nothing. A command that runs for longer than
  // `limit` is stopped; 0 sets no limit. `log_path` receives its output, of the last call only.
  CheckpointHook(std::string command, std::chrono::milliseconds limit, std::string log_path);

  // Starts the command with EPS_CHECKPOINT, the folder of the checkpoint, and EPS_STEP in its
  // environment. REQUIRES that none runs.
  absl::Status Start(const std::string& checkpoint, uint64_t step);
  // Returns whether the command runs. When it has ended, sets `*end` once: OK if it exited with 0;
  // else what happened, with the last lines of its log. DeadlineExceeded: it was stopped.
  bool Runs(absl::Status* end);
  // How long the command has run. REQUIRES that it runs.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  const std::string command_;
  const std::chrono::milliseconds limit_;
  const std::string log_path_;
  std::unique_ptr<ChildProcess> child_;  // null if none runs
  Clock::time_point started_;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_HOOK_CHECKPOINT_HOOK_H_
