#ifndef EPS_WORKER_RELAY_RELAY_H_
#define EPS_WORKER_RELAY_RELAY_H_

// The loop over stages (L2L, arXiv 2002.05645, Alg. 2): all micro-batches of all hosted parts pass
// through a stage before the next stage begins; the backward pass returns the same way and
// recomputes. The device holds one stage's weights while the next ones are in flight.

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/evaluation.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Supplies the micro-batches of a job. Thread-compatible.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Returns the global micro-batch `index` (part * g + j) of `step`.
  virtual absl::StatusOr<MicroBatch> Get(Step step, uint32_t index) = 0;
};

// How a relay fetches and evaluates.
struct RelayOptions {
  int prefetch = 1;  // stages fetched ahead of the one that computes; 0 disables prefetching
  // Held-out data, evaluated after every `eval_steps`-th step and after the last one (0 disables
  // it). The evaluation of a step uses the weights that the next step reads and runs before that
  // step's own work: until this worker pushes its parts of that step, no chunk can change. Must
  // outlive the relay.
  EvaluationSource* evaluation_or_null = nullptr;
  uint64_t eval_steps = 0;
  bool count_predictions = false;  // as in EvaluateParts
};

// Durations within a step, on the worker's own clock.
struct StepTiming {
  double begin_wait_seconds = 0;  // in BeginStep, for the other workers and the update
  double forward_seconds = 0;
  double backward_seconds = 0;
  double fetch_wait_seconds = 0;
  double push_wait_seconds = 0;
};

// Runs training steps for the parts that a worker hosts. Thread-compatible.
class Relay {
 public:
  // Borrows all arguments, which must outlive the relay. `job` is the result of Join. Gradients in
  // flight lie in the runtime's memory, so destroy the client before the runtime.
  Relay(const JoinedJob& job, ParameterClient* client, StageRuntime* runtime, BatchSource* batches,
        RelayOptions options);
  ~Relay();

  // Runs steps from job.next_step until the job is done, an error occurs, or `stop()`, called
  // between steps, returns true. Calls `on_step` after each step with the loss of the hosted parts.
  absl::Status Run(const std::function<bool()>& stop,
                   const std::function<void(Step, const LossSum&, const StepTiming&)>& on_step);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_RELAY_H_
