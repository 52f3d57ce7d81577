#include "worker/relay/testing/plain_loop.h"

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/job/initial_values.h"
#include "base/numerics/flush_denormals.h"
#include "base/numerics/tree_add.h"

namespace eps {
namespace {

// Returns the value of `result`; dies if it is an error.
template <class Value>
Value Must(absl::StatusOr<Value> result) {
  EPS_CHECK_MSG(result.ok(), result.status().ToString());
  return *std::move(result);
}

std::vector<std::shared_ptr<const StageWeights>> LoadAll(const JobSpec& spec,
                                                         const Tensors& weights,
                                                         const Tensors& second,
                                                         StageRuntime* runtime) {
  std::vector<std::shared_ptr<const StageWeights>> loaded;
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    std::shared_ptr<HostStage> host = runtime->NewBackwardStage(StageId(s)).value();
    for (size_t u = 0; u < spec.stages[s].uses.size(); ++u) {
      const uint32_t t = spec.stages[s].uses[u].tensor.value();
      std::copy(weights[t].begin(), weights[t].end(), host->tensor(u));
      if (host->second_copy(u) == nullptr) continue;
      std::copy(second[t].begin(), second[t].end(), host->second_copy(u));
    }
    loaded.push_back(runtime->Load(StageId(s), std::move(host)));
  }
  return loaded;
}

Tensors ToTensors(const JobSpec& spec, StageId stage, const StageGradient& gradient,
                  StageRuntime* runtime) {
  const auto host = runtime->NewHostStage(stage).value();
  const absl::Status status = runtime->ToHost(stage, gradient, host.get());
  EPS_CHECK_MSG(status.ok(), status.ToString());
  Tensors tensors;
  for (size_t u = 0; u < spec.stages[stage.value()].uses.size(); ++u) {
    const TensorId tensor = spec.stages[stage.value()].uses[u].tensor;
    const uint64_t size = spec.tensors[tensor.value()].elements();
    tensors.emplace_back(host->tensor(u), host->tensor(u) + size);
  }
  return tensors;
}

std::vector<float> AddPlainly(std::vector<float> a, const std::vector<float>& b) {
  TreeAdd(a.data(), b.data(), a.size(), a.data());
  return a;
}

}  // namespace

PlainPart RunPartPlainly(const JobSpec& spec, const Tensors& weights, Step step, PartId part,
                         int loss_scale_log2, StageRuntime* runtime, BatchSource* batches) {
  return RunPartPlainly(spec, weights, weights, step, part, loss_scale_log2, runtime, batches);
}

PlainPart RunPartPlainly(const JobSpec& spec, const Tensors& weights, const Tensors& second,
                         Step step, PartId part, int loss_scale_log2, StageRuntime* runtime,
                         BatchSource* batches) {
  const ScopedFlushDenormals flush;
  const uint32_t n = static_cast<uint32_t>(spec.stages.size());
  const uint32_t g = spec.training.micro_batches;
  const auto loaded = LoadAll(spec, weights, second, runtime);
  std::vector<std::vector<StageGradientPtr>> leaves(n);
  std::vector<double> losses;
  PlainPart result;
  for (uint32_t j = 0; j < g; ++j) {
    const MicroBatch batch = Must(batches->Get(step, part.value() * g + j));
    std::vector<ActivationPtr> inputs(n);
    for (uint32_t s = 0; s + 1 < n; ++s) {
      inputs[s + 1] = Must(runtime->program(StageId(s)).Forward(*loaded[s], batch, inputs[s]));
    }
    ActivationPtr grad;
    for (uint32_t s = n; s-- > 0;) {
      auto backward =
          Must(runtime->program(StageId(s))
                   .Backward(*loaded[s], batch, inputs[s], grad, loss_scale_log2, nullptr));
      grad = backward.grad_in;
      leaves[s].push_back(std::move(backward.gradient));
      if (s + 1 < n) continue;
      losses.push_back(backward.loss.sum);
      result.tokens += backward.loss.tokens;
    }
  }
  for (uint32_t s = 0; s < n; ++s) {
    const auto add = [&](StageGradientPtr a, StageGradientPtr b) {
      return runtime->Add(std::move(a), std::move(b));
    };
    StageGradientPtr sum;
    if (spec.training.gradient_sum == GradientSum::kTree) {
      sum = FoldPlainly(&leaves[s], 0, g, add);
    } else {
      sum = std::move(leaves[s][0]);
      for (uint32_t j = 1; j < g; ++j) sum = add(std::move(sum), std::move(leaves[s][j]));
    }
    result.gradients.push_back(ToTensors(spec, StageId(s), *sum, runtime));
  }
  result.loss_sum = FoldPlainly(&losses, 0, g, [](double a, double b) { return a + b; });
  return result;
}

Tensors ReducePlainly(const JobSpec& spec, std::vector<PlainPart> parts) {
  const ScopedFlushDenormals flush;
  Tensors sums(spec.tensors.size());
  for (size_t s = 0; s < spec.stages.size(); ++s) {
    for (size_t u = 0; u < spec.stages[s].uses.size(); ++u) {
      Tensors leaves;
      for (PlainPart& part : parts) leaves.push_back(std::move(part.gradients[s][u]));
      std::vector<float> sum = FoldPlainly(&leaves, 0, leaves.size(), AddPlainly);
      std::vector<float>& total = sums[spec.stages[s].uses[u].tensor.value()];
      total = total.empty() ? std::move(sum) : AddPlainly(std::move(total), sum);
    }
  }
  return sums;
}

Tensors InitialWeights(const JobSpec& spec) {
  Tensors weights;
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    weights.emplace_back(spec.tensors[t].elements());
    FillInitialValues(spec, TensorId(t), 0, absl::MakeSpan(weights.back()));
  }
  return weights;
}

}  // namespace eps
