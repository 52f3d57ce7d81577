#ifndef EPS_WORKER_RELAY_RELAY_H_
#define EPS_WORKER_RELAY_RELAY_H_

// The loop over stages (L2L, arXiv 2002.05645, Alg. 2): for each stage all micro-batches of all
// hosted parts, then the next stage; back the same way with recomputation. One stage's weights are
// on the device, the next ones on their way.

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/evaluation.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Gives the micro-batches of a job. Thread-compatible.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // The global micro-batch `index` (part * g + j) of `step`.
  virtual absl::StatusOr<MicroBatch> Get(Step step, uint32_t index) = 0;
};

struct RelayOptions {
  int prefetch = 1;  // stages fetched ahead of the one that computes; 0: none
  // Held-out data, evaluated behind every `eval_steps`-th step and the last one (0: never) with
  // the weights that the next step names, before that step's own work: until this worker pushes its
  // parts of it, no chunk can move on. Outlives the relay.
  EvaluationSource* evaluation_or_null = nullptr;
  uint64_t eval_steps = 0;
};

// What a step took, of the worker's own time.
struct StepTiming {
  double begin_wait_seconds = 0;  // in BeginStep: for the other workers and the update
  double forward_seconds = 0;
  double backward_seconds = 0;
  double fetch_wait_seconds = 0;
  double push_wait_seconds = 0;
};

class Relay {
 public:
  // All borrowed; they outlive the relay. `job` is what Join returned. Gradients on their way lie
  // in the runtime's memory, so the client is destroyed before the runtime.
  Relay(const JoinedJob& job, ParameterClient* client, StageRuntime* runtime, BatchSource* batches,
        RelayOptions options);
  ~Relay();

  // Runs steps from job.next_step until the job is done, an error, or `stop()` returns true, which
  // is asked between steps. `on_step` is told of each finished step (loss of the hosted parts).
  absl::Status Run(const std::function<bool()>& stop,
                   const std::function<void(Step, const LossSum&, const StepTiming&)>& on_step);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_RELAY_H_
