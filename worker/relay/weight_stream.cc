#include "worker/relay/weight_stream.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "worker/relay/weight_copies.h"

namespace eps {

std::vector<StageVisit> VisitsOfStep(size_t stages) {
  std::vector<StageVisit> visits;
  for (size_t s = 0; s + 1 < stages; ++s) {
    visits.push_back({StageId(static_cast<uint32_t>(s)), /*backward=*/false});
  }
  for (size_t s = stages; s-- > 0;) {
    visits.push_back({StageId(static_cast<uint32_t>(s)), /*backward=*/true});
  }
  return visits;
}

WeightStream::WeightStream(const JobSpec& spec, ParameterClient* client, StageRuntime* runtime,
                           HostStagePool* pool, int prefetch, Version version,
                           std::vector<StageVisit> visits)
    : spec_(spec),
      client_(client),
      runtime_(runtime),
      pool_(pool),
      prefetch_(static_cast<size_t>(prefetch)),
      version_(version),
      visits_(std::move(visits)) {
  EPS_CHECK(prefetch >= 0);
}

absl::Status WeightStream::Start() {
  for (; started_ < visits_.size() && started_ <= next_ + prefetch_; ++started_) {
    EPS_RETURN_IF_ERROR(Fetch(visits_[started_]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const StageWeights>> WeightStream::Next() {
  EPS_CHECK(next_ < visits_.size());
  EPS_RETURN_IF_ERROR(Start());
  InFlight ready = std::move(in_flight_.front());
  in_flight_.pop_front();
  EPS_RETURN_IF_ERROR(ready.fetch->Wait());
  ready.fetch.reset();
  const StageId stage = visits_[next_++].stage;
  if (spec_.codecs.backward_weights == BackwardWeights::kDecodeOnce) {
    RoundMatricesToBf16(spec_, spec_.stages[stage.value()], ready.host.get());
  }
  return runtime_->Load(stage, std::move(ready.host));
}

absl::Status WeightStream::Fetch(const StageVisit& visit) {
  const size_t uses = spec_.stages[visit.stage.value()].uses.size();
  const bool two_copies =
      visit.backward && spec_.codecs.backward_weights == BackwardWeights::kBothAxes;
  InFlight in_flight;
  EPS_ASSIGN_OR_RETURN(in_flight.host,
                       two_copies ? pool_->TakeForBackward(visit.stage) : pool_->Take(visit.stage));
  TensorPointers pointers;
  for (size_t use = 0; use < uses; ++use) pointers.push_back(in_flight.host->tensor(use));
  for (size_t use = 0; two_copies && use < uses; ++use) {
    pointers.push_back(in_flight.host->second_copy(use));
  }
  in_flight.fetch = client_->FetchStage(visit.stage, version_, visit.backward, std::move(pointers));
  in_flight_.push_back(std::move(in_flight));
  return absl::OkStatus();
}

}  // namespace eps
