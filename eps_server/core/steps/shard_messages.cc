// ShardCore: what the lead says to the shards and they to it.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/core/replay/log_facts.h"
#include "eps_server/core/shard_core_impl.h"

namespace eps {

v1::ShardMessage ShardCore::Impl::NewMessage() const {
  v1::ShardMessage message;
  message.set_job_id(job_id_.value());
  message.set_from(options_.shard.value());
  message.set_term(term_.value());
  return message;
}

void ShardCore::Impl::SendToLead(v1::ShardMessage message) {
  if (is_lead()) {
    On(event::FromShard{options_.shard, std::move(message)});
  } else {
    Emit(effect::ToShard{ShardId(0), std::move(message)});
  }
}

void ShardCore::Impl::Broadcast(const v1::ShardMessage& message) {
  for (uint32_t s = 1; s < options_.servers.size(); ++s) {
    Emit(effect::ToShard{ShardId(s), message});
  }
}

void ShardCore::Impl::PumpLead() {
  if (!is_lead() || state_ == v1::JOB_STATE_FAILED) return;
  std::vector<v1::Decision> decisions;
  if (!replay_.has_value()) decisions = lead_->TakeDecisions();
  for (const v1::Decision& decision : decisions) {
    if (logging_) LogIt(decision.step(), DecisionFact(decision));
    v1::ShardMessage message = NewMessage();
    *message.mutable_decision() = decision;
    Broadcast(message);
    OnDecision(decision);
  }
  for (const v1::StepRecord& record : lead_->TakeRecords(term_, now_ms_)) AddRecord(record);
  TryStartCut();
  FinishWatchersIfDone();
}

void ShardCore::Impl::OnDecision(const v1::Decision& decision) {
  if (decision.step() < step_ || state_ == v1::JOB_STATE_FAILED) return;
  decisions_.emplace(decision.step(), decision);
  StartReadyUpdates();
}

void ShardCore::Impl::AddRecord(const v1::StepRecord& record) {
  TraceIt(TraceAction::Kind::kRecorded, record.step(), Version(record.version()));
  records_.push_back(record);
  for (auto& [stream, watcher] : watchers_) {
    if (watcher.Takes(record)) Emit(effect::Reply{stream, record});
  }
}

void ShardCore::Impl::FinishWatchersIfDone() {
  if (state_ != v1::JOB_STATE_DONE) return;
  const bool all_recorded = step_ > spec_.training.steps &&
                            (records_.empty() ? last_imported_.has_value() &&
                                                    last_imported_->step() >= spec_.training.steps
                                              : records_.back().step() >= spec_.training.steps);
  if (!all_recorded) return;
  for (auto it = watchers_.begin(); it != watchers_.end();) {
    if (it->second.after_evaluation < it->second.until_evaluation) {
      ++it;
      continue;
    }
    Close(it->first, absl::OkStatus());
    it = watchers_.erase(it);
  }
}

void ShardCore::Impl::On(const event::Watch& e) {
  if (!is_lead()) {
    return Close(e.stream, absl::UnimplementedError(
                               absl::StrCat("WatchSteps: ask the lead, ", options_.servers[0])));
  }
  Watcher watcher{e.after_step, e.after_evaluation, e.until_evaluation};
  for (const v1::StepRecord& record : records_) {
    if (watcher.Takes(record)) Emit(effect::Reply{e.stream, record});
  }
  if (state_ == v1::JOB_STATE_FAILED) return Close(e.stream, FailedStatus());
  watchers_.emplace(e.stream, watcher);
  FinishWatchersIfDone();
}

void ShardCore::Impl::On(const event::FromShard& e) {
  const v1::ShardMessage& m = e.message;
  if (JobId(m.job_id()) != job_id_) return;
  if (durable() && OnRecoveryMessage(e)) return;
  if (Term(m.term()) != term_) return;
  switch (m.message_case()) {
    case v1::ShardMessage::kRegister: {
      if (!is_lead()) return;
      const auto [it, is_new] = incarnations_.emplace(e.from, m.register_().incarnation());
      if (!is_new && it->second != m.register_().incarnation()) {
        return FailJob(absl::StrCat("shard ", e.from.value(), " at ",
                                    options_.servers[e.from.value()],
                                    " was restarted and has lost its memory"));
      }
      return TellOpenState(e.from);
    }
    case v1::ShardMessage::kImported: {
      if (!is_lead()) return OpenBorder(m.imported());
      const absl::StatusOr<bool> opened = lead_->OnImported(e.from, m.imported(), now_ms_);
      if (!opened.ok()) return FailJob(std::string(opened.status().message()));
      if (!*opened) return;
      opened_border_ = m.imported();
      Broadcast(m);
      if (durable()) recovery_->OnOpened(*base_cut_);
      OpenBorder(m.imported());
      return PumpLead();
    }
    case v1::ShardMessage::kStats:
      if (!is_lead()) return;
      // Its own follow from the rest.
      if (logging_ && e.from != options_.shard && lead_->IsNews(e.from, m.stats())) {
        LogIt(m.stats().step(), StatsFact(e.from, m.stats()));
      }
      lead_->OnStats(e.from, m.stats());
      return PumpLead();
    case v1::ShardMessage::kDecision:
      if (logging_ && m.decision().step() >= step_ && decisions_.count(m.decision().step()) == 0) {
        LogIt(m.decision().step(), DecisionFact(m.decision()));
      }
      return OnDecision(m.decision());
    case v1::ShardMessage::kFailed:
      return FailJob(m.failed().reason());
    default:
      return;
  }
}

// What a shard whose link broke may have missed.
void ShardCore::Impl::TellOpenState(ShardId shard) {
  if (opened_border_.has_value()) {
    v1::ShardMessage message = NewMessage();
    *message.mutable_imported() = *opened_border_;
    Emit(effect::ToShard{shard, std::move(message)});
  }
  for (const v1::Decision& decision : lead_->LastDecisions()) {
    v1::ShardMessage message = NewMessage();
    *message.mutable_decision() = decision;
    Emit(effect::ToShard{shard, std::move(message)});
  }
}

void ShardCore::Impl::On(const event::LinkUp& e) {
  if (auto it = link_timers_.find(e.peer); it != link_timers_.end()) {
    Emit(effect::ClearTimer{it->second});
    link_timers_.erase(it);
  }
  if (is_lead()) return;
  if (durable() && !recovered_) return;  // it registers when it knows what it has
  TellLeadAgain();
}

// What the lead may have missed, or forgotten.
void ShardCore::Impl::TellLeadAgain() {
  Register();
  if (last_imported_.has_value()) {
    v1::ShardMessage imported = NewMessage();
    *imported.mutable_imported() = *last_imported_;
    SendToLead(std::move(imported));
  }
  for (const v1::Stats& stats : last_stats_) {
    v1::ShardMessage message = NewMessage();
    *message.mutable_stats() = stats;
    SendToLead(std::move(message));
  }
  if (last_durable_.has_value()) {
    v1::ShardMessage durable = NewMessage();
    *durable.mutable_durable()->mutable_cut() = ToProto(*last_durable_);
    SendToLead(std::move(durable));
  }
  if (rolls_back_) RollBack();
}

void ShardCore::Impl::Register() {
  v1::ShardMessage message = NewMessage();
  message.mutable_register_()->set_incarnation(incarnation_);
  message.mutable_register_()->set_promised_term(std::max(promised_, term_).value());
  message.mutable_register_()->set_step(step_);
  message.mutable_register_()->set_most_cut_steps(options_.caps.log_steps);
  SendToLead(std::move(message));
}

void ShardCore::Impl::On(const event::LinkDown& e) {
  if (durable()) return;  // a shard that comes back registers, and the term is agreed on
  if (state_ == v1::JOB_STATE_FAILED || state_ == v1::JOB_STATE_DONE ||
      link_timers_.count(e.peer) > 0) {
    return;
  }
  const TimerId timer(next_timer_++);
  link_timers_.emplace(e.peer, timer);
  Emit(effect::SetTimer{timer, options_.limits.part_timeout_ms});
}

void ShardCore::Impl::On(const event::Timer& e) {
  if (scrub_timer_ == e.id) {
    scrub_timer_ = TimerId(0);
    if (state_ == v1::JOB_STATE_FAILED) return;
    StartOp(ScrubOp(), backend_call::Scrub());
    return;
  }
  const uint64_t seconds = options_.limits.part_timeout_ms / 1000;
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    if (parts_[p].lost_timer != e.id) continue;
    parts_[p].lost_timer.reset();
    // Sealed: nothing was updated, a replacement sends what is missing, whenever it comes.
    if (state_ != v1::JOB_STATE_RUNNING || sealed()) return;
    if (durable()) return RollBack();
    return FailJob(absl::StrCat("part ", p, " was lost in step ", step_,
                                " (its worker went away and none took over within ", seconds,
                                " s), and training.mode eager with training.replay rollback keeps "
                                "no older weights to repeat the step"));
  }
  for (const auto& [peer, timer] : link_timers_) {
    if (timer != e.id) continue;
    const ShardId lost = peer;
    link_timers_.erase(lost);
    return FailJob(absl::StrCat("shard ", lost.value(), " at ", options_.servers[lost.value()],
                                " has been unreachable for ", seconds, " s"));
  }
}

}  // namespace eps
