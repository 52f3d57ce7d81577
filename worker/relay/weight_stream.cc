#include "worker/relay/weight_stream.h"

#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace eps {

std::vector<StageVisit> VisitsOfStep(size_t stages) {
  std::vector<StageVisit> visits;
  for (size_t s = 0; s < stages; ++s) visits.push_back({StageId(static_cast<uint32_t>(s)), false});
  for (size_t s = stages; s-- > 0;) {
    if (s + 1 < stages) visits.push_back({StageId(static_cast<uint32_t>(s)), true});
  }
  return visits;
}

WeightStream::WeightStream(ParameterClient* client, StageRuntime* runtime, HostStagePool* pool,
                           int prefetch, Version version, std::vector<StageVisit> visits)
    : client_(client),
      runtime_(runtime),
      pool_(pool),
      prefetch_(static_cast<size_t>(prefetch)),
      version_(version),
      visits_(std::move(visits)) {
  EPS_CHECK(prefetch >= 0);
}

absl::StatusOr<std::shared_ptr<const StageWeights>> WeightStream::Next() {
  EPS_CHECK(next_ < visits_.size());
  for (; started_ < visits_.size() && started_ <= next_ + prefetch_; ++started_) {
    const StageVisit& visit = visits_[started_];
    InFlight in_flight;
    in_flight.host = pool_->Take(visit.stage);
    TensorPointers pointers;
    for (size_t use = 0; use < runtime_->program(visit.stage).spec().uses.size(); ++use) {
      pointers.push_back(in_flight.host->tensor(use));
    }
    in_flight.fetch =
        client_->FetchStage(visit.stage, version_, visit.backward, std::move(pointers));
    in_flight_.push_back(std::move(in_flight));
  }
  InFlight ready = std::move(in_flight_.front());
  in_flight_.pop_front();
  EPS_RETURN_IF_ERROR(ready.fetch->Wait());
  ready.fetch.reset();
  return runtime_->Load(visits_[next_++].stage, std::move(ready.host));
}

}  // namespace eps
