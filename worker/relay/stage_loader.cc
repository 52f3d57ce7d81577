#include "worker/relay/stage_loader.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace eps {

std::shared_ptr<HostStage> HostStagePool::Get(StageId stage) {
  Shapes shapes;
  for (const TensorUse& use : spec_.stages[stage.value()].uses) {
    shapes.push_back(spec_.tensors[use.tensor.value()].elements());
  }
  std::vector<std::shared_ptr<HostStage>>& stages = stages_[shapes];
  for (const std::shared_ptr<HostStage>& host : stages) {
    if (host.use_count() == 1) return host;
  }
  stages.push_back(runtime_->NewHostStage(stage));
  return stages.back();
}

TensorPointers HostStagePool::Pointers(StageId stage, HostStage* host) const {
  TensorPointers pointers;
  for (size_t use = 0; use < spec_.stages[stage.value()].uses.size(); ++use) {
    pointers.push_back(host->tensor(use));
  }
  return pointers;
}

StageLoader::StageLoader(ParameterClient* client, StageRuntime* runtime, HostStagePool* pool,
                         std::vector<Item> items, Version version, int prefetch)
    : client_(client),
      runtime_(runtime),
      pool_(pool),
      items_(std::move(items)),
      version_(version),
      prefetch_(prefetch) {
  FetchAhead(static_cast<size_t>(prefetch_));
}

void StageLoader::FetchAhead(size_t stages) {
  while (pending_.size() < stages && next_item_ < items_.size()) {
    const Item& item = items_[next_item_++];
    Pending pending;
    pending.stage = item.stage;
    pending.host = pool_->Get(item.stage);
    pending.fetch = client_->FetchStage(item.stage, version_, item.backward,
                                        pool_->Pointers(item.stage, pending.host.get()));
    pending_.push_back(std::move(pending));
  }
}

absl::StatusOr<std::shared_ptr<const StageWeights>> StageLoader::Next() {
  FetchAhead(1);
  EPS_CHECK_MSG(!pending_.empty(), "all " << items_.size() << " stages of the step are used");
  Pending current = std::move(pending_.front());
  pending_.pop_front();
  FetchAhead(static_cast<size_t>(prefetch_));
  const auto start = std::chrono::steady_clock::now();
  EPS_RETURN_IF_ERROR(current.fetch->Wait());
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  current.fetch.reset();
  return runtime_->Load(current.stage, std::move(current.host));
}

}  // namespace eps
