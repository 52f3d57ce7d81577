#ifndef EPS_BASE_TRACE_SPAN_NAMES_H_
#define EPS_BASE_TRACE_SPAN_NAMES_H_

// The names of all spans that `eps trace` shows, and what the subject of each is.

#include "absl/strings/string_view.h"

namespace eps {

// ---- Of a worker. The subject is a stage, or none.
inline constexpr char kBeginStepSpan[] = "begin step";  // waits until the step is open
inline constexpr char kReportSpan[] = "report";         // of losses or an evaluation, to the lead
inline constexpr char kLoadDataSpan[] = "load data";
inline constexpr char kWaitForWeightsSpan[] = "wait for weights";
inline constexpr char kForwardSpan[] = "forward";
inline constexpr char kBackwardSpan[] = "backward";
inline constexpr char kWaitForMemorySpan[] = "wait for push memory";
inline constexpr char kWaitForWindowSpan[] = "wait for push window";
inline constexpr char kFlushSpan[] = "flush";  // waits until all gradients are acknowledged
inline constexpr char kEvaluateSpan[] = "evaluate";

// ---- Of a worker's threads of the client. The subject is a chunk.
inline constexpr char kDecodeSpan[] = "decode weights";
inline constexpr char kEncodeGradientSpan[] = "encode gradient";

// ---- Of the queues of a worker's device. The subject is a stage, or none.
inline constexpr char kDeviceComputeSpan[] = "compute on the device";
inline constexpr char kDeviceWeightsSpan[] = "copy weights to the device";
inline constexpr char kDeviceDecodeSpan[] = "decode weights on the device";
inline constexpr char kDeviceEncodeSpan[] = "encode a gradient on the device";
inline constexpr char kDeviceGradientSpan[] = "copy a gradient to the host";
inline constexpr char kDeviceStashSpan[] = "copy to the stash";
inline constexpr char kDeviceUnstashSpan[] = "copy from the stash";

// ---- Of a server. The subject is a chunk, or none.
inline constexpr char kStepSpan[] = "step";    // how long it was open
inline constexpr char kCheckSpan[] = "check";  // a gradient that arrived
inline constexpr char kReduceSpan[] = "reduce";
inline constexpr char kMeasureSpan[] = "measure";
inline constexpr char kUpdateSpan[] = "update";
inline constexpr char kEncodeSpan[] = "encode";
inline constexpr char kSendSpan[] = "send";
inline constexpr char kReadStateSpan[] = "read state";
inline constexpr char kWriteStateSpan[] = "write state";
inline constexpr char kCopyForCutSpan[] = "copy for a cut";
inline constexpr char kWriteCutSpan[] = "write a cut";

// The queues of a device, in the order of their numbers.
inline constexpr const char* kQueueNames[] = {
    "device: compute",       "device: weights in", "device: codecs",
    "device: gradients out", "device: stash out",  "device: stash in",
};

// Returns whether the subject of such a span is a stage, and not a chunk.
inline bool SubjectIsStage(absl::string_view name) {
  for (const char* const other :
       {kWaitForWeightsSpan, kForwardSpan, kBackwardSpan, kWaitForMemorySpan, kWaitForWindowSpan,
        kDeviceComputeSpan, kDeviceWeightsSpan, kDeviceDecodeSpan, kDeviceEncodeSpan,
        kDeviceGradientSpan, kDeviceStashSpan, kDeviceUnstashSpan}) {
    if (name == other) return true;
  }
  return false;
}

}  // namespace eps

#endif  // EPS_BASE_TRACE_SPAN_NAMES_H_
