#ifndef EPS_WORKER_RUN_WORKER_H_
#define EPS_WORKER_RUN_WORKER_H_

#include <functional>

#include "absl/status/status.h"
#include "worker/options.h"

namespace eps {

// Joins the job that the servers run and computes for it until it is done. If other workers hold
// the parts that it wants, it is a standby until it gets them. If the job's state returned to a
// durable border, or this worker lost its lease, joins again and continues where the job is.
//
// Once `interrupted()` is true, which it must then stay, drains: finishes the current step, gives
// back its leases and returns Cancelled. It is called between steps, and every 100 ms while the
// worker waits to join or for a step to open.
//
// Every other error says what failed and which key to change. Call it on the thread that will
// compute, before anything else uses LibTorch.
absl::Status RunWorker(const WorkerOptions& options, const std::function<bool()>& interrupted);

}  // namespace eps

#endif  // EPS_WORKER_RUN_WORKER_H_
