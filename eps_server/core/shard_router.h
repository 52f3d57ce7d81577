#ifndef EPS_SERVER_CORE_SHARD_ROUTER_H_
#define EPS_SERVER_CORE_SHARD_ROUTER_H_

// Private to eps_server/core: the desks of one term, and who hears of what. An event from outside
// goes to one desk. An internal event changes the facts and goes to the desks that it concerns, in
// an order that stands here once and that decides the order of effects.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/log.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/cuts/cut_desk.h"
#include "eps_server/core/cuts/drain_desk.h"
#include "eps_server/core/cuts/recovery.h"
#include "eps_server/core/cuts/term_desk.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/events.h"
#include "eps_server/core/fetch/fetch_desk.h"
#include "eps_server/core/internal_events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/push/push_desk.h"
#include "eps_server/core/replay/output_commit.h"
#include "eps_server/core/replay/replay_desk.h"
#include "eps_server/core/shard_core.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/steps/gate_desk.h"
#include "eps_server/core/steps/lead_desk.h"
#include "eps_server/core/steps/lease_desk.h"
#include "eps_server/core/steps/link_desk.h"
#include "eps_server/core/steps/step_desk.h"
#include "eps_server/core/steps/worker_desk.h"
#include "eps_server/core/transfer/transfer_desk.h"
#include "eps_server/core/transfer/watch_desk.h"
#include "eps_server/core/trust/trust_desk.h"

namespace eps {

// The state of a shard that outlives its terms. Plain value.
struct ShardLife {
  ShardCore::Options options;
  OpId last_op;  // ids are never used twice
  TimerId last_timer;
  std::map<std::string, uint64_t> counters;  // of the status page
  std::unique_ptr<Recovery> recovery;        // on the lead of a durable job
};

// The desks that only the lead has.
struct LeadDesks {
  LeadDesks(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox)
      : steps(facts, outbox), leases(facts, queries, outbox), gates(facts, queries, outbox) {}

  LeadDesk steps;
  LeaseDesk leases;
  GateDesk gates;
};

// One term of a shard: nothing of an earlier term can be left in it. For one thread. Borrows
// `life`, which outlives it.
class ShardRouter final : private Outbox, private DeskQueries {
 public:
  ShardRouter(const ShardCore::Options& options, ShardLife* life);

  void Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out);
  // Removes and returns the next event that came too early and can be handled now.
  std::optional<Event> TakeDeferred();

  // Whether a later term was asked for. Call NextTerm, and drop this one.
  bool is_over() const { return next_term_.has_value(); }
  // Returns the next term, which has begun: it asks the backend to promise it.
  std::unique_ptr<ShardRouter> NextTerm(std::vector<Effect>* out);

  void FillStatus(uint64_t now_ms, v1::StatusReply* status) const;
  v1::JobState state() const { return facts_.replays() ? v1::JOB_STATE_RECOVERING : facts_.state; }

 private:
  // ---- events from outside
  void On(const event::Opened& e) { terms_.On(e); }
  void On(const event::StreamClosed& e);
  void On(const event::Join& e);
  void On(const event::Beat& e);
  void On(const event::BeginStep& e) { workers_.On(e); }
  void On(const event::Fetch& e) { fetch_.On(e); }
  void On(const event::FetchDrained& e) { fetch_.On(e); }
  void On(const event::PushOffered& e) { push_.On(e); }
  void On(const event::PushReceived& e) { push_.On(e); }
  void On(const event::PushInvalid& e) { push_.On(e); }
  void On(const event::NewDriver& e);
  void On(const event::RestartImport& e);
  void On(const event::Standing& e);
  void On(const event::DrainWorker& e);
  void On(const event::ImportInitialize& e) { transfer_.On(e); }
  void On(const event::ImportChunk& e) { transfer_.On(e); }
  void On(const event::ImportResidual& e) { transfer_.On(e); }
  void On(const event::ImportFinish& e) { transfer_.On(e); }
  void On(const event::Export& e) { transfer_.On(e); }
  void On(const event::ExportDrained& e) { transfer_.On(e); }
  void On(const event::Watch& e) { watch_.On(e); }
  void On(const event::Gate& e);
  void On(const event::Drain& e);
  void On(const event::OpDone& e);
  void On(const event::FromShard& e);
  void On(const event::LinkUp& e);
  void On(const event::LinkDown& e);
  void On(const event::Timer& e);
  // ---- internal events: failures
  void On(const internal_event::OpFailed& e);
  void On(const internal_event::JobFailed& e);
  void On(const internal_event::RollBack& e) { terms_.On(e); }
  // ---- workers
  void On(const internal_event::PartsSeen& e);
  void On(const internal_event::PartsBegun& e);
  void On(const internal_event::LeasesChanged& e);
  void On(const internal_event::GateMoved& e);
  void On(const internal_event::GatesChanged& e) { lead_->steps.On(e); }
  void On(const internal_event::ShardDrains& e) { lead_->gates.On(e); }
  void On(const internal_event::DrainBegan& e) { terms_.On(e); }
  void On(const internal_event::MayEnd& e) { drain_.On(e); }
  void On(const internal_event::LossesReported& e);
  void On(const internal_event::EvaluationsReported& e);
  // ---- the open step
  void On(const internal_event::ResidualLeft& e) { facts_.residuals.Put(e.place, e.residual); }
  void On(const internal_event::ChunkComplete& e) { steps_.On(e); }
  void On(const internal_event::GradientUsed& e) { push_.On(e); }
  void On(const internal_event::MemoryFreed& e) { push_.On(e); }
  void On(const internal_event::Measurable& e) { trust_.On(e); }
  void On(const internal_event::Trusted&) { steps_.StartReadyUpdates(); }
  void On(const internal_event::UpdateStarted& e);
  void On(const internal_event::ChunkUpdated& e);
  void On(const internal_event::StepComplete& e);
  void On(const internal_event::BorderReached& e) { cuts_.On(e); }
  void On(const internal_event::StepOpened& e);
  void On(const internal_event::StepReady& e);
  // ---- the lead
  void On(const internal_event::Decided& e);
  void On(const internal_event::Recorded& e);
  void On(const internal_event::RecordsUpToDate& e);
  void On(const internal_event::BorderOpened& e);
  void On(const internal_event::LeadReached& e);
  void On(const internal_event::ShardReached& e);
  // ---- state in and out
  void On(const internal_event::ChunkImported& e) { facts_.Owned(e.chunk)->version = e.version; }
  void On(const internal_event::ResidualImported& e);
  void On(const internal_event::ImportComplete& e);
  void On(const internal_event::ImportDurable& e) { transfer_.On(e); }
  void On(const internal_event::Imported& e);
  void On(const internal_event::BorderReaders& e) { facts_.border_readers = e.count; }
  void On(const internal_event::ExportEnded&) { steps_.StartReadyUpdates(); }
  // ---- cuts and terms
  void On(const internal_event::CutStarted& e);
  void On(const internal_event::CutLimit& e) { lead_->steps.On(e); }
  void On(const internal_event::CutWanted& e) { terms_.On(e); }
  void On(const internal_event::CutMeasured& e) { lead_->steps.On(e); }
  void On(const internal_event::CutEverywhere& e);
  void On(const internal_event::TermOver& e);
  void On(const internal_event::StateRestored& e);
  void On(const internal_event::NothingToRestore&) { facts_.state = v1::JOB_STATE_IMPORTING; }
  // ---- the contribution log
  void On(const internal_event::LogFound& e);
  void On(const internal_event::LogWritten& e) { output_.OnLogged(e.op); }
  void On(const internal_event::LogDurable& e) { output_.OnDurable(e.op, out_); }
  void On(const internal_event::SessionChanged& e) { replay_.On(e); }
  void On(const internal_event::ReplayOpened& e);
  void On(const internal_event::SessionReplayed& e);
  void On(const internal_event::ReplayEnded& e);

  // ---- Outbox
  void Emit(Effect effect) override;
  OpId StartOp(Request request) override;
  TimerId StartTimer(uint64_t after_ms) override;
  void Raise(const InternalEvent& event) override;
  void ToLead(v1::ShardMessage message) override;
  void ToOthers(const v1::ShardMessage& message) override;
  void Log(uint64_t step, const v1::LogFact& fact, Bytes payload, Bytes residual) override;
  void Count(const char* name, uint64_t n) override { life_->counters[name] += n; }
  // ---- DeskQueries
  double NormOf(uint64_t step) const override;
  uint64_t RecordedStep() const override { return lead_->steps.recorded_step(); }
  uint64_t NextDecision() const override { return lead_->steps.next_decision(); }
  std::vector<v1::Have> Counted(const std::vector<bool>& parts) const override;
  std::vector<Axis> AxesForUpdate(ChunkId chunk) const override;
  const v1::Trust* TrustOfOpenStep() const override { return trust_.OfOpenStep(); }
  absl::Status CheckBegin(const v1::BeginStepRequest& request) const override;
  bool IsUpdating() const override { return !steps_.idle(); }
  bool IsIdle() const override;
  std::string RecoveryWaitsFor() const override;
  v1::LoggedSession Session() const override;

  bool IsTooEarly(const Event& event) const;
  void Defer(const Event& event);
  absl::StatusOr<bool> Replay(const v1::LogFact& fact, const LogEntry& entry);
  void EndWork(const absl::Status& why);
  void FillGates(v1::StatusReply* status) const;
  std::string UpdateWaitsFor(ChunkId chunk) const;
  std::string StepWaitsFor() const;

  ShardLife* const life_;
  ShardFacts facts_;
  FetchDesk fetch_;
  PushDesk push_;
  StepDesk steps_;
  TrustDesk trust_;
  WorkerDesk workers_;
  std::unique_ptr<LeadDesks> lead_;  // null on other shards
  LinkDesk links_;
  TransferDesk transfer_;
  WatchDesk watch_;
  CutDesk cuts_;
  DrainDesk drain_;
  TermDesk terms_;
  ReplayDesk replay_;
  OutputCommit output_;                 // every effect passes through it
  std::deque<Event> deferred_;          // that came too early
  std::optional<Term> next_term_;       // this one is over
  std::vector<Effect>* out_ = nullptr;  // valid within Handle
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_SHARD_ROUTER_H_
