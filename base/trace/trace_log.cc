#include "base/trace/trace_log.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "base/mutex.h"

namespace eps {

// The recordings of the process.
class TraceLog {
 public:
  static TraceLog& OfProcess() {
    static auto* const log = new TraceLog();
    return *log;
  }

  void Add(TraceRecording* recording) {
    MutexLock lock(&mu_);
    recordings_.push_back(recording);
    internal::open_recordings.fetch_add(1, std::memory_order_relaxed);
  }
  void Remove(TraceRecording* recording) {
    MutexLock lock(&mu_);
    recordings_.erase(std::find(recordings_.begin(), recordings_.end(), recording));
    internal::open_recordings.fetch_sub(1, std::memory_order_relaxed);
  }
  void Append(const RecordedSpan& span) {
    MutexLock lock(&mu_);
    for (TraceRecording* const recording : recordings_) {
      if (recording->taken_.spans.size() < recording->most_spans_) {
        recording->taken_.spans.push_back(span);
      } else {
        ++recording->taken_.dropped;
      }
    }
  }
  TraceRecording::Taken Take(TraceRecording* recording) {
    MutexLock lock(&mu_);
    return std::exchange(recording->taken_, TraceRecording::Taken());
  }

 private:
  Mutex mu_;
  std::vector<TraceRecording*> recordings_ EPS_GUARDED_BY(mu_);
};

namespace {

std::atomic<uint32_t> threads{0};
std::atomic<uint64_t> step_less_version{0};  // modulo 2^64

}  // namespace

namespace internal {

std::atomic<int> open_recordings{0};

uint32_t ThisThread() {
  thread_local const uint32_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

void RecordSpan(const char* name, uint32_t thread, int64_t start_ns, const SpanPlace& place) {
  const auto duration_ns = static_cast<uint64_t>(TraceNowNs() - start_ns);
  TraceLog::OfProcess().Append({name, thread, start_ns, duration_ns, place});
}

void RecordDone(const RecordedSpan& span) { TraceLog::OfProcess().Append(span); }

}  // namespace internal

int64_t TraceNowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

TraceRecording::TraceRecording(size_t most_spans) : most_spans_(most_spans) {
  TraceLog::OfProcess().Add(this);
}

TraceRecording::~TraceRecording() { TraceLog::OfProcess().Remove(this); }

TraceRecording::Taken TraceRecording::Take() { return TraceLog::OfProcess().Take(this); }

void TraceSpan::Begin(const char* name, const SpanPlace& place) {
  name_ = name;
  place_ = place;
  start_ns_ = TraceNowNs();
}

void SetOpenStep(uint64_t step, uint64_t version) {
  step_less_version.store(step - version, std::memory_order_relaxed);
}

uint64_t StepThatReads(uint64_t version) {
  return version + step_less_version.load(std::memory_order_relaxed);
}

}  // namespace eps
