#ifndef EPS_WORKER_RELAY_EVALUATION_H_
#define EPS_WORKER_RELAY_EVALUATION_H_

// Evaluation on held-out data: the relay without its way down. The samples are dealt to parts in
// order, as those of training are, so that the figure does not depend on workers or servers.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/host_stage_pool.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Gives the micro-batches of held-out data. Thread-compatible.
class EvaluationSource {
 public:
  virtual ~EvaluationSource() = default;
  virtual uint32_t micro_batches() const = 0;
  // REQUIRES index < micro_batches(). The last one may have fewer samples.
  virtual absl::StatusOr<MicroBatch> Get(uint32_t index) = 0;
};

// Whether an evaluation stands behind `step` of a job of `steps`: every `every`-th (0: none) and
// the last.
bool EvaluationIsDue(uint64_t step, uint64_t every, uint64_t steps);

// The losses of the hosted parts' share with the weights of `version`, each summed in double in the
// order of the samples. What is stashed at once is at most what a training step stashes: a share
// that is larger goes through the model in several rounds. All borrowed; `pool` is the one that
// training takes its weights from, and no stage of it is in use.
absl::StatusOr<std::vector<PartLossSum>> EvaluateParts(const JoinedJob& job,
                                                       ParameterClient* client,
                                                       StageRuntime* runtime, HostStagePool* pool,
                                                       int prefetch, Version version,
                                                       EvaluationSource* source);

}  // namespace eps

#endif  // EPS_WORKER_RELAY_EVALUATION_H_
