#ifndef EPS_CLI_LAUNCH_CHILD_PROCESS_H_
#define EPS_CLI_LAUNCH_CHILD_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"

namespace eps {

struct ChildOptions {
  std::string name;                      // "server 0": stands in errors
  std::vector<std::string> argv;         // argv[0] is the path of the program
  std::vector<std::string> environment;  // NAME=value, all of it
  std::string log_path;                  // stderr, and stdout unless it is read, is added to it
  bool read_stdout = false;              // for WaitForLine
};

// A process that cannot outlive this one: the kernel kills it when the thread that started it ends,
// however it ends, and the destructor stops it. It has a process group of its own, so that a
// Ctrl-C in the terminal reaches it only through its parent. Thread-compatible.
class ChildProcess {
 public:
  // Call it from a thread that lives as long as the process should. NotFound if the program is not
  // there; Internal with the reason else.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(ChildOptions options);
  // Stops it: SIGTERM, two seconds, SIGKILL.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return options_.name; }
  const std::string& log_path() const { return options_.log_path; }
  pid_t pid() const { return pid_; }

  // The rest of the first line of its stdout that starts with `prefix`; other lines are skipped.
  // DeadlineExceeded; or, if it ended before, what Failure() says. REQUIRES read_stdout.
  absl::StatusOr<std::string> WaitForLine(absl::string_view prefix,
                                          std::chrono::steady_clock::time_point deadline);

  // True while it runs. Never waits.
  bool Running();
  // Waits for its end; false if it still runs at the deadline.
  bool WaitExit(std::chrono::steady_clock::time_point deadline);
  void Signal(int signal);
  // SIGTERM, then SIGKILL after `grace`.
  void Stop(std::chrono::milliseconds grace);

  // REQUIRES that it ended. OK if it ended with exit code 0; else which process, how it ended, the
  // last lines of its log and where the log is. The status carries the exit code of the process if
  // that is one of base/exit_code.h; a signal is Unavailable.
  absl::Status Failure() const;
  // REQUIRES that it ended: as wait(2) gives it.
  int wait_status() const { return *wait_status_; }

 private:
  explicit ChildProcess(ChildOptions options) : options_(std::move(options)) {}

  const ChildOptions options_;
  pid_t pid_ = -1;
  Descriptor stdout_;
  std::string pending_;  // of stdout: what came after the last whole line
  std::optional<int> wait_status_;
};

// Kills every child process that is alive, now. Async-signal-safe.
void KillAllChildren();

// The last `lines` lines of a file, at most 8 KiB; empty if it cannot be read.
std::string LastLines(const std::string& path, int lines);

// A status whose ExitCodeOf is `code` if that stands in the project's table, else kInternal.
absl::Status StatusOfExitCode(int code, absl::string_view message);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_CHILD_PROCESS_H_
