#ifndef EPS_WORKER_CLIENT_TRACE_STEP_TRACE_H_
#define EPS_WORKER_CLIENT_TRACE_STEP_TRACE_H_

#include <cstdint>
#include <optional>

#include "base/trace/trace_log.h"
#include "eps/v1/data.pb.h"

namespace eps {

// The spans of this worker while the lead traces the job: from the answer of a BeginStep that asks
// for them (TraceOrder) until the next BeginStep, which takes them to the lead. Records on as long
// as each answer asks again. Not synchronized.
class StepTrace {
 public:
  // Moves the spans since the last call to a request to the lead, on the lead's clock.
  void MoveTo(v1::BeginStepRequest* request);
  // Takes the lead's answer to a request that was sent and answered at these times.
  void OnReply(const v1::BeginStepReply& reply, int64_t sent_ns, int64_t received_ns);

 private:
  std::optional<TraceRecording> recording_;  // while the lead asks for spans
  // Measured once for a recording: a later, other result would move spans of one thread into each
  // other.
  int64_t lead_is_ahead_ns_ = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_TRACE_STEP_TRACE_H_
