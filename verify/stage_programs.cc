#include "verify/stage_programs.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status_macros.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

uint64_t ElementsOf(const JobSpec& spec, size_t stage, size_t use) {
  return spec.tensors[spec.stages[stage].uses[use].tensor.value()].elements();
}

absl::StatusOr<std::shared_ptr<const StageWeights>> Load(const JobSpec& spec, StageRuntime* runtime,
                                                         size_t stage, const StageInputs& weights,
                                                         const StageInputs& for_input_gradient) {
  const StageId id(static_cast<uint32_t>(stage));
  EPS_ASSIGN_OR_RETURN(std::shared_ptr<HostStage> host, runtime->NewBackwardStage(id));
  for (size_t use = 0; use < weights[stage].size(); ++use) {
    const size_t bytes = ElementsOf(spec, stage, use) * sizeof(float);
    std::memcpy(host->tensor(use), weights[stage][use], bytes);
    float* const second = host->second_copy(use);
    if (second != nullptr) std::memcpy(second, for_input_gradient[stage][use], bytes);
  }
  return runtime->Load(id, std::move(host));
}

class StagePrograms final : public ReferenceModel {
 public:
  StagePrograms(const JobSpec& spec, std::unique_ptr<StageRuntime> runtime)
      : spec_(spec), runtime_(std::move(runtime)) {}
  absl::StatusOr<MicroBatchResult> Run(const StageInputs& weights,
                                       const StageInputs& for_input_gradient,
                                       const MicroBatch& batch, int loss_scale_log2) override {
    return RunStagePrograms(spec_, runtime_.get(), weights, for_input_gradient, batch,
                            loss_scale_log2);
  }

 private:
  const JobSpec& spec_;
  const std::unique_ptr<StageRuntime> runtime_;
};

}  // namespace

absl::StatusOr<MicroBatchResult> RunStagePrograms(const JobSpec& spec, StageRuntime* runtime,
                                                  const StageInputs& weights,
                                                  const StageInputs& for_input_gradient,
                                                  const MicroBatch& batch, int loss_scale_log2) {
  const size_t stages = spec.stages.size();
  const size_t lowest = spec.LowestTrainableStage().value();
  EPS_RETURN_IF_ERROR(runtime->BeginStash(stages - 1, /*gradients=*/0));
  std::vector<ActivationPtr> inputs(stages);
  for (size_t s = 0; s + 1 < stages; ++s) {
    const StageId id(static_cast<uint32_t>(s));
    EPS_ASSIGN_OR_RETURN(const auto loaded, Load(spec, runtime, s, weights, for_input_gradient));
    EPS_ASSIGN_OR_RETURN(ActivationPtr out,
                         runtime->program(id).Forward(*loaded, batch, inputs[s]));
    EPS_ASSIGN_OR_RETURN(const ActivationPtr stashed, runtime->Stash(std::move(out)));
    EPS_ASSIGN_OR_RETURN(inputs[s + 1], runtime->Unstash(stashed));
  }
  MicroBatchResult result;
  result.gradient.resize(stages);
  ActivationPtr grad;
  for (size_t s = stages; s-- > 0;) {
    for (size_t use = 0; use < weights[s].size(); ++use) {
      result.gradient[s].emplace_back(ElementsOf(spec, s, use), 0.0f);
    }
    if (s < lowest) continue;
    const StageId id(static_cast<uint32_t>(s));
    EPS_ASSIGN_OR_RETURN(const auto loaded, Load(spec, runtime, s, weights, for_input_gradient));
    EPS_ASSIGN_OR_RETURN(auto out, runtime->program(id).Backward(*loaded, batch, inputs[s], grad,
                                                                 loss_scale_log2, nullptr));
    inputs[s] = nullptr;
    grad = std::move(out.grad_in);
    if (s + 1 == stages) result.loss = out.loss;
    EPS_ASSIGN_OR_RETURN(const auto host, runtime->NewHostStage(id));
    EPS_RETURN_IF_ERROR(runtime->ToHost(id, *out.gradient, host.get()));
    for (size_t use = 0; use < weights[s].size(); ++use) {
      if (spec.IsFrozen(spec.stages[s].uses[use].tensor)) continue;
      std::vector<float>& gradient = result.gradient[s][use];
      std::memcpy(gradient.data(), host->tensor(use), gradient.size() * sizeof(float));
    }
  }
  return result;
}

absl::StatusOr<std::unique_ptr<ReferenceModel>> NewStagePrograms(const JobSpec& spec,
                                                                 const RuntimeOptions& options) {
  EPS_ASSIGN_OR_RETURN(auto runtime,
                       NewTorchRuntime(spec, NewModelStage, options, /*account=*/nullptr));
  return std::unique_ptr<ReferenceModel>(std::make_unique<StagePrograms>(spec, std::move(runtime)));
}

}  // namespace eps
