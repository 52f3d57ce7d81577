#include "base/job/layout/codec_table.h"

#include <set>

namespace eps {
namespace {

bool Uses(const StageSpec& stage, TensorId tensor) {
  for (const TensorUse& use : stage.uses) {
    if (use.tensor == tensor) return true;
  }
  return false;
}

}  // namespace

TensorKind KindOf(const JobSpec& spec, TensorId tensor) {
  if (spec.tensors[tensor.value()].rank == 1) return TensorKind::kNorm;
  if (Uses(spec.stages.front(), tensor)) return TensorKind::kEmbedding;
  if (Uses(spec.stages.back(), tensor)) return TensorKind::kHead;
  return TensorKind::kBlock;
}

const std::string& WeightCodecName(const JobSpec& spec, TensorId tensor) {
  switch (KindOf(spec, tensor)) {
    case TensorKind::kNorm:
      return spec.codecs.norm.weights;
    case TensorKind::kEmbedding:
      return spec.codecs.embedding.weights;
    case TensorKind::kHead:
      return spec.codecs.head.weights;
    case TensorKind::kBlock:
      break;
  }
  return spec.codecs.weights;
}

std::string GradientCodecName(const JobSpec& spec, TensorId tensor, Step step) {
  const std::string* name = &spec.codecs.gradients;
  switch (KindOf(spec, tensor)) {
    case TensorKind::kNorm:
      name = &spec.codecs.norm.gradients;
      break;
    case TensorKind::kEmbedding:
      name = &spec.codecs.embedding.gradients;
      break;
    case TensorKind::kHead:
      name = &spec.codecs.head.gradients;
      break;
    case TensorKind::kBlock:
      break;
  }
  if (step.value() > spec.codecs.warmup_steps || *name == "fp32") return *name;
  return kWarmupGradients;
}

std::vector<std::string> CodecNamesOf(const JobSpec& spec) {
  std::set<std::string> names = {spec.codecs.residual, spec.codecs.stash};
  const Step first(1);
  const Step last(spec.codecs.warmup_steps + 1);
  for (uint32_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorId tensor(i);
    names.insert(WeightCodecName(spec, tensor));
    for (const Step step : {first, last}) names.insert(GradientCodecName(spec, tensor, step));
  }
  return {names.begin(), names.end()};
}

WeightAxes WeightAxesOf(const JobSpec& spec, const TensorUse& use, bool backward) {
  WeightAxes axes;
  if (spec.tensors[use.tensor.value()].rank == 1) return axes;
  axes.first = use.forward_axis;
  if (!backward || spec.codecs.backward_weights != BackwardWeights::kBothAxes) return axes;
  axes.second = use.backward_axis;
  axes.has_second = use.backward_axis != use.forward_axis;
  return axes;
}

}  // namespace eps
