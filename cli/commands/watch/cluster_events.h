#ifndef EPS_CLI_COMMANDS_WATCH_CLUSTER_EVENTS_H_
#define EPS_CLI_COMMANDS_WATCH_CLUSTER_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "eps/v1/control.pb.h"
#include "eps/v1/scheduler.pb.h"

namespace eps {

// Returns the name of a server's job: that on the board, else that of its spec, else its id.
std::string NameOfJob(const v1::StatusReply& status, const v1::ListJobsReply& board);

// The events of the servers and the jobs, as an observer finds out by comparing each answer with
// the one before it: what changes back between two looks is not noticed. Thread-compatible.
class ClusterEvents {
 public:
  static constexpr size_t kMostKept = 200;

  // An event. Plain value.
  struct Event {
    int64_t time_ms = 0;  // since 1970
    bool bad = false;     // somebody should look at it
    std::string text;
  };

  // A server answered, at this time.
  void OnStatus(int64_t time_ms, const std::string& address, const v1::StatusReply& status);
  // A server did not answer.
  void OnAway(int64_t time_ms, const std::string& address);
  // The lead answered with its board.
  void OnBoard(int64_t time_ms, const v1::ListJobsReply& board);

  // The last events, oldest first. The first look at a thing is none.
  const std::deque<Event>& events() const { return events_; }

 private:
  // The last look at a server.
  struct Known {
    std::optional<v1::StatusReply> status;  // of its last answer
    bool away = false;
  };

  void Add(int64_t time_ms, bool bad, std::string text);
  std::string NameOf(const v1::StatusReply& status) const;
  void Compare(int64_t time_ms, const std::string& address, const v1::StatusReply& before,
               const v1::StatusReply& now);

  std::map<std::string, Known> servers_;
  std::optional<v1::ListJobsReply> board_;
  std::deque<Event> events_;
};

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_WATCH_CLUSTER_EVENTS_H_
