#include "worker/exec/queues/queue_trace.h"

#include <utility>
#include <vector>

#include "worker/exec/torch_guard.h"

namespace eps {

QueueTrace::Span::Span(QueueTrace* trace, DeviceQueue queue, const char* name,
                       const SpanPlace& place)
    : trace_(trace) {
  if (!TraceIsOn()) return;
  work_ = {name, queue, place, trace_->queues_->RecordTime(queue), nullptr};
}

QueueTrace::Span::~Span() {
  if (work_.begin == nullptr) return;
  // If the device fails here, the next call that enqueues work reports it.
  static_cast<void>(CatchTorch("tracing the device", [this] {
    work_.end = trace_->queues_->RecordTime(work_.queue);
    MutexLock lock(&trace_->mu_);
    trace_->enqueued_.push_back(std::move(work_));
  }));
}

void QueueTrace::Collect() {
  std::vector<Enqueued> done;
  {
    MutexLock lock(&mu_);
    std::deque<Enqueued> others;
    for (Enqueued& work : enqueued_) {
      if (work.end->done()) {
        done.push_back(std::move(work));
      } else {
        others.push_back(std::move(work));
      }
    }
    enqueued_.swap(others);
  }
  for (const Enqueued& work : done) {
    const int64_t begin = work.begin->time_ns();
    RecordOfQueue(work.name, static_cast<uint32_t>(work.queue) + 1, begin,
                  static_cast<uint64_t>(work.end->time_ns() - begin), work.place);
  }
}

}  // namespace eps
