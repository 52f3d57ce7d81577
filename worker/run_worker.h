#ifndef EPS_WORKER_RUN_WORKER_H_
#define EPS_WORKER_RUN_WORKER_H_

#include "absl/status/status.h"
#include "worker/options.h"

namespace eps {

// Joins the job that the servers run and computes for it until it is done. After an interrupt the
// step that runs is finished; then Cancelled. Every other error says what failed and which key to
// change. Call it from the main thread, before anything else uses LibTorch.
absl::Status RunWorker(const WorkerOptions& options);

}  // namespace eps

#endif  // EPS_WORKER_RUN_WORKER_H_
