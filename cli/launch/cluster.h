#ifndef EPS_CLI_LAUNCH_CLUSTER_H_
#define EPS_CLI_LAUNCH_CLUSTER_H_

// The processes of a run on this machine: parameter servers and workers as children.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/launch/child_process.h"
#include "cli/launch/reserved_port.h"
#include "base/config/config.h"

namespace eps {

// Where servers that are started here keep what is durable, each in a folder of its own.
// InvalidArgument if neither storage.path nor checkpoint.dir is set.
absl::StatusOr<std::string> StorageFolder(const Config& config);

class Cluster {
 public:
  // Children read their configuration from a file in `log_folder`, which exists; their logs go
  // there too. Variables EPS_SECTION__KEY are not handed on: what they said stands in the file.
  Cluster(const Config& config, std::string log_folder);

  // Starts `count` servers on loopback ports that are kept for them as long as this object lives;
  // addresses() has them when it returns.
  absl::Status StartServers(uint32_t count);
  // Attaches to servers that somebody else runs.
  void UseServers(std::vector<std::string> addresses) { addresses_ = std::move(addresses); }
  // REQUIRES addresses().
  absl::Status StartWorkers(uint32_t count);

  const std::vector<std::string>& addresses() const { return addresses_; }

  // Starts children again that were killed, or that gave up because another one was away: at most
  // storage.max_restarts, a server with its address and its folder. REQUIRES
  // StorageConfig::durable(). Then as Check.
  absl::Status Mend();
  // OK while every child runs, or is a worker that ended well; else what ended, how, and the last
  // lines of its log. Servers are named before workers, which fail as a consequence.
  absl::Status Check();
  // Whether every worker has ended.
  bool WorkersEnded();
  // Ends the workers, then the servers; each has `grace` to end by itself after SIGTERM.
  void Stop(std::chrono::milliseconds grace);

 private:
  // A program with what it takes to start it again.
  struct Child {
    std::string name;
    std::vector<std::string> argv;
    std::vector<std::string> variables;
    std::unique_ptr<ChildProcess> process;
  };

  absl::Status WriteConfig();
  ChildOptions OptionsOf(const Child& child) const;
  // Starts it for the first time. Its log is new then, and later starts add to it.
  absl::Status Start(Child* child, bool read_stdout);
  absl::Status StartAgain(Child* child);

  const Config config_;
  const std::string log_folder_;
  const std::string config_path_;
  bool config_written_ = false;
  std::vector<std::string> environment_;
  std::vector<std::string> addresses_;
  std::vector<ReservedPort> ports_;  // of servers_
  std::vector<Child> servers_;
  std::vector<Child> workers_;
  uint64_t restarts_ = 0;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_CLUSTER_H_
