#ifndef EPS_WORKER_RELAY_EVALUATION_H_
#define EPS_WORKER_RELAY_EVALUATION_H_

// Evaluates held-out data with the relay's forward pass alone. Samples are assigned to parts in
// order, like training samples, so that the result does not depend on workers or servers.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/host_stage_pool.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Supplies the micro-batches of held-out data. Thread-compatible.
class EvaluationSource {
 public:
  virtual ~EvaluationSource() = default;
  virtual uint32_t micro_batches() const = 0;
  // REQUIRES index < micro_batches(). The last one may have fewer samples.
  virtual absl::StatusOr<MicroBatch> Get(uint32_t index) = 0;
};

// Returns whether an evaluation follows `step` of a job of `steps`: after every `every`-th step and
// after the last one. 0 disables evaluations.
bool EvaluationIsDue(uint64_t step, uint64_t every, uint64_t steps);

// Returns the losses of the hosted parts' share with the weights of `version`, each summed in
// double in the order of the samples. With `count_predictions`, also counts what is predicted for
// each sample, or sums it along the canonical tree over the part's micro-batches; the model has to
// predict classes or numbers. Stashes at most as much at once as a training step: a larger share
// passes through the model in several rounds. Borrows all arguments; `pool` is the one from which
// training takes host memory for weights, and no stage of it may be in use.
absl::StatusOr<std::vector<PartLossSum>> EvaluateParts(
    const JoinedJob& job, ParameterClient* client, StageRuntime* runtime, HostStagePool* pool,
    int prefetch, Version version, EvaluationSource* source, bool count_predictions);

}  // namespace eps

#endif  // EPS_WORKER_RELAY_EVALUATION_H_
