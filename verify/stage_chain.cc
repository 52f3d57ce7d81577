#include "verify/stage_chain.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/check.h"

namespace eps {
namespace {

std::shared_ptr<const StageWeights> Load(const JobSpec& spec, StageRuntime* runtime, StageId stage,
                                         const StageInputs& weights) {
  std::shared_ptr<HostStage> host = runtime->NewHostStage(stage);
  for (size_t use = 0; use < weights[stage.value()].size(); ++use) {
    const TensorId tensor = spec.stages[stage.value()].uses[use].tensor;
    std::memcpy(host->tensor(use), weights[stage.value()][use],
                spec.tensors[tensor.value()].elements() * sizeof(float));
  }
  return runtime->Load(stage, std::move(host));
}

}  // namespace

MicroBatchResult RunStagePrograms(const JobSpec& spec, StageRuntime* runtime,
                                  const StageInputs& weights, const MicroBatch& batch) {
  const auto stages = static_cast<uint32_t>(spec.stages.size());
  std::vector<ActivationPtr> stash(stages);  // the input of each stage
  for (uint32_t s = 0; s + 1 < stages; ++s) {
    const auto loaded = Load(spec, runtime, StageId(s), weights);
    auto out = runtime->program(StageId(s)).Forward(*loaded, batch, stash[s]);
    EPS_CHECK_MSG(out.ok(), out.status());
    stash[s + 1] = *std::move(out);
  }
  MicroBatchResult result;
  result.gradient.resize(stages);
  ActivationPtr grad;
  for (uint32_t s = stages; s-- > 0;) {
    const auto loaded = Load(spec, runtime, StageId(s), weights);
    auto out = runtime->program(StageId(s))
                   .Backward(*loaded, batch, stash[s], grad,
                             /*loss_scale_log2=*/0);
    EPS_CHECK_MSG(out.ok(), out.status());
    grad = std::move(out->grad_in);
    if (s + 1 == stages) result.loss = out->loss;
    const auto host = runtime->NewHostStage(StageId(s));
    const absl::Status copied = runtime->ToHost(StageId(s), *out->gradient, host.get());
    EPS_CHECK_MSG(copied.ok(), copied);
    for (size_t use = 0; use < weights[s].size(); ++use) {
      const uint64_t n = spec.tensors[spec.stages[s].uses[use].tensor.value()].elements();
      result.gradient[s].emplace_back(host->tensor(use), host->tensor(use) + n);
    }
  }
  return result;
}

}  // namespace eps
