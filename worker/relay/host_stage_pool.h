#ifndef EPS_WORKER_RELAY_HOST_STAGE_POOL_H_
#define EPS_WORKER_RELAY_HOST_STAGE_POOL_H_

#include <chrono>
#include <cstddef>
#include <memory>

#include "base/ids.h"
#include "base/job/job_spec.h"
#include "worker/relay/stage_program.h"

namespace eps {

// HostStages that are used again: pinned memory is dear to allocate, and all blocks of a model have
// one shape. At most `keep` exist while no more are in use. Thread-safe; a HostStage may come back
// after the pool is gone, but not after the runtime is.
class HostStagePool {
 public:
  // `runtime` and `spec` outlive the pool.
  HostStagePool(StageRuntime* runtime, const JobSpec* spec, size_t keep);

  // A HostStage of the stage's shape with arbitrary content; never waits. It goes back to the pool
  // with its last reference.
  std::shared_ptr<HostStage> Take(StageId stage);
  // The same with second copies (StageRuntime::NewBackwardStage).
  std::shared_ptr<HostStage> TakeForBackward(StageId stage);
  // Waits until fewer than `count` are in use; false after `timeout`.
  bool WaitUntilFewerInUse(size_t count, std::chrono::milliseconds timeout);

 private:
  struct State;

  std::shared_ptr<HostStage> Take(StageId stage, bool backward);

  StageRuntime* const runtime_;
  const JobSpec* const spec_;
  const std::shared_ptr<State> state_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_HOST_STAGE_POOL_H_
