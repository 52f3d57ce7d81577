#ifndef EPS_WORKER_RUN_WORKER_H_
#define EPS_WORKER_RUN_WORKER_H_

#include <functional>

#include "absl/status/status.h"
#include "worker/options.h"

namespace eps {

// Joins the job that the servers run and computes for it until it is done. Where the job's state
// went back to a durable border it joins again and goes on behind that one. Once `interrupted()`,
// which is asked between steps, it finishes the step that runs and returns Cancelled. Every other
// error says what failed and which key to change. Call it from the thread that may compute, before
// anything else uses LibTorch.
absl::Status RunWorker(const WorkerOptions& options, const std::function<bool()>& interrupted);

}  // namespace eps

#endif  // EPS_WORKER_RUN_WORKER_H_
