#ifndef EPS_SERVER_CORE_STEPS_LEAD_DESK_H_
#define EPS_SERVER_CORE_STEPS_LEAD_DESK_H_

// The lead shard's part in a step: it collects statistics and losses, broadcasts the decision, and
// records the step.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/log.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/steps/lead.h"

namespace eps {

// For one thread. Borrows facts and outbox, which outlive it. Only the lead shard has one.
class LeadDesk {
 public:
  LeadDesk(const ShardFacts* facts, Outbox* outbox);

  // Messages of the shards, the lead among them.
  void OnImported(ShardId from, const v1::ShardMessage& message);
  void OnStats(ShardId from, const v1::Stats& stats);

  // REQUIRES that the job is not open.
  void On(const event::RestartImport&) { lead_.ForgetImports(); }
  void On(const internal_event::LossesReported& e);
  void On(const internal_event::EvaluationsReported& e);
  // Sends a shard what it may have missed.
  void On(const internal_event::ShardReached& e);
  void On(const internal_event::GatesChanged& e) { lead_.SetGates(e.steps); }
  void On(const internal_event::CutLimit& e) { lead_.cuts().Limit(e.steps); }
  void On(const internal_event::CutMeasured& e);
  void On(const internal_event::CutEverywhere& e) { lead_.cuts().OnEverywhere(e.cut.step.value()); }
  void On(const internal_event::ReplayOpened& e);
  void On(const internal_event::SessionReplayed& e);
  // Decides and records whatever became possible.
  void Pump();

  // Repeats what an earlier process logged. Reports return false if the state has to follow first.
  void Replay(const v1::Decision& decision) { lead_.Adopt(decision, facts_.now_ms); }
  void Replay(const v1::LoggedStats& stats);
  bool Replay(const v1::LoggedReports& reports);

  double NormOf(uint64_t step) const { return lead_.NormOf(step); }
  uint64_t next_decision() const { return lead_.next_decision(); }
  uint64_t recorded_step() const { return lead_.recorded_step(); }
  std::vector<v1::Decision> LastDecisions() const { return lead_.LastDecisions(); }
  // Names what the job, or its oldest open record, waits for; empty if for nothing.
  std::string WaitsFor() const { return lead_.WaitsFor(); }

 private:
  v1::LogFact NewsOf(const v1::BeginStepRequest& request) const;
  void CountEvaluations(const v1::BeginStepRequest& request);
  void AddRecord(const v1::StepRecord& record);
  std::string OverflowText(ChunkId id) const;

  const ShardFacts& facts_;
  Outbox* const outbox_;
  Lead lead_;
  std::optional<v1::Imported> opened_border_;  // every shard holds it
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_LEAD_DESK_H_
