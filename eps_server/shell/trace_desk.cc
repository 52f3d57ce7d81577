#include "eps_server/shell/trace_desk.h"

#include <algorithm>

#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"

namespace eps {

void TraceDesk::Add(const std::shared_ptr<Listener>& listener) {
  MutexLock lock(&mu_);
  listeners_.push_back(listener);
  count_.store(static_cast<int>(listeners_.size()), std::memory_order_relaxed);
}

void TraceDesk::Remove(const Listener* listener) {
  MutexLock lock(&mu_);
  listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(),
                                  [listener](const std::weak_ptr<Listener>& weak) {
                                    const auto alive = weak.lock();
                                    return alive == nullptr || alive.get() == listener;
                                  }),
                   listeners_.end());
  count_.store(static_cast<int>(listeners_.size()), std::memory_order_relaxed);
}

std::vector<std::shared_ptr<TraceDesk::Listener>> TraceDesk::Alive() {
  std::vector<std::shared_ptr<Listener>> alive;
  if (count_.load(std::memory_order_relaxed) == 0) return alive;
  MutexLock lock(&mu_);
  for (const std::weak_ptr<Listener>& weak : listeners_) {
    if (auto listener = weak.lock()) alive.push_back(std::move(listener));
  }
  return alive;
}

void TraceDesk::OnAction(const TraceAction& action) {
  const uint64_t step = action.step.value();
  if (action.kind == TraceAction::Kind::kStepComplete && opened_ns_ != 0) {
    RecordLasting(kStepSpan, opened_ns_, {step});
  }
  if (action.kind == TraceAction::Kind::kFailed) {
    for (const auto& listener : Alive()) listener->OnFailed();
  }
  if (action.kind != TraceAction::Kind::kStepOpened) return;
  opened_ns_ = TraceNowNs();
  SetOpenStep(step, action.version.value());
  for (const auto& listener : Alive()) listener->OnStepOpened(step, step > steps_);
}

void TraceDesk::OnBegin(const v1::BeginStepRequest& request) {
  for (const auto& listener : Alive()) listener->OnBegin(request);
}

void TraceDesk::Order(int64_t received_ns, v1::BeginStepReply* reply) {
  if (reply->done()) return;
  for (const auto& listener : Alive()) {
    if (!listener->WantsSpans()) continue;
    reply->mutable_trace_order()->set_received_ns(received_ns);
    reply->mutable_trace_order()->set_sent_ns(TraceNowNs());
    return;
  }
}

}  // namespace eps
