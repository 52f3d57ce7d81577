#include "worker/client/trace/step_trace.h"

#include "wire/trace/trace_message.h"

namespace eps {

void StepTrace::MoveTo(v1::BeginStepRequest* request) {
  if (!recording_.has_value()) return;
  *request->mutable_trace() = ToTraceReport(TracedProcessName("worker"), recording_->Take(),
                                            lead_is_ahead_ns_, kMaxWorkerReportBytes);
}

void StepTrace::OnReply(const v1::BeginStepReply& reply, int64_t sent_ns, int64_t received_ns) {
  if (!reply.has_trace_order()) return recording_.reset();
  if (recording_.has_value()) return;
  const v1::TraceOrder& order = reply.trace_order();
  const RoundTrip trip{sent_ns, order.received_ns(), order.sent_ns(), received_ns};
  lead_is_ahead_ns_ = trip.OtherIsAheadNs();
  recording_.emplace();
}

}  // namespace eps
