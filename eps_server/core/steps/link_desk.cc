#include "eps_server/core/steps/link_desk.h"

#include "absl/strings/str_cat.h"
#include "base/exit_code.h"

namespace eps {

void LinkDesk::On(const event::LinkUp& e) {
  const auto it = timers_.find(e.peer);
  if (it == timers_.end()) return;
  outbox_->Emit(effect::ClearTimer{it->second});
  timers_.erase(it);
}

void LinkDesk::On(const event::LinkDown& e) {
  if (facts_.job.durable()) return;  // a shard that returns registers, and the term is agreed on
  if (facts_.state == v1::JOB_STATE_FAILED || facts_.state == v1::JOB_STATE_DONE ||
      timers_.count(e.peer) > 0) {
    return;
  }
  timers_[e.peer] = outbox_->StartTimer(facts_.job.limits.part_timeout_ms);
}

void LinkDesk::On(const event::Timer& e) {
  for (const auto& [peer, timer] : timers_) {
    if (timer != e.id) continue;
    const ShardId lost = peer;
    timers_.erase(lost);
    return outbox_->Raise(internal_event::JobFailed{
        absl::StrCat("shard ", lost.value(), " at ", facts_.job.servers[lost.value()],
                     " has been unreachable for ", facts_.job.limits.part_timeout_ms / 1000, " s"),
        ExitCode::kUnavailable});
  }
}

void LinkDesk::OnRegister(ShardId from, const v1::Register& message) {
  const auto [it, is_new] = incarnations_.emplace(from, message.incarnation());
  if (!is_new && it->second != message.incarnation()) {
    return outbox_->Raise(internal_event::JobFailed{
        absl::StrCat("shard ", from.value(), " at ", facts_.job.servers[from.value()],
                     " was restarted and has lost its memory"),
        ExitCode::kUnavailable});
  }
  outbox_->Raise(internal_event::ShardReached{from});
}

}  // namespace eps
