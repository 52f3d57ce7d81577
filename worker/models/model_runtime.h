#ifndef EPS_WORKER_MODELS_MODEL_RUNTIME_H_
#define EPS_WORKER_MODELS_MODEL_RUNTIME_H_

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/memory_account.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Returns the runtime that computes the job's model: LibTorch's, or the synthetic one for the
// synthetic model, which waits `pass_time` in each pass. `spec` and `account` (may be null) must
// outlive it. Errors as NewTorchRuntime; InvalidArgument also for a stash codec that StashCodec
// does not know, and for a `pass_time` with a model that does not wait. Call it as NewTorchRuntime.
absl::StatusOr<std::unique_ptr<StageRuntime>> NewModelRuntime(const JobSpec& spec,
                                                              const RuntimeOptions& options,
                                                              std::chrono::milliseconds pass_time,
                                                              MemoryAccount* account);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_MODEL_RUNTIME_H_
