#ifndef EPS_WORKER_EXEC_QUEUES_QUEUE_TRACE_H_
#define EPS_WORKER_EXEC_QUEUES_QUEUE_TRACE_H_

// When a device's queues worked, for `eps trace` (base/trace/trace_log.h). While nobody records, a
// span costs one load of an atomic.

#include <deque>

#include "base/mutex.h"
#include "base/trace/trace_log.h"
#include "worker/exec/queues/device_queues.h"

namespace eps {

// Collects the spans of all queues. Thread-safe.
class QueueTrace {
 public:
  // A span of the work that is enqueued in one queue while this object lives.
  class Span;

  // `queues` must outlive it.
  explicit QueueTrace(DeviceQueues* queues) : queues_(queues) {}
  QueueTrace(const QueueTrace&) = delete;
  QueueTrace& operator=(const QueueTrace&) = delete;

  // Passes the spans whose work is done to the trace log. Call it every now and then; it does not
  // wait.
  void Collect() EPS_EXCLUDES(mu_);

 private:
  // Work that is enqueued.
  struct Enqueued {
    const char* name = nullptr;  // a literal of base/trace/span_names.h
    DeviceQueue queue = DeviceQueue::kCompute;
    SpanPlace place;
    DeviceEventPtr begin;
    DeviceEventPtr end;
  };

  DeviceQueues* const queues_;
  Mutex mu_;
  std::deque<Enqueued> enqueued_ EPS_GUARDED_BY(mu_);
};

// Not for sharing between threads.
class QueueTrace::Span {
 public:
  // Throws what LibTorch throws.
  Span(QueueTrace* trace, DeviceQueue queue, const char* name, const SpanPlace& place);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  QueueTrace* const trace_;
  Enqueued work_;  // without `begin` if nobody records
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_QUEUE_TRACE_H_
