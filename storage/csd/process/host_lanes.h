#ifndef EPS_STORAGE_CSD_PROCESS_HOST_LANES_H_
#define EPS_STORAGE_CSD_PROCESS_HOST_LANES_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "storage/csd/process/child.h"
#include "storage/csd/process/exchange.h"
#include "storage/csd/process/frames.h"

namespace eps::csd {

// A command with the host's memory for its data, which stays valid until `done`.
struct HostJob {
  Command command;  // its number is set by HostLanes
  ExchangeData data;
  std::function<void(absl::Status)> done;  // on a thread of the lanes
};

// Gives each command to the first lane that is free. Thread-safe. Commands that are in flight
// together are carried out in any order. Once the process has ended, or a command took too long and
// the process was killed, every command fails with Unavailable.
class HostLanes {
 public:
  using Lost = std::function<void(const absl::Status&)>;

  // `name` stands for the device in errors: "csd-0 (/drives/0/medium)". Calls `lost_or_null` at
  // most once, on any thread, when the first command has failed because the process ended or was
  // killed.
  HostLanes(std::string name, std::unique_ptr<Child> child,
            std::chrono::milliseconds command_timeout, Lost lost_or_null);
  ~HostLanes();  // completes the commands that are left

  void Run(HostJob job) EPS_EXCLUDES(mu_);
  pid_t pid() const { return child_->pid(); }

 private:
  void RunLane(int lane) EPS_EXCLUDES(mu_);
  // Waits for a command. Returns false at the end.
  bool Take(HostJob* job) EPS_EXCLUDES(mu_);
  absl::Status Perform(int lane, HostJob* job) EPS_EXCLUDES(mu_);
  // Ends the process because of `cause`. Returns the error of the command.
  absl::Status End(const absl::Status& cause, const Command& command) EPS_EXCLUDES(mu_);

  const std::string name_;
  const std::unique_ptr<Child> child_;
  const std::chrono::milliseconds command_timeout_;
  const Lost lost_;  // may be null
  Mutex mu_;
  CondVar wake_;
  std::deque<HostJob> line_ EPS_GUARDED_BY(mu_);
  uint64_t last_number_ EPS_GUARDED_BY(mu_) = 1;  // that of the start
  bool closing_ EPS_GUARDED_BY(mu_) = false;
  std::string end_ EPS_GUARDED_BY(mu_);  // how the process ended; empty while it runs
  std::vector<std::thread> threads_;     // by lane
};

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_PROCESS_HOST_LANES_H_
