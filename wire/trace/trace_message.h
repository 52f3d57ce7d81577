#ifndef EPS_WIRE_TRACE_TRACE_MESSAGE_H_
#define EPS_WIRE_TRACE_TRACE_MESSAGE_H_

// Spans of this process (base/trace/trace_log.h) as messages, and the clocks of two processes.

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/trace/trace_log.h"
#include "eps/v1/types.pb.h"

namespace eps {

// A report in BeginStepRequest has at most so many bytes.
inline constexpr size_t kMaxWorkerReportBytes = size_t{64} << 10;

// When a request was sent and its reply received, on the clock of one process, and when the other
// one received the request and sent the reply, on its own. All in nanoseconds.
struct RoundTrip {
  int64_t sent_ns = 0;
  int64_t other_received_ns = 0;
  int64_t other_sent_ns = 0;
  int64_t received_ns = 0;

  // Returns how far the other clock is ahead. The error is at most half of what the messages took;
  // how long the other process kept the request does not matter.
  int64_t OtherIsAheadNs() const {
    return ((other_received_ns - sent_ns) + (other_sent_ns - received_ns)) / 2;
  }
};

// Returns "ROLE (HOST, process 123)" for this process.
std::string TracedProcessName(const std::string& role);

// Returns the spans as a report of at most `most_bytes`, on a clock that is `ahead_ns` ahead of
// this process's. Drops the newest spans if there are too many, and counts them.
v1::TraceReport ToTraceReport(const std::string& process, const TraceRecording::Taken& taken,
                              int64_t ahead_ns, size_t most_bytes);

}  // namespace eps

#endif  // EPS_WIRE_TRACE_TRACE_MESSAGE_H_
