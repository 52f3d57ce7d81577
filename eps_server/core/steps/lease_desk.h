#ifndef EPS_SERVER_CORE_STEPS_LEASE_DESK_H_
#define EPS_SERVER_CORE_STEPS_LEASE_DESK_H_

// The worker processes of a job, on the lead: they join, keep their leases with Beats, wait as
// standbys, leave or are lost (docs/protocol.md, "Leases"). A standby with an open session gets the
// parts that another process loses; nothing here returns the job to an earlier step.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/log.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/steps/lease_table.h"
#include "eps_server/core/wait_page.h"

namespace eps {

// For one thread. Borrows facts, queries and outbox, which outlive it. Only the lead shard has one.
class LeaseDesk {
 public:
  LeaseDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox);

  // Answers once the job is open.
  void On(const event::Join& e);
  // The first Beat of a stream opens the session of its worker, and is answered with a Notice.
  void On(const event::Beat& e);
  void On(const event::Timer& e);
  // Deals the parts to as many workers as the board wants.
  void On(const event::Standing& e);
  // Ignores a worker that is not known.
  void On(const event::DrainWorker& e);
  // The first worker that begins a step of a strict job decides how all workers compute.
  void On(const internal_event::PartsBegun& e);
  void On(const internal_event::StepOpened& e);
  // Tells every worker if the job has reached its end.
  void On(const internal_event::RecordsUpToDate& e);
  // Tells a shard what it may have missed.
  void On(const internal_event::ShardReached& e);
  void On(const internal_event::SessionReplayed& e);
  // Gives every lease its full length: its holder could not reach the lead.
  void On(const internal_event::ReplayEnded& e);

  // Refuses a begin of a worker that computes in another way than the job (a strict one).
  absl::Status CheckBegin(const v1::BeginStepRequest& request) const;
  // Adds the leases and the compute profile to what the contribution log repeats.
  void FillSession(v1::LoggedSession* session) const;
  // Worker processes that hold parts or wait for them.
  size_t processes() const { return table_.processes(); }

  // Continues in a new term with what `before` knew: the profile, and the joins that wait.
  void Continue(LeaseDesk* before);

  void Closed(StreamId stream);
  // Refuses every join that waits: the job failed.
  void RefuseJoins(const absl::Status& why);
  // Ends all sessions: the job failed, or the term is over.
  void EndTerm(const absl::Status& why);
  void Waits(WaitPage* page) const;
  // Adds the workers, and the compute profiles of those that have begun a step.
  void FillStatus(v1::StatusReply* status) const;

 private:
  // The stream of a worker's Beats.
  struct Session {
    uint64_t nonce = 0;
    bool told = false;  // a Notice was sent
  };
  // Facts that a worker gave when it joined, and whether it was told to end.
  struct Worker {
    std::string profile;
    std::string host;
    bool ends = false;  // it was drained
  };

  absl::Status CheckJoin(const v1::JoinRequest& request) const;
  absl::Status CheckProfile(const char* rpc, const std::string& profile) const;
  absl::StatusOr<std::vector<uint32_t>> WantedBy(const v1::JoinRequest& request) const;
  absl::Status CheckBeat(const event::Beat& e) const;
  bool IsStrict() const { return facts_.job.spec.training.determinism == Determinism::kStrict; }
  bool IsDone() const;
  // Moves the session of the stream's worker to this stream. Returns it.
  Session* OpenSession(StreamId stream, uint64_t nonce);
  std::optional<StreamId> StreamOf(uint64_t nonce) const;
  void SendNotice(StreamId stream, Session* session);
  void FillLeases(uint64_t nonce, google::protobuf::RepeatedPtrField<v1::Lease>* leases) const;
  // Carries out what the table changed: logs it, ends sessions, and tells shards and workers.
  void Settle();
  v1::ShardMessage GrantsMessage() const;
  // When the job fails if no worker takes over; LeaseTable::kNever if it waits on.
  uint64_t FailAt() const;
  void FailIfLost();
  void Arm();

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  const LeaseTable::Limits limits_;
  LeaseTable table_;
  std::map<StreamId, Session> sessions_;
  std::vector<event::Join> joins_;      // wait until the job opens
  std::string compute_profile_;         // of a strict job; empty until a worker begins a step
  std::map<uint64_t, Worker> workers_;  // by nonce
  std::set<std::string> computed_;  // profiles of those that have begun a step, up to kMaxProfiles
  std::vector<uint64_t> begun_;     // by part: the last step that its holder began
  std::map<uint32_t, uint64_t>
      lost_;                      // by part: the last step that a holder began and then was lost
  std::optional<TimerId> timer_;  // the only one
  uint64_t timer_at_ms_ = 0;
  bool is_open_ = false;
  bool is_done_ = false;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_LEASE_DESK_H_
