#ifndef EPS_CLI_LAUNCH_CLUSTER_H_
#define EPS_CLI_LAUNCH_CLUSTER_H_

// Starts and supervises the parameter servers and workers of a run as child processes.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "cli/launch/child_process.h"
#include "cli/launch/reserved_port.h"

namespace eps {

// Returns the folder below which each server of this run has a folder for its durable state.
// InvalidArgument if neither storage.path nor checkpoint.dir is set.
absl::StatusOr<std::string> StorageFolder(const Config& config);

// The children of one run. The destructor stops them. Thread-compatible: call it from one thread
// that lives as long as the run.
class Cluster {
 public:
  // Children read their configuration from a file in `log_folder`, which must exist, and write
  // their logs there. They do not inherit EPS_SECTION__KEY variables: the file holds those values.
  Cluster(const Config& config, std::string log_folder);

  // Starts `count` servers on loopback ports that stay reserved for the life of this object. Sets
  // addresses().
  absl::Status StartServers(uint32_t count);
  // Uses servers that run elsewhere.
  void UseServers(std::vector<std::string> addresses) { addresses_ = std::move(addresses); }
  // Starts `count` workers. REQUIRES that addresses() is not empty.
  absl::Status StartWorkers(uint32_t count);

  const std::vector<std::string>& addresses() const { return addresses_; }

  // Restarts children that were killed, or that gave up because another one was unavailable, at
  // most storage.max_restarts times in all; a server keeps its address and folder. Then returns
  // Check(). REQUIRES StorageConfig::durable().
  absl::Status Mend();
  // Restarts every worker that has ended without an error, for a job that was rolled back to a cut
  // after some workers had finished. These restarts count toward storage.max_restarts, too.
  absl::Status RestartFinishedWorkers();
  // Returns OK while every child runs or is a worker that exited with 0. Otherwise names the child
  // that ended, how it ended, and the last lines of its log. Reports a server before a worker,
  // because workers fail as a consequence.
  absl::Status Check();
  // Returns whether every worker has ended.
  bool WorkersEnded();
  // Stops the workers, then the servers. Each has `grace` to exit after SIGTERM.
  void Stop(std::chrono::milliseconds grace);

 private:
  // A process and everything needed to restart it.
  struct Child {
    std::string name;
    std::vector<std::string> argv;
    std::vector<std::string> variables;
    std::unique_ptr<ChildProcess> process;
  };

  absl::Status WriteConfig();
  ChildOptions OptionsOf(const Child& child) const;
  // Starts a child for the first time, with an empty log. Restarts append to that log.
  absl::Status Start(Child* child, bool read_stdout);
  absl::Status StartAgain(Child* child);
  absl::Status Restart(Child* child, const absl::Status& failure);

  const Config config_;
  const std::string log_folder_;
  const std::string config_path_;
  bool config_written_ = false;
  std::vector<std::string> environment_;
  std::vector<std::string> addresses_;
  std::vector<ReservedPort> ports_;  // of servers_
  std::vector<Child> servers_;
  std::vector<Child> workers_;
  uint64_t restarts_ = 0;  // restarts of all children together
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_CLUSTER_H_
