#ifndef EPS_CLI_COMMANDS_TRACE_JOB_TRACE_H_
#define EPS_CLI_COMMANDS_TRACE_JOB_TRACE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "cli/commands/trace/chrome_trace.h"
#include "wire/trace/trace_client.h"

namespace eps {

// Traces some steps of a job on all of its servers: opens a trace at each of them, the lead last,
// collects what they send until the lead has the steps, and closes the others. Use it from one
// thread.
class JobTrace {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // The job, and how the caller takes part.
  struct Options {
    std::vector<std::string> servers;  // all of the job, the lead first
    uint32_t steps = 0;
    TimePoint deadline;
    std::function<bool()> interrupted;            // asked several times a second
    std::function<void(uint32_t)> on_step_ended;  // the number of steps that have ended
  };

  explicit JobTrace(Options options) : options_(std::move(options)) {}
  // Ends all traces.
  ~JobTrace();

  // Blocks until the steps have been traced, and adds them to `trace`; an error adds what there is.
  // Cancelled if interrupted; DeadlineExceeded at the deadline; else the first error of a server.
  absl::Status Run(ChromeTrace* trace);
  // Returns the steps that have ended since the lead's first answer. Call it after Run.
  uint32_t steps_ended() EPS_EXCLUDES(mu_);

 private:
  // A trace at one server. `mu_` guards everything but `client` and `thread`.
  struct Stream {
    std::unique_ptr<TraceClient> client;
    std::thread thread;
    bool answered = false;
    bool over = false;
    absl::Status end;
    int64_t ahead_ns = 0;  // the server's clock, of this process's
    int64_t error_ns = 0;
    int64_t until_ns = 0;  // everything that ended before has arrived, on this process's clock
    std::vector<v1::TraceReport> reports;
  };

  absl::Status Connect();
  void Open(size_t server, uint32_t steps);
  void OnReply(size_t server, const v1::TraceReply& reply) EPS_EXCLUDES(mu_);
  // Waits until `reached` holds, which is called with the lock held.
  absl::Status WaitUntil(const std::function<bool()>& reached) EPS_EXCLUDES(mu_);
  absl::Status Collect() EPS_EXCLUDES(mu_);
  void Close();
  // Returns the first error of a server; OK if there is none.
  absl::Status FirstError() const EPS_REQUIRES(mu_);

  const Options options_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Stream> streams_;  // by server
  uint32_t steps_ended_ EPS_GUARDED_BY(mu_) = 0;
  uint32_t steps_shown_ EPS_GUARDED_BY(mu_) = 0;
  int64_t first_ns_ EPS_GUARDED_BY(mu_) = 0;  // the lead's first answer, on its clock
};

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_TRACE_JOB_TRACE_H_
