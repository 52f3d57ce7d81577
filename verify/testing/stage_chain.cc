#include "verify/testing/stage_chain.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"

namespace eps {
namespace {

void Copy(const JobSpec& spec, TensorId tensor, const float* from, float* to) {
  std::memcpy(to, from, spec.tensors[tensor.value()].elements() * sizeof(float));
}

std::shared_ptr<const StageWeights> Load(const JobSpec& spec, StageRuntime* runtime, StageId stage,
                                         const StageInputs& weights,
                                         const StageInputs& for_input_gradient) {
  const size_t s = stage.value();
  std::shared_ptr<HostStage> host = runtime->NewBackwardStage(stage).value();
  for (size_t use = 0; use < weights[s].size(); ++use) {
    const TensorId tensor = spec.stages[s].uses[use].tensor;
    Copy(spec, tensor, weights[s][use], host->tensor(use));
    float* const second = host->second_copy(use);
    if (second != nullptr) Copy(spec, tensor, for_input_gradient[s][use], second);
  }
  return runtime->Load(stage, std::move(host));
}

}  // namespace

MicroBatchResult RunStagePrograms(const JobSpec& spec, StageRuntime* runtime,
                                  const StageInputs& weights, const StageInputs& for_input_gradient,
                                  const MicroBatch& batch) {
  const auto stages = static_cast<uint32_t>(spec.stages.size());
  std::vector<ActivationPtr> stash(stages);  // the input of each stage
  for (uint32_t s = 0; s + 1 < stages; ++s) {
    const auto loaded = Load(spec, runtime, StageId(s), weights, for_input_gradient);
    auto out = runtime->program(StageId(s)).Forward(*loaded, batch, stash[s]);
    EPS_CHECK_MSG(out.ok(), out.status());
    auto stashed = runtime->Stash(*std::move(out));
    EPS_CHECK_MSG(stashed.ok(), stashed.status());
    auto again = runtime->Unstash(*std::move(stashed));
    EPS_CHECK_MSG(again.ok(), again.status());
    stash[s + 1] = *std::move(again);
  }
  MicroBatchResult result;
  result.gradient.resize(stages);
  ActivationPtr grad;
  for (uint32_t s = stages; s-- > 0;) {
    const auto loaded = Load(spec, runtime, StageId(s), weights, for_input_gradient);
    auto out = runtime->program(StageId(s))
                   .Backward(*loaded, batch, stash[s], grad,
                             /*loss_scale_log2=*/0);
    EPS_CHECK_MSG(out.ok(), out.status());
    grad = std::move(out->grad_in);
    if (s + 1 == stages) result.loss = out->loss;
    const auto host = runtime->NewHostStage(StageId(s)).value();
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
