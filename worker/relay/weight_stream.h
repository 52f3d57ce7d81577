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

// One visit of a stage within a step.
struct StageVisit {
  StageId stage;
  bool backward = false;  // the pass for which its weights are fetched
};

// Returns the visits of a step over `stages` stages: up, the last stage once, and down. The
// backward pass of the last stage follows its forward pass without a second fetch. Its visit
// fetches for a backward pass, which receives all that a forward pass receives and more.
std::vector<StageVisit> VisitsOfStep(size_t stages);

// Delivers the weights of a step's visits in order; while one is used, the weights of the next
// `prefetch` visits are in flight. Use it from one thread.
class WeightStream {
 public:
  // Borrows all arguments.
  WeightStream(const JobSpec& spec, ParameterClient* client, StageRuntime* runtime,
               HostStagePool* pool, int prefetch, Version version, std::vector<StageVisit> visits);

  // Starts the fetches that Next would start, without waiting for them.
  // Returns the error of the host memory.
  absl::Status Start();
  Version version() const { return version_; }
  // Waits for the weights of the next visit and returns them. Drop those of the previous visit
  // first, so that no more than 1 + prefetch stages are held.
  absl::StatusOr<std::shared_ptr<const StageWeights>> Next();

 private:
  // Members are destroyed in reverse: the fetch goes before the memory to which it writes.
  struct InFlight {
    std::shared_ptr<HostStage> host;
    std::unique_ptr<PendingFetch> fetch;
  };

  absl::Status Fetch(const StageVisit& visit);

  const JobSpec& spec_;
  ParameterClient* const client_;
  StageRuntime* const runtime_;
  HostStagePool* const pool_;
  const size_t prefetch_;
  const Version version_;
  const std::vector<StageVisit> visits_;
  size_t next_ = 0;     // index of the next visit to return
  size_t started_ = 0;  // number of fetches started
  std::deque<InFlight> in_flight_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_WEIGHT_STREAM_H_
