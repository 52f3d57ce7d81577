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

// The program, environment and log of a child process.
struct ChildOptions {
  std::string name;                      // for errors: "server 0"
  std::vector<std::string> argv;         // argv[0] is the path of the program
  std::vector<std::string> environment;  // complete, as NAME=value
  std::string log_path;                  // receives stderr, and stdout unless it is read
  bool read_stdout = false;              // required by WaitForLine
};

// A process that cannot outlive this one: the kernel kills it when the thread that started it ends,
// and the destructor stops it. It has its own process group, so Ctrl-C in the terminal reaches only
// the parent. Thread-compatible.
class ChildProcess {
 public:
  // Starts a process. Call this on a thread that lives as long as the process should. NotFound if
  // the program does not exist; Internal with the reason for other errors.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(ChildOptions options);
  // Sends SIGTERM, and SIGKILL after two seconds.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return options_.name; }
  const std::string& log_path() const { return options_.log_path; }
  pid_t pid() const { return pid_; }

  // Waits for a line of stdout that starts with `prefix`, skips other lines, and returns the rest
  // of the line. DeadlineExceeded at the deadline; Failure() if the process ends first. REQUIRES
  // read_stdout.
  absl::StatusOr<std::string> WaitForLine(absl::string_view prefix,
                                          std::chrono::steady_clock::time_point deadline);

  // Returns whether the process runs. Does not block.
  bool Running();
  // Returns whether Running or WaitExit has found that the process has ended.
  bool ended() const { return wait_status_.has_value(); }
  // Waits for the end of the process. Returns false if it still runs at the deadline.
  bool WaitExit(std::chrono::steady_clock::time_point deadline);
  void Signal(int signal);
  // Sends SIGTERM, and SIGKILL after `grace`.
  void Stop(std::chrono::milliseconds grace);

  // Returns OK if the process exited with 0. Otherwise the status names the process, how it ended,
  // the last lines of its log and the log's path. It carries the exit code if base/exit_code.h has
  // it, and is Unavailable if a signal ended the process. REQUIRES that the process has ended.
  absl::Status Failure() const;
  // The status as wait(2) returns it. REQUIRES that the process has ended.
  int wait_status() const { return *wait_status_; }

 private:
  explicit ChildProcess(ChildOptions options) : options_(std::move(options)) {}

  const ChildOptions options_;
  pid_t pid_ = -1;
  Descriptor stdout_;
  std::string pending_;  // bytes of stdout after the last complete line
  std::optional<int> wait_status_;
};

// Kills every live child process at once. Async-signal-safe.
void KillAllChildren();

// Returns the last `lines` lines of a file, at most 8 KiB; empty if it cannot be read.
std::string LastLines(const std::string& path, int lines);

// Returns a status whose ExitCodeOf is `code`, or kInternal if base/exit_code.h does not have it.
absl::Status StatusOfExitCode(int code, absl::string_view message);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_CHILD_PROCESS_H_
