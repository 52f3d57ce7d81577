#ifndef EPS_BASE_TRACE_TRACE_LOG_H_
#define EPS_BASE_TRACE_TRACE_LOG_H_

// Spans of the work of this process, for `eps trace`. Code that works opens a span in a scope:
//
//   const TraceSpan span(kForwardSpan, {step.value(), stage.value() + 1});
//
// While nobody records, a span costs one load of an atomic. All functions are thread-safe.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eps {

// The subject of a span. 0: unknown, or none.
struct SpanPlace {
  uint64_t step = 0;
  uint32_t subject = 0;  // the number of the stage or the chunk (span_names.h), plus 1
  uint32_t part = 0;     // plus 1
};

// A span that has ended.
struct RecordedSpan {
  const char* name;  // a literal of span_names.h
  uint32_t thread;   // of this process, numbered from 1; 0: no thread worked on it; or a queue
  int64_t start_ns;  // TraceNowNs()
  uint64_t duration_ns;
  SpanPlace place;
};

// CLOCK_MONOTONIC, in nanoseconds.
int64_t TraceNowNs();

namespace internal {
extern std::atomic<int> open_recordings;
void RecordSpan(const char* name, uint32_t thread, int64_t start_ns, const SpanPlace& place);
void RecordDone(const RecordedSpan& span);
uint32_t ThisThread();
}  // namespace internal

// Returns whether somebody records.
inline bool TraceIsOn() { return internal::open_recordings.load(std::memory_order_relaxed) > 0; }

// Records the spans of this process that end while it lives. Each of several recordings gets every
// span. One that is full drops the newest spans and counts them.
class TraceRecording {
 public:
  static constexpr size_t kMostSpans = 65536;  // 3.5 MiB

  // The spans since the last Take, in the order of the ends.
  struct Taken {
    std::vector<RecordedSpan> spans;
    uint64_t dropped = 0;
  };

  explicit TraceRecording(size_t most_spans = kMostSpans);
  ~TraceRecording();
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;

  Taken Take();

 private:
  friend class TraceLog;

  const size_t most_spans_;
  Taken taken_;  // guarded by the log's lock
};

// A span from its construction to its destruction, on one thread.
class TraceSpan {
 public:
  TraceSpan(const char* name, const SpanPlace& place) {
    if (TraceIsOn()) Begin(name, place);
  }
  ~TraceSpan() {
    if (name_ != nullptr) internal::RecordSpan(name_, internal::ThisThread(), start_ns_, place_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void Begin(const char* name, const SpanPlace& place);

  const char* name_ = nullptr;
  int64_t start_ns_;  // these two are set if name_ is
  SpanPlace place_;
};

// Records a span that lasted from `start_ns` until now, and on which no thread worked all the time.
inline void RecordLasting(const char* name, int64_t start_ns, const SpanPlace& place) {
  if (TraceIsOn()) internal::RecordSpan(name, /*thread=*/0, start_ns, place);
}

// Queues of a device have numbers as if they were threads: this one plus 1, 2, ….
inline constexpr uint32_t kFirstQueue = 1u << 20;

// Records a span of a device's queue, numbered from 1.
inline void RecordOfQueue(const char* name, uint32_t queue, int64_t start_ns, uint64_t duration_ns,
                          const SpanPlace& place) {
  if (TraceIsOn()) {
    internal::RecordDone({name, kFirstQueue + queue, start_ns, duration_ns, place});
  }
}

// Code that knows only the version of weights learns the step that reads it. Call SetOpenStep when
// a step opens; of several jobs in one process, the last call counts.
void SetOpenStep(uint64_t step, uint64_t version);
uint64_t StepThatReads(uint64_t version);

}  // namespace eps

#endif  // EPS_BASE_TRACE_TRACE_LOG_H_
