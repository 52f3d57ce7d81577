#ifndef EPS_WORKER_RUN_WORKER_H_
#define EPS_WORKER_RUN_WORKER_H_

#include <functional>

#include "absl/status/status.h"
#include "worker/options.h"

namespace eps {

// Joins the job that the servers run and computes for it until it is done. If the job's state
// returned to a durable border, joins again and continues after that border. Once `interrupted()`,
// which is called between steps, returns true, finishes the current step and returns Cancelled.
// Every other error says what failed and which key to change. Call it on the thread that will
// compute, before anything else uses LibTorch.
absl::Status RunWorker(const WorkerOptions& options, const std::function<bool()>& interrupted);

}  // namespace eps

#endif  // EPS_WORKER_RUN_WORKER_H_
