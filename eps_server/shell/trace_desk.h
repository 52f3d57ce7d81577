#ifndef EPS_SERVER_SHELL_TRACE_DESK_H_
#define EPS_SERVER_SHELL_TRACE_DESK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "eps/v1/data.pb.h"
#include "eps_server/core/trace/trace_action.h"

namespace eps {

// Tells the open traces of a job how far it is, and at the lead what workers report. The protocol
// knows nothing of it: the desk looks at the actions of the core and at the messages that pass.
// Thread-safe.
class TraceDesk {
 public:
  // An open trace. The desk calls it on any thread, without its lock; do not block.
  class Listener {
   public:
    virtual ~Listener() = default;
    // A step is open on this shard; `done`: it is the one after the last.
    virtual void OnStepOpened(uint64_t step, bool done) = 0;
    // At the lead: a worker begins a step and may bring its spans.
    virtual void OnBegin(const v1::BeginStepRequest& request) = 0;
    // The job has failed: nothing follows.
    virtual void OnFailed() = 0;
    // Whether the workers shall record the step that begins now.
    virtual bool WantsSpans() = 0;
  };

  // `steps`: of the job.
  explicit TraceDesk(uint64_t steps) : steps_(steps) {}

  void Add(const std::shared_ptr<Listener>& listener) EPS_EXCLUDES(mu_);
  void Remove(const Listener* listener) EPS_EXCLUDES(mu_);

  // Call this with each action of the core, in order, on the job's sequence.
  void OnAction(const TraceAction& action);
  // At the lead: for each BeginStep of a worker that begins a step.
  void OnBegin(const v1::BeginStepRequest& request);
  // At the lead: completes the reply to a BeginStep that was received at that time (TraceNowNs).
  void Order(int64_t received_ns, v1::BeginStepReply* reply);

 private:
  // Returns the listeners that are alive; empty, without taking the lock, if there is none.
  std::vector<std::shared_ptr<Listener>> Alive() EPS_EXCLUDES(mu_);

  const uint64_t steps_;
  int64_t opened_ns_ = 0;  // used on the sequence: when the open step opened; 0: unknown
  std::atomic<int> count_{0};
  Mutex mu_;
  std::vector<std::weak_ptr<Listener>> listeners_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_TRACE_DESK_H_
