#ifndef EPS_CLI_COMMANDS_WATCH_CLUSTER_WATCH_H_
#define EPS_CLI_COMMANDS_WATCH_CLUSTER_WATCH_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cli/commands/watch/cluster_events.h"
#include "cli/commands/watch/step_history.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/scheduler.pb.h"
#include "wire/control_client.h"

namespace eps {

// Looks at all servers and at the board of jobs once a second, and follows the steps of the lead's
// job. Needs no role but `viewer`. Thread-safe.
class ClusterWatch {
 public:
  // The last look at a server. Plain value.
  struct ServerView {
    std::string address;
    std::string error;       // why it does not answer; empty: it does
    bool seen = false;       // it has answered once, so that there is a status
    v1::StatusReply status;  // of its last answer
    double age_seconds = 0;  // of that
  };
  // The last look at everything. Plain value.
  struct View {
    std::vector<ServerView> servers;  // the lead first
    v1::ListJobsReply board;
    std::deque<ClusterEvents::Event> events;
  };
  // The records of a job after a place in their order.
  struct Steps {
    uint64_t job_id = 0;
    std::vector<StepHistory::Point> points;
  };

  // Starts to look. `servers` are addresses, the lead first.
  explicit ClusterWatch(std::vector<std::string> servers);
  // Ends all calls and waits for them.
  ~ClusterWatch();

  View Now() const EPS_EXCLUDES(mu_);
  // Returns the points after `serial` if the job is still `job_id`; else all.
  Steps StepsAfter(uint64_t job_id, uint64_t serial) const EPS_EXCLUDES(mu_);
  // Waits until every server and the board were asked once, or until `deadline`.
  void WaitForFirstLook(std::chrono::steady_clock::time_point deadline) EPS_EXCLUDES(mu_);

 private:
  using Clock = std::chrono::steady_clock;
  // A server, and when it was asked.
  struct Server {
    ServerView view;
    Clock::time_point answered;
    bool asked = false;
  };

  // Each of these runs on a thread until the end.
  void LookAtServer(size_t index);
  void LookAtBoard();
  void FollowSteps();

  // Waits, and returns false at the end.
  bool Pause() EPS_EXCLUDES(mu_);
  // Follows the records of one job until its stream ends.
  void FollowJob(uint64_t job_id);

  const std::vector<std::string> addresses_;
  mutable Mutex mu_;
  CondVar changed_;
  bool ends_ EPS_GUARDED_BY(mu_) = false;
  std::vector<Server> servers_ EPS_GUARDED_BY(mu_);
  v1::ListJobsReply board_ EPS_GUARDED_BY(mu_);
  bool board_asked_ EPS_GUARDED_BY(mu_) = false;
  ClusterEvents events_ EPS_GUARDED_BY(mu_);
  uint64_t followed_job_ EPS_GUARDED_BY(mu_) = 0;
  StepHistory history_ EPS_GUARDED_BY(mu_);
  std::shared_ptr<ControlClient> follower_ EPS_GUARDED_BY(mu_);  // null between two jobs
  std::vector<std::thread> threads_;  // last, because they use the members above
};

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_WATCH_CLUSTER_WATCH_H_
