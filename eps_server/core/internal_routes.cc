// ShardRouter: what an internal event changes in the facts, and which desks hear of it, in order.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/numerics/loss_scale.h"
#include "eps_server/core/cuts/recovery.h"
#include "eps_server/core/shard_router.h"

namespace eps {

// ---------------------------------------------------------------- failures

void ShardRouter::On(const internal_event::OpFailed& e) {
  const std::string text = absl::StrCat(e.what, ": ", std::string(e.status.message()));
  if (!facts_.EndsProcess(e.status)) return On(internal_event::JobFailed{text});
  Emit(effect::Abort{absl::IsDataLoss(e.status) ? ExitCode::kDataInvalid : ExitCode::kIo, text});
}

void ShardRouter::On(const internal_event::JobFailed& e) {
  if (facts_.state == v1::JOB_STATE_FAILED) return;
  facts_.state = v1::JOB_STATE_FAILED;
  facts_.failure = Failure{e.reason, e.code};
  Emit(facts_.Traced(TraceAction::Kind::kFailed, 0, Version(facts_.version)));
  const absl::Status status = facts_.FailedStatus();
  if (lead_ != nullptr) {
    lead_->leases.RefuseJoins(status);
    lead_->leases.EndTerm(status);
  }
  watch_.EndTerm(status);
  push_.RefuseOffers(status);
  EndWork(status);
  v1::ShardMessage message = facts_.NewMessage();
  message.mutable_failed()->set_reason(e.reason);
  message.mutable_failed()->set_exit_code(static_cast<uint32_t>(e.code));
  if (lead_ != nullptr) {
    ToOthers(message);
  } else {
    ToLead(std::move(message));
  }
  drain_.Check();
}

void ShardRouter::EndWork(const absl::Status& why) {
  workers_.EndWork(why);
  if (lead_ != nullptr) lead_->gates.EndWork(why);
  fetch_.EndWork(why);
  push_.EndWork();
  transfer_.EndWork(why);
}

// ---------------------------------------------------------------- workers

void ShardRouter::On(const internal_event::PartsBegun& e) {
  if (facts_.state == v1::JOB_STATE_RUNNING) facts_.open.push_residuals = facts_.PushResiduals();
  // The answer is for all parts of the request. An earlier process may have begun some of them.
  const bool leaving = e.leaving || std::any_of(e.parts.begin(), e.parts.end(), [this](PartId p) {
                         return facts_.parts[p.value()].leaving;
                       });
  for (const PartId part : e.parts) facts_.parts[part.value()].leaving = leaving;
  fetch_.On(e);
  if (lead_ != nullptr) lead_->leases.On(e);
}

void ShardRouter::On(const internal_event::PartsSeen& e) {
  bool changed = false;
  for (const auto& [part, generation] : e.parts) {
    uint64_t& seen = facts_.parts[part.value()].seen;
    changed |= generation > seen;
    seen = std::max(seen, generation);
  }
  if (changed) On(internal_event::SessionChanged());
}

void ShardRouter::On(const internal_event::LeasesChanged& e) {
  const size_t parts = std::min(e.granted.size(), facts_.parts.size());
  for (size_t p = 0; p < parts; ++p) {
    uint64_t& granted = facts_.parts[p].granted;
    granted = std::max(granted, e.granted[p]);
  }
  if (facts_.job.is_lead()) return On(internal_event::SessionChanged());
  workers_.On(e);
}

void ShardRouter::On(const internal_event::GateMoved& e) {
  facts_.hold.gate = e.gate;
  workers_.On(e);
}

void ShardRouter::On(const internal_event::LossesReported& e) {
  if (lead_ != nullptr) lead_->steps.On(e);
}

void ShardRouter::On(const internal_event::EvaluationsReported& e) {
  if (lead_ != nullptr) lead_->steps.On(e);
}

// ---------------------------------------------------------------- the open step

void ShardRouter::On(const internal_event::UpdateStarted& e) {
  fetch_.On(e);  // still sees the version that the update reads
  facts_.Owned(e.chunk)->updating = true;
  ++facts_.open.updates;
}

void ShardRouter::On(const internal_event::ChunkUpdated& e) {
  OwnedChunk* const chunk = facts_.Owned(e.chunk);
  chunk->updating = false;
  chunk->version = chunk->version.Next();
  fetch_.On(e);
}

void ShardRouter::On(const internal_event::StepComplete& e) {
  const bool skipped = e.decision.skip();
  if (!skipped) ++facts_.version;
  if (facts_.open.loss_scale.has_value()) {
    facts_.open.loss_scale =
        NextLossScale(facts_.job.spec.training.loss_scale, *facts_.open.loss_scale, skipped);
  }
  for (OwnedChunk& chunk : facts_.owned) {
    if (facts_.job.IsFrozen(chunk.id)) chunk.version = Version(facts_.version);
  }
  facts_.residuals.Close(skipped);
  facts_.open.push_residuals.reset();
  for (PartLeases& part : facts_.parts) part.leaving = false;
  facts_.open.updates = 0;
  if (e.decision.cut()) {
    CutBorder border;
    border.id = CutId{Step(facts_.step), facts_.term};
    border.version = Version(facts_.version);
    border.update = e.decision.update();
    border.loss_scale = facts_.open.loss_scale;
    border.opened = true;
    facts_.cuts.pending = border;
  }
  ++facts_.step;
  push_.On(e);
}

void ShardRouter::On(const internal_event::StepOpened& e) {
  const bool done = facts_.step > facts_.job.spec.training.steps;
  facts_.state = done ? v1::JOB_STATE_DONE : v1::JOB_STATE_RUNNING;
  Emit(facts_.Traced(TraceAction::Kind::kStepOpened, 0, Version(facts_.version)));
  drain_.Check();
  cuts_.On(e);
  if (lead_ != nullptr) lead_->leases.On(e);
  trust_.On(e);
  steps_.On(e);
}

void ShardRouter::On(const internal_event::StepReady& e) {
  workers_.On(e);
  transfer_.On(e);
  if (lead_ != nullptr) lead_->steps.Pump();
}

// ---------------------------------------------------------------- the lead

void ShardRouter::On(const internal_event::Decided& e) {
  trust_.On(e);
  steps_.On(e);
}

void ShardRouter::On(const internal_event::Recorded& e) {
  cuts_.On(e);
  watch_.On(e);
}

void ShardRouter::On(const internal_event::RecordsUpToDate& e) {
  cuts_.On(e);
  watch_.On(e);
  if (lead_ != nullptr) lead_->leases.On(e);
}

void ShardRouter::On(const internal_event::BorderOpened& e) {
  if (!facts_.WaitsForState() || !facts_.imported.has_value()) return;
  facts_.step = e.border.step() + 1;
  facts_.version = e.border.version();
  facts_.open.loss_scale = LossScaleAfter(facts_.job.spec, e.border);
  if (facts_.job.logs()) facts_.log = ShardFacts::LogState::kWritten;
  if (facts_.job.durable()) {
    terms_.On(e);
    facts_.cuts.everywhere = facts_.cuts.base;
    cuts_.KeepFrom(*facts_.cuts.base);
  }
  replay_.On(e);
  steps_.On(e);
  On(internal_event::StepOpened());
  On(internal_event::StepReady());
  fetch_.On(e);
  if (lead_ != nullptr) lead_->gates.On(e);
}

void ShardRouter::On(const internal_event::ShardReached& e) {
  lead_->steps.On(e);
  trust_.On(e);
  lead_->leases.On(e);
  lead_->gates.On(e);
}

void ShardRouter::On(const internal_event::LeadReached& e) {
  terms_.On(e);
  if (facts_.imported.has_value()) On(internal_event::Imported{*facts_.imported});
  steps_.On(e);
  trust_.On(e);
  cuts_.On(e);
  if (terms_.rolls_back()) terms_.On(internal_event::RollBack());
}

// ---------------------------------------------------------------- state in and out

void ShardRouter::On(const internal_event::ResidualImported& e) {
  facts_.residuals.Import(e.place, e.residual);
}

void ShardRouter::On(const internal_event::ImportComplete& e) {
  facts_.cuts.base = CutId{Step(e.border.step()), facts_.term};
  cuts_.On(e);
}

void ShardRouter::On(const internal_event::Imported& e) {
  v1::ShardMessage message = facts_.NewMessage();
  *message.mutable_imported() = e.border;
  facts_.imported = message.imported();
  ToLead(std::move(message));
}

// ---------------------------------------------------------------- cuts and terms

void ShardRouter::On(const internal_event::CutEverywhere& e) {
  facts_.cuts.everywhere = e.cut;
  cuts_.On(e);
  lead_->steps.On(e);
  drain_.Check();
  lead_->gates.On(e);
}

void ShardRouter::On(const internal_event::CutStarted&) {
  facts_.cuts.pending.reset();
  steps_.StartReadyUpdates();
}

void ShardRouter::On(const internal_event::TermOver& e) {
  const absl::Status over =
      absl::AbortedError(absl::StrCat("term ", facts_.term.value(), " is over; the job is at term ",
                                      e.next.value(), ", join again"));
  EndWork(over);
  output_.Drop(over, out_);
  push_.EndTerm(over);
  if (lead_ != nullptr) lead_->leases.EndTerm(over);
  watch_.EndTerm(over);  // records of steps that will be repeated are withdrawn
  cuts_.EndTerm();
  next_term_ = e.next;
}

void ShardRouter::On(const internal_event::StateRestored& e) {
  for (OwnedChunk& chunk : facts_.owned) chunk.version = e.border.version;
  for (const CutResidual& residual : *e.residuals) {
    facts_.residuals.Import({residual.chunk, residual.use, residual.part}, residual.bytes);
  }
  watch_.Restore(*e.records);
  cuts_.On(e);
  if (facts_.replays()) return replay_.On(e);
  facts_.cuts.base = e.border.id;
}

// ---------------------------------------------------------------- the contribution log

void ShardRouter::On(const internal_event::LogFound& e) {
  facts_.log = ShardFacts::LogState::kReplayed;
  facts_.term = e.log.id.term;
  facts_.incarnation = e.log.id.incarnation;
  facts_.cuts.base = e.log.opened;
  cuts_.On(e);
  replay_.On(e);
}

void ShardRouter::On(const internal_event::ReplayOpened& e) {
  terms_.On(e);
  if (lead_ != nullptr) lead_->steps.On(e);
  facts_.step = e.border.step() + 1;
  facts_.version = e.border.version();
  facts_.open.loss_scale = LossScaleAfter(facts_.job.spec, e.border);
  facts_.cuts.everywhere = e.opened;
  cuts_.KeepFrom(e.opened);
  On(internal_event::StepOpened());
}

void ShardRouter::On(const internal_event::SessionReplayed& e) {
  for (int p = 0; p < e.session->fences_size(); ++p) {
    if (static_cast<size_t>(p) < facts_.parts.size()) {
      // The process before has seen nothing that was not granted.
      facts_.parts[p].seen = facts_.parts[p].granted = e.session->fences(p);
    }
  }
  for (const v1::LoggedLease& lease : e.session->leases()) {
    if (lease.part() < facts_.parts.size()) facts_.parts[lease.part()].granted = lease.generation();
  }
  if (lead_ != nullptr) lead_->leases.On(e);
  steps_.On(e);
  if (lead_ != nullptr) lead_->steps.On(e);
  if (e.session->has_trust()) trust_.Replay(e.session->trust());
  terms_.On(e);
}

void ShardRouter::On(const internal_event::ReplayEnded& e) {
  facts_.log = ShardFacts::LogState::kWritten;
  replay_.On(e);
  if (lead_ != nullptr) lead_->leases.On(e);
  if (lead_ == nullptr) return On(internal_event::LeadReached());
  cuts_.On(e);
  lead_->steps.Pump();
  trust_.On(e);
}

// An entry of the log goes to the desk that the fact came to in the first place.
absl::StatusOr<bool> ShardRouter::Replay(const v1::LogFact& fact, const LogEntry& entry) {
  switch (fact.fact_case()) {
    case v1::LogFact::kPush:
      return push_.Replay(fact.push(), entry.payload, entry.residual);
    case v1::LogFact::kDecision:
      if (fact.decision().step() < facts_.step) return true;
      if (lead_ != nullptr) lead_->steps.Replay(fact.decision());
      On(internal_event::Decided{fact.decision()});
      return true;
    case v1::LogFact::kTrust:
      trust_.Replay(fact.trust());
      return true;
    case v1::LogFact::kStats:
      if (lead_ != nullptr) lead_->steps.Replay(fact.stats());
      return true;
    case v1::LogFact::kReports:
      return lead_ == nullptr || lead_->steps.Replay(fact.reports());
    case v1::LogFact::kSession:
      On(internal_event::SessionReplayed{&fact.session()});
      return true;
    case v1::LogFact::FACT_NOT_SET:
      break;
  }
  return absl::DataLossError("it says nothing that this release knows");
}

}  // namespace eps
