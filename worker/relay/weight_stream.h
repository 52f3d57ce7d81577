#ifndef EPS_WORKER_RELAY_WEIGHT_STREAM_H_
#define EPS_WORKER_RELAY_WEIGHT_STREAM_H_

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/host_stage_pool.h"
#include "worker/relay/stage_program.h"

namespace eps {

// One stay at a stage within a step.
struct StageVisit {
  StageId stage;
  bool backward = false;  // the pass that its weights are fetched for
};

// The visits of a step over `stages` stages: up, the last stage once, and down. The backward pass
// of the last stage follows its forward without a second fetch, so it is fetched for both: as for a
// backward pass, which gets what a forward pass gets and more.
std::vector<StageVisit> VisitsOfStep(size_t stages);

// The weights of a step's visits in order, those of the next `prefetch` visits on their way while
// one is used. Used by one thread.
class WeightStream {
 public:
  // All borrowed.
  WeightStream(const JobSpec& spec, ParameterClient* client, StageRuntime* runtime,
               HostStagePool* pool, int prefetch, Version version, std::vector<StageVisit> visits);

  // The weights of the next visit; waits for them. The weights of the visit before must be dropped
  // first, so that no more than 1 + prefetch stages are held.
  absl::StatusOr<std::shared_ptr<const StageWeights>> Next();

 private:
  // The fetch is dropped before the memory that it writes to.
  struct InFlight {
    std::shared_ptr<HostStage> host;
    std::unique_ptr<PendingFetch> fetch;
  };

  void Start(const StageVisit& visit);

  const JobSpec& spec_;
  ParameterClient* const client_;
  StageRuntime* const runtime_;
  HostStagePool* const pool_;
  const size_t prefetch_;
  const Version version_;
  const std::vector<StageVisit> visits_;
  size_t next_ = 0;     // visit
  size_t started_ = 0;  // fetches
  std::deque<InFlight> in_flight_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_WEIGHT_STREAM_H_
