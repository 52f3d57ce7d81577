#include "worker/relay/weight_stream.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// Weights that are decoded in host memory and loaded from there.
class HostArrival final : public ArrivingWeights {
 public:
  HostArrival(StageRuntime* runtime, StageId stage, std::shared_ptr<HostStage> host,
              std::shared_ptr<StageSink> sink)
      : runtime_(runtime), stage_(stage), host_(std::move(host)), sink_(std::move(sink)) {}

  std::shared_ptr<StageSink> sink() override { return sink_; }
  std::shared_ptr<const StageWeights> Load() override {
    return runtime_->Load(stage_, std::move(host_));
  }

 private:
  StageRuntime* const runtime_;
  const StageId stage_;
  std::shared_ptr<HostStage> host_;
  const std::shared_ptr<StageSink> sink_;  // writes to *host_
};

}  // namespace

WeightStream::WeightStream(const JobSpec& spec, ParameterClient* client, StageRuntime* runtime,
                           HostStagePool* pool, int prefetch, Version version,
                           std::vector<Visit> visits)
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
    const Visit& visit = visits_[started_];
    InFlight in_flight;
    if (FetchesWeights(spec_, visit)) {
      EPS_ASSIGN_OR_RETURN(in_flight, Fetch(visit));
    } else {
      client_->PreparePush(visit.stage, version_);
    }
    in_flight_.push_back(std::move(in_flight));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const StageWeights>> WeightStream::Next() {
  EPS_CHECK(next_ < visits_.size());
  EPS_RETURN_IF_ERROR(Start());
  InFlight ready = std::move(in_flight_.front());
  in_flight_.pop_front();
  const StageId stage = visits_[next_++].stage;
  if (ready.fetch == nullptr) return runtime_->WithoutValues(stage);
  EPS_RETURN_IF_ERROR(ready.fetch->Wait());
  ready.fetch.reset();
  return ready.arriving->Load();
}

absl::StatusOr<WeightStream::InFlight> WeightStream::Fetch(const Visit& visit) {
  InFlight in_flight;
  EPS_ASSIGN_OR_RETURN(in_flight.arriving, runtime_->NewArrival(visit.stage, visit.backward));
  if (in_flight.arriving == nullptr) {
    EPS_ASSIGN_OR_RETURN(in_flight.arriving, NewHostArrival(visit));
  }
  in_flight.fetch =
      client_->FetchStage(visit.stage, version_, visit.backward, in_flight.arriving->sink());
  return in_flight;
}

absl::StatusOr<std::unique_ptr<ArrivingWeights>> WeightStream::NewHostArrival(const Visit& visit) {
  const size_t uses = spec_.stages[visit.stage.value()].uses.size();
  const bool two_copies =
      visit.backward && spec_.codecs.backward_weights == BackwardWeights::kBothAxes;
  std::shared_ptr<HostStage> host;
  EPS_ASSIGN_OR_RETURN(host,
                       two_copies ? pool_->TakeForBackward(visit.stage) : pool_->Take(visit.stage));
  TensorPointers pointers;
  for (size_t use = 0; use < uses; ++use) pointers.push_back(host->tensor(use));
  for (size_t use = 0; two_copies && use < uses; ++use) {
    pointers.push_back(host->second_copy(use));
  }
  auto sink = std::make_shared<HostSink>(&spec_, visit.stage, std::move(pointers));
  return std::unique_ptr<ArrivingWeights>(
      std::make_unique<HostArrival>(runtime_, visit.stage, std::move(host), std::move(sink)));
}

}  // namespace eps
