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
#include "cli/launch/restart_rules.h"
#include "cli/launch/security/local_authority.h"

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
  // `survives` says which children Mend starts again.
  Cluster(const Config& config, std::string log_folder, Survives survives);

  // Gives the children that start from now on certificates of this authority.
  void UseAuthority(const LocalAuthority& authority);
  // Starts `count` servers on loopback ports that stay reserved for the life of this object. Sets
  // addresses().
  absl::Status StartServers(uint32_t count);
  // Uses servers that run elsewhere.
  void UseServers(std::vector<std::string> addresses) { addresses_ = std::move(addresses); }
  // Starts `count` workers. REQUIRES that addresses() is not empty.
  absl::Status StartWorkers(uint32_t count);

  const std::vector<std::string>& addresses() const { return addresses_; }

  // Starts children again as RestartRules says, with a note for each, at most storage.max_restarts
  // counted times; a server keeps its address and folder. Then returns as Check does. Unavailable
  // for a worker that is stopped again and again.
  absl::Status Mend();
  // Call this for every completed step of the job.
  void OnStep() { rules_.OnStep(); }
  // Restarts every worker that has ended without an error, for a job that was rolled back to a cut
  // after some workers had finished. These restarts count toward storage.max_restarts, too.
  absl::Status RestartFinishedWorkers();
  // Returns OK while every child runs or is a worker that exited with 0 or was asked to stop.
  // Otherwise names the child that ended, how it ended, and the last lines of its log. Reports a
  // server before a worker, and a killed worker before another one, because workers fail as a
  // consequence. Unavailable if a signal ended the child.
  absl::Status Check();
  // Like Check, but ignores workers that ended with an error, as they do after the job has failed.
  absl::Status CheckLost();
  // Returns whether every worker has ended.
  bool WorkersEnded();
  // Returns whether a server has ended because somebody asked it to.
  bool ServersStopped();
  // Stops the workers with SIGTERM, then the servers with SIGINT, after which they do not drain.
  // Each has `grace` to exit.
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
  absl::Status StartAgain(Child* child, RestartRules::Action action, const absl::Status& failure);
  // Notes which children have ended.
  void SeeEnds();
  // Returns as Check or CheckLost do, for the children that were seen to have ended: one that ends
  // while Mend runs is left to the next call.
  absl::Status FirstFailure(bool of_workers_too) const;

  const Config config_;
  const std::string log_folder_;
  const std::string config_path_;
  bool config_written_ = false;
  std::vector<std::string> environment_;
  std::vector<std::string> server_security_;  // arguments of servers, and of workers
  std::vector<std::string> worker_security_;
  std::vector<std::string> addresses_;
  std::vector<ReservedPort> ports_;  // of servers_
  std::vector<Child> servers_;
  std::vector<Child> workers_;
  RestartRules rules_;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_CLUSTER_H_
