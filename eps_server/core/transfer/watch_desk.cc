#include "eps_server/core/transfer/watch_desk.h"

#include "absl/strings/str_cat.h"

namespace eps {

bool WatchDesk::Watcher::Takes(const v1::StepRecord& record) {
  uint64_t& after = record.has_evaluation() ? after_evaluation : after_step;
  if (record.step() <= after) return false;
  after = record.step();
  return true;
}

void WatchDesk::On(const event::Watch& e) {
  if (!facts_.job.is_lead()) {
    return outbox_->Close(e.stream, absl::UnimplementedError(absl::StrCat(
                                        "WatchSteps: ask the lead, ", facts_.job.servers[0])));
  }
  Watcher watcher{e.after_step, e.after_evaluation, e.until_evaluation};
  for (const effect::SharedRecord& record : records_) {
    if (watcher.Takes(*record)) outbox_->Emit(effect::Reply{e.stream, record});
  }
  if (facts_.state == v1::JOB_STATE_FAILED) return outbox_->Close(e.stream, facts_.FailedStatus());
  watchers_.emplace(e.stream, watcher);
  On(internal_event::RecordsUpToDate());
}

void WatchDesk::On(const internal_event::Recorded& e) {
  records_.push_back(std::make_shared<const v1::StepRecord>(e.record));
  for (auto& [stream, watcher] : watchers_) {
    if (watcher.Takes(e.record)) outbox_->Emit(effect::Reply{stream, records_.back()});
  }
}

void WatchDesk::On(const internal_event::RecordsUpToDate&) {
  const uint64_t steps = facts_.job.spec.training.steps;
  if (facts_.state != v1::JOB_STATE_DONE || facts_.step <= steps) return;
  const bool all_recorded = records_.empty()
                                ? facts_.imported.has_value() && facts_.imported->step() >= steps
                                : records_.back()->step() >= steps;
  if (!all_recorded) return;
  for (auto it = watchers_.begin(); it != watchers_.end();) {
    if (it->second.after_evaluation < it->second.until_evaluation) {
      ++it;
      continue;
    }
    outbox_->Close(it->first, absl::OkStatus());
    it = watchers_.erase(it);
  }
}

void WatchDesk::Restore(const std::vector<v1::StepRecord>& records) {
  records_.clear();
  for (const v1::StepRecord& record : records) {
    records_.push_back(std::make_shared<const v1::StepRecord>(record));
  }
}

void WatchDesk::EndTerm(const absl::Status& why) {
  for (const auto& [stream, watcher] : watchers_) outbox_->Close(stream, why);
  watchers_.clear();
}

void WatchDesk::FillStatus(v1::StatusReply* status) const {
  for (auto it = records_.rbegin(); it != records_.rend(); ++it) {
    if ((*it)->has_evaluation()) continue;
    *status->mutable_last_step() = **it;
    return;
  }
}

}  // namespace eps
