#ifndef EPS_SERVER_CORE_STEPS_WORKER_DESK_H_
#define EPS_SERVER_CORE_STEPS_WORKER_DESK_H_

// The workers of a job: who joins, who begins a step with which parts, which parts are lost, and
// the gate that holds everybody after a step.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
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

  // Answers on the lead, once the job is open.
  void On(const event::Join& e);
  // Answers once the step is open and no gate holds it; reports and probes at once. Reports of the
  // worker go to the lead.
  void On(const event::BeginStep& e);
  void On(const event::Gate& e);
  void On(const event::Timer& e);
  void On(const internal_event::PartSeen& e);
  void On(const internal_event::PartPushes& e);
  void On(const internal_event::StepOpened& e);
  void On(const internal_event::StepReady&) { AnswerBegins(); }
  void On(const internal_event::SessionReplayed& e);
  // Nobody is there until a worker says so: every part's timer starts.
  void On(const internal_event::ReplayEnded& e);

  // Names how all workers of a strict job compute; empty until the first one joins.
  const std::string& compute_profile() const { return compute_profile_; }
  size_t joined_workers() const { return joined_.size(); }

  // Continues in a new term with what `before` knew: its profile, and the joins that wait.
  void Continue(WorkerDesk* before);

  void Closed(StreamId stream);
  // Refuses every join that waits: the job failed.
  void RefuseJoins(const absl::Status& why);
  // Refuses every BeginStep that waits: the job failed, or the term is over.
  void EndWork(const absl::Status& why);
  // Ends the push streams of a term that is over.
  void EndTerm(const absl::Status& why);
  void Waits(WaitPage* page) const;

 private:
  // A BeginStep, or a probe, that waits.
  struct ParkedBegin {
    StreamId stream;
    v1::BeginStepRequest request;
    uint64_t since_ms = 0;
  };
  // A part as this shard sees it.
  struct Part {
    uint64_t begun_step = 0;              // the last step that a worker began with it
    std::optional<StreamId> push_stream;  // brings its gradients
    std::optional<TimerId> lost_timer;    // runs while no worker hosts it
  };

  absl::Status CheckJoin(const v1::JoinRequest& request);
  absl::Status CheckParts(absl::string_view rpc, absl::Span<const uint32_t> parts) const;
  absl::StatusOr<std::vector<uint32_t>> PartsOf(const v1::JoinRequest& request) const;
  absl::Status CheckBegin(const v1::BeginStepRequest& request) const;
  bool IsDue(const v1::BeginStepRequest& request) const;
  void AnswerBegins();
  v1::BeginStepReply NewReply() const;
  void Answer(const ParkedBegin& begin);
  void Begin(const v1::BeginStepRequest& request);
  void StartLostTimer(Part* part);

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  std::vector<Part> parts_;
  std::string compute_profile_;
  std::set<uint64_t> joined_;       // nonces of worker processes
  std::vector<event::Join> joins_;  // wait until the job opens
  std::deque<ParkedBegin> begins_;  // wait for their step, or for the gate
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_WORKER_DESK_H_
