#ifndef EPS_WORKER_RELAY_WEIGHT_STREAM_H_
#define EPS_WORKER_RELAY_WEIGHT_STREAM_H_

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/visits.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/host_stage_pool.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Delivers the weights of a step's visits in order; while one is used, the weights of the next
// `prefetch` visits are in flight. The weights of a visit that fetches none (FetchesWeights) have
// no values. Use it from one thread.
class WeightStream {
 public:
  // Borrows all arguments.
  WeightStream(const JobSpec& spec, ParameterClient* client, StageRuntime* runtime,
               HostStagePool* pool, int prefetch, Version version, std::vector<Visit> visits);

  // Starts the fetches that Next would start, without waiting for them.
  // Returns the error of the host memory.
  absl::Status Start();
  Version version() const { return version_; }
  // Waits for the weights of the next visit and returns them. Drop those of the previous visit
  // first, so that no more than 1 + prefetch stages are held.
  absl::StatusOr<std::shared_ptr<const StageWeights>> Next();

 private:
  // Members are destroyed in reverse: the fetch goes before the memory to which it writes.
  // Both are null for a visit that fetches nothing.
  struct InFlight {
    std::unique_ptr<ArrivingWeights> arriving;
    std::unique_ptr<PendingFetch> fetch;
  };

  absl::StatusOr<InFlight> Fetch(const Visit& visit);
  // Returns an arrival in host memory, for a device that has none of its own.
  absl::StatusOr<std::unique_ptr<ArrivingWeights>> NewHostArrival(const Visit& visit);

  const JobSpec& spec_;
  ParameterClient* const client_;
  StageRuntime* const runtime_;
  HostStagePool* const pool_;
  const size_t prefetch_;
  const Version version_;
  const std::vector<Visit> visits_;
  size_t next_ = 0;     // index of the next visit to return
  size_t started_ = 0;  // number of visits for which a fetch was started, if they need one
  std::deque<InFlight> in_flight_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_WEIGHT_STREAM_H_
