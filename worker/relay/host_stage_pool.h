#ifndef EPS_WORKER_RELAY_HOST_STAGE_POOL_H_
#define EPS_WORKER_RELAY_HOST_STAGE_POOL_H_

#include <chrono>
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Reuses HostStages, because pinned memory is expensive to allocate and all blocks of a model have
// the same shape. Keeps at most `keep` stages, counting those in use. Thread-safe. A HostStage may
// return after the pool is destroyed, but not after the runtime is.
class HostStagePool {
 public:
  // `runtime` and `spec` must outlive the pool.
  HostStagePool(StageRuntime* runtime, const JobSpec* spec, size_t keep);

  // Returns a HostStage of the stage's shape with arbitrary content; never waits. It returns to the
  // pool with its last reference. Errors are those of StageRuntime::NewHostStage.
  absl::StatusOr<std::shared_ptr<HostStage>> Take(StageId stage);
  // As Take, with second copies (StageRuntime::NewBackwardStage).
  absl::StatusOr<std::shared_ptr<HostStage>> TakeForBackward(StageId stage);
  // Counts a HostStage that the pool did not make as in use, until its last reference destroys it.
  std::shared_ptr<HostStage> Adopt(std::unique_ptr<HostStage> stage);
  // Counts one more as in use, until the last reference to the result is gone.
  std::shared_ptr<void> Count();
  // Waits until fewer than `count` are in use; returns false after `timeout`.
  bool WaitUntilFewerInUse(size_t count, std::chrono::milliseconds timeout);

 private:
  struct State;

  absl::StatusOr<std::shared_ptr<HostStage>> Take(StageId stage, bool backward);

  StageRuntime* const runtime_;
  const JobSpec* const spec_;
  const std::shared_ptr<State> state_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_HOST_STAGE_POOL_H_
