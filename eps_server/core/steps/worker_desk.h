#ifndef EPS_SERVER_CORE_STEPS_WORKER_DESK_H_
#define EPS_SERVER_CORE_STEPS_WORKER_DESK_H_

// The steps of the workers: who begins a step with which parts, and the gate that holds everybody
// after a step.

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/wait_page.h"

namespace eps {

// For one thread. Borrows facts, queries and outbox, which outlive it.
class WorkerDesk {
 public:
  WorkerDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox);

  // Answers once the step is open and no gate holds it; reports and probes at once. Reports of the
  // worker go to the lead. A request of a lease of which the lead has not told this shard waits for
  // its word, at most for the length of a lease.
  void On(const event::BeginStep& e);
  void On(const event::Timer& e);
  // Hears which leases were granted.
  void On(const internal_event::LeasesChanged& e);
  // Tells the lead that the gate holds, once the job is open, and answers whom it holds no longer.
  void On(const internal_event::GateMoved& e);
  void On(const internal_event::StepReady& e);

  void Closed(StreamId stream);
  // Refuses every BeginStep that waits: the job failed, or the term is over.
  void EndWork(const absl::Status& why);
  void Waits(WaitPage* page) const;

 private:
  // A BeginStep, or a probe, that waits.
  struct ParkedBegin {
    StreamId stream;
    v1::BeginStepRequest request;
    uint64_t since_ms = 0;
  };

  absl::Status CheckNames(const v1::BeginStepRequest& request) const;
  absl::Status CheckGenerations(const v1::BeginStepRequest& request) const;
  absl::Status CheckBegin(const v1::BeginStepRequest& request) const;
  bool AwaitsGrant(const v1::BeginStepRequest& request) const;
  void Admit(const ParkedBegin& begin);
  bool IsHeld(const v1::BeginStepRequest& request) const;
  bool IsDue(const v1::BeginStepRequest& request) const;
  void AnswerGate();
  void AnswerBegins();
  v1::BeginStepReply NewReply() const;
  void Answer(const ParkedBegin& begin);
  void Begin(const v1::BeginStepRequest& request);
  std::string WaitsFor(const v1::BeginStepRequest& request, WaitPage* page) const;

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  std::deque<ParkedBegin> begins_;            // wait for their step, or for the gate
  std::map<TimerId, ParkedBegin> ungranted_;  // wait for the lead, each until its timer expires
  bool owes_gate_set_ = false;  // the lead has not heard that the gate in force is here
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_WORKER_DESK_H_
