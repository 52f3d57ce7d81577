#include "eps_server/core/steps/lead_desk.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "eps_server/core/replay/log_facts.h"

namespace eps {

LeadDesk::LeadDesk(const ShardFacts* facts, Outbox* outbox)
    : facts_(*facts),
      outbox_(outbox),
      lead_(facts_.job.spec, static_cast<uint32_t>(facts_.job.chunks.chunks().size()),
            static_cast<uint32_t>(facts_.job.servers.size()),
            facts_.job.durable() ? CutPlan(facts_.job.limits.cut_steps, facts_.job.limits.cut_ms)
                                 : CutPlan()) {}

void LeadDesk::OnImported(ShardId from, const v1::ShardMessage& message) {
  const v1::Imported& border = message.imported();
  const absl::StatusOr<bool> opened = lead_.OnImported(from, border, facts_.now_ms);
  if (!opened.ok()) {
    return outbox_->Raise(internal_event::JobFailed{std::string(opened.status().message())});
  }
  if (!*opened) return;
  opened_border_ = border;
  outbox_->ToOthers(message);
  outbox_->Raise(internal_event::BorderOpened{border});
}

void LeadDesk::OnStats(ShardId from, const v1::Stats& stats) {
  // The lead's own statistics follow from its other entries.
  if (facts_.logging() && from != facts_.job.shard && lead_.IsNews(from, stats)) {
    outbox_->Log(stats.step(), StatsFact(from, stats));
  }
  lead_.OnStats(from, stats);
  Pump();
}

// Returns an entry for what the request reports and the lead does not know; empty if that is
// nothing.
v1::LogFact LeadDesk::NewsOf(const v1::BeginStepRequest& request) const {
  v1::LoggedReports reports;
  for (const v1::PartLoss& loss : request.losses()) {
    if (lead_.IsNews(loss)) *reports.add_losses() = loss;
  }
  for (const v1::PartLoss& loss : request.evaluations()) {
    if (lead_.IsNewEvaluation(loss)) *reports.add_evaluations() = loss;
  }
  v1::LogFact fact;
  if (reports.losses().empty() && reports.evaluations().empty()) return fact;
  reports.set_step(request.step());
  *fact.mutable_reports() = std::move(reports);
  return fact;
}

void LeadDesk::On(const internal_event::LossesReported& e) {
  if (facts_.logging()) {
    const v1::LogFact reports = NewsOf(*e.request);
    if (reports.ByteSizeLong() > 0) outbox_->Log(e.request->step(), reports);
  }
  for (const v1::PartLoss& loss : e.request->losses()) lead_.OnLoss(loss);
}

void LeadDesk::On(const internal_event::EvaluationsReported& e) {
  Pump();
  CountEvaluations(*e.request);
}

void LeadDesk::CountEvaluations(const v1::BeginStepRequest& request) {
  // Only reports on the newest border count: the record of a late one would be out of order.
  if (facts_.step == 0 || request.step() != facts_.step) return;
  for (const v1::PartLoss& loss : request.evaluations()) {
    if (loss.step() + 1 != facts_.step) continue;
    const std::optional<v1::StepRecord> record =
        lead_.OnEvaluation(loss, facts_.term, facts_.now_ms);
    if (record.has_value()) AddRecord(*record);
  }
  outbox_->Raise(internal_event::RecordsUpToDate());
}

void LeadDesk::Pump() {
  if (facts_.state == v1::JOB_STATE_FAILED) return;
  std::vector<v1::Decision> decisions;
  if (const std::optional<ChunkId> chunk = lead_.OverflowAtLowestScale()) {
    return outbox_->Raise(internal_event::JobFailed{OverflowText(*chunk)});
  }
  if (!facts_.replays()) decisions = lead_.TakeDecisions(facts_.now_ms);
  for (const v1::Decision& decision : decisions) {
    if (facts_.logging()) outbox_->Log(decision.step(), DecisionFact(decision));
    v1::ShardMessage message = facts_.NewMessage();
    *message.mutable_decision() = decision;
    outbox_->ToOthers(message);
    outbox_->Raise(internal_event::Decided{decision});
  }
  for (const v1::StepRecord& record : lead_.TakeRecords(facts_.term, facts_.now_ms)) {
    AddRecord(record);
  }
  outbox_->Raise(internal_event::RecordsUpToDate());
}

std::string LeadDesk::OverflowText(ChunkId id) const {
  const Chunk& chunk = facts_.job.chunks.chunk(id);
  return absl::StrCat(
      "step ", lead_.next_decision(), ": the gradient of ",
      facts_.job.spec.tensors[chunk.segments.front().tensor.value()].name, " (stage ",
      facts_.job.StageName(chunk.uses.back()),
      ") overflows with a loss scale of 1, the lowest; use training.precision=bf16, lower "
      "optimizer.lr, or look at the data");
}

void LeadDesk::AddRecord(const v1::StepRecord& record) {
  outbox_->Emit(
      facts_.Traced(TraceAction::Kind::kRecorded, record.step(), Version(record.version())));
  outbox_->Raise(internal_event::Recorded{record});
}

void LeadDesk::On(const internal_event::ShardReached& e) {
  if (opened_border_.has_value()) {
    v1::ShardMessage message = facts_.NewMessage();
    *message.mutable_imported() = *opened_border_;
    outbox_->Emit(effect::ToShard{e.shard, std::move(message)});
  }
  for (const v1::Decision& decision : lead_.LastDecisions()) {
    v1::ShardMessage message = facts_.NewMessage();
    *message.mutable_decision() = decision;
    outbox_->Emit(effect::ToShard{e.shard, std::move(message)});
  }
}

void LeadDesk::On(const internal_event::CutMeasured& e) {
  lead_.cuts().OnMeasured(e.seconds, lead_.step_seconds());
}

// ---------------------------------------------------------------- the contribution log

void LeadDesk::On(const internal_event::ReplayOpened& e) {
  lead_.Open(e.border, facts_.now_ms);
  opened_border_ = e.border;
}

void LeadDesk::On(const internal_event::SessionReplayed& e) {
  for (const v1::Decision& decision : e.session->decisions()) lead_.Remember(decision);
}

void LeadDesk::Replay(const v1::LoggedStats& stats) {
  lead_.OnStats(ShardId(stats.shard()), stats.stats());
  Pump();
}

bool LeadDesk::Replay(const v1::LoggedReports& reports) {
  for (const v1::PartLoss& loss : reports.losses()) lead_.OnLoss(loss);
  Pump();
  if (reports.evaluations().empty() || reports.step() < facts_.step) return true;
  if (reports.step() > facts_.step) return false;
  v1::BeginStepRequest request;
  request.set_step(reports.step());
  *request.mutable_evaluations() = reports.evaluations();
  CountEvaluations(request);
  return true;
}

}  // namespace eps
