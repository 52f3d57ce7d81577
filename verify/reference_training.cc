#include "verify/reference_training.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/job/initial_values.h"
#include "base/job/layout/codec_table.h"
#include "base/job/optimizers.h"
#include "base/job/schedule.h"
#include "base/numerics/flush_denormals.h"
#include "base/status_macros.h"
#include "optimizer/trust_ratio.h"
#include "verify/tree_sum.h"

namespace eps {
namespace {

// The guard of torch.nn.utils.clip_grad_norm_ against a norm of 0.
constexpr double kClipEpsilon = 1e-6;
constexpr uint32_t kStaleStage = 1;

// Returns whether a server accepts the value: sums and squares of magnitudes below 2^50 stay
// finite.
bool IsAdmissible(float x) { return std::fabs(x) < 0x1p50f; }

// Marks a gradient as not finite: NaN survives every sum.
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

bool HasNan(const TensorValues& gradient) {
  for (const auto& values : gradient) {
    for (const float x : values) {
      if (std::isnan(x)) return true;
    }
  }
  return false;
}

bool IsFinite(const UseGradients& gradient) {
  for (const auto& stage : gradient) {
    for (const auto& values : stage) {
      for (const float x : values) {
        if (!std::isfinite(x)) return false;
      }
    }
  }
  return true;
}

MicroBatchResult Sum(MicroBatchResult left, MicroBatchResult right) {
  for (size_t stage = 0; stage < left.gradient.size(); ++stage) {
    for (size_t use = 0; use < left.gradient[stage].size(); ++use) {
      AddInto(right.gradient[stage][use], &left.gradient[stage][use]);
    }
  }
  left.loss.sum += right.loss.sum;
  left.loss.tokens += right.loss.tokens;
  return left;
}

// Adds `count` results along the canonical tree, or from left to right if `sequential`.
template <class Leaf>
absl::StatusOr<MicroBatchResult> SumOf(uint32_t count, bool sequential, const Leaf& leaf) {
  if (!sequential) return TreeSum<MicroBatchResult>(0, count, leaf, Sum);
  EPS_ASSIGN_OR_RETURN(MicroBatchResult sum, leaf(0));
  for (uint32_t i = 1; i < count; ++i) {
    EPS_ASSIGN_OR_RETURN(MicroBatchResult next, leaf(i));
    sum = Sum(std::move(sum), std::move(next));
  }
  return sum;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReferenceTraining>> ReferenceTraining::New(const JobSpec& spec,
                                                                          ReferenceModel* model,
                                                                          BatchSource* batches,
                                                                          Plant plant) {
  // A plug-in brings a reference of its own, which nobody else has compared with its kernel.
  const bool is_plugin = !spec.optimizer.plugin.name.empty();
  EPS_ASSIGN_OR_RETURN(
      std::unique_ptr<UpdateRule> rule,
      NewUpdateRule(spec.optimizer, is_plugin ? Kernel::kReference : Kernel::kBest));
  std::unique_ptr<ReferenceTraining> training(
      new ReferenceTraining(spec, model, batches, plant, std::move(rule)));
  EPS_ASSIGN_OR_RETURN(training->wire_, WireReference::New(spec, training->chunks_));
  return training;
}

ReferenceTraining::ReferenceTraining(const JobSpec& spec, ReferenceModel* model,
                                     BatchSource* batches, Plant plant,
                                     std::unique_ptr<UpdateRule> rule)
    : spec_(spec),
      model_(model),
      batches_(batches),
      plant_(plant),
      rule_(std::move(rule)),
      chunks_(ChunkMap::Build(spec)) {
  if (spec.training.precision == Precision::kCmp) {
    loss_scale_ = FirstLossScale(spec.training.loss_scale);
  }
  state_.resize(1 + StateFields(spec.optimizer).size());
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    for (TensorValues& array : state_) {
      const bool is_empty = spec.IsFrozen(TensorId(t)) && &array != &state_[0];
      array.emplace_back(is_empty ? 0 : spec.tensors[t].elements(), 0.0f);
    }
    FillInitialValues(spec, TensorId(t), 0, absl::MakeSpan(state_[0].back()));
  }
}

absl::StatusOr<StepFigures> ReferenceTraining::RunStep() {
  const ScopedFlushDenormals flush;
  ++step_;
  ShowWeights();
  EPS_ASSIGN_OR_RETURN(MicroBatchResult sum,
                       plant_ == Plant::kSwappedTree ? RunSwappedTree() : RunParts());
  const TensorValues gradient = ReduceUses(std::move(sum.gradient));
  StepFigures figures;
  figures.skipped = HasNan(gradient);
  if (figures.skipped && spec_.training.nonfinite == Nonfinite::kHalt) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step_,
                     ": a gradient of the reference is not finite, and the run has "
                     "training.nonfinite=halt"));
  }
  figures.tokens = sum.loss.tokens;
  const auto tokens = static_cast<double>(std::max<uint64_t>(figures.tokens, 1));
  const double scale =
      std::ldexp(plant_ == Plant::kWrongLossScale ? 2.0 : 1.0, LossScaleLog2(spec_, loss_scale_)) /
      tokens;
  if (loss_scale_.has_value()) {
    loss_scale_ = NextLossScale(spec_.training.loss_scale, *loss_scale_, figures.skipped);
  }
  figures.loss = sum.loss.sum / tokens;
  if (figures.skipped) {
    wire_->DropResiduals();
    figures.grad_norm = std::nan("");
    figures.lr = Rate(update_ + 1);  // the rate of the update that is skipped
    return figures;
  }
  ++update_;
  wire_->KeepResiduals();
  figures.grad_norm = Norm(gradient, static_cast<float>(scale));
  const StepScalars scalars = Scalars(scale, figures.grad_norm);
  figures.lr = scalars.lr;
  Update(gradient, scalars);
  last_norm_ = figures.grad_norm;
  return figures;
}

void ReferenceTraining::ShowWeights() {
  shown_before_ = std::move(shown_);
  shown_.clear();
  for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
    shown_[axis] = wire_->Weights(weights(), axis);
  }
  inputs_.clear();
  for_input_gradient_.clear();
  for (uint32_t stage = 0; stage < spec_.stages.size(); ++stage) {
    const bool stale = plant_ == Plant::kStaleWeights && stage == kStaleStage && step_ > 1;
    std::map<Axis, TensorValues>& shown = stale ? shown_before_ : shown_;
    inputs_.emplace_back();
    for_input_gradient_.emplace_back();
    for (const TensorUse& use : spec_.stages[stage].uses) {
      const WeightAxes axes = WeightAxesOf(spec_, use, /*backward=*/true);
      const Axis other = axes.has_second ? axes.second : axes.first;
      inputs_.back().push_back(shown[axes.first][use.tensor.value()].data());
      for_input_gradient_.back().push_back(shown[other][use.tensor.value()].data());
    }
  }
}

absl::StatusOr<MicroBatchResult> ReferenceTraining::RunMicroBatch(uint32_t part, uint32_t j) const {
  const uint32_t index = part * spec_.training.micro_batches + j;
  const uint32_t count = spec_.training.parts * spec_.training.micro_batches;
  uint64_t data_step = step_;
  uint32_t data_index = index;
  if (plant_ == Plant::kWrongSample && index == 0) ++data_step;
  if (plant_ == Plant::kSwappedMicroBatches && count > 2 && (index == 1 || index == 2)) {
    data_index = 3 - index;
  }
  EPS_ASSIGN_OR_RETURN(MicroBatch batch, batches_->Get(Step(data_step), data_index));
  batch.step = Step(step_);
  batch.index = index;
  return model_->Run(inputs_, for_input_gradient_, batch, LossScaleLog2(spec_, loss_scale_));
}

absl::StatusOr<MicroBatchResult> ReferenceTraining::RunPart(uint32_t part) const {
  const bool fused = spec_.training.gradient_sum == GradientSum::kFused;
  const uint32_t count = spec_.training.micro_batches;
  std::vector<double> losses(count, 0.0);
  const auto leaf = [&](uint32_t j) {
    absl::StatusOr<MicroBatchResult> result = RunMicroBatch(part, j);
    if (result.ok()) losses[j] = result->loss.sum;
    return result;
  };
  EPS_ASSIGN_OR_RETURN(MicroBatchResult sum,
                       SumOf(count, (plant_ == Plant::kSequentialTree) != fused, leaf));
  if (fused) {  // losses are added along the tree nevertheless
    EPS_ASSIGN_OR_RETURN(
        sum.loss.sum, TreeSum<double>(
                          0, count, [&](uint32_t j) { return absl::StatusOr<double>(losses[j]); },
                          [](double a, double b) { return a + b; }));
  }
  // A codec may turn an infinity into a finite number, so the worker looks before.
  const bool overflows = spec_.training.nonfinite == Nonfinite::kSkip && !IsFinite(sum.gradient);
  wire_->PassGradient(Step(step_), part, LossScaleLog2(spec_, loss_scale_), &sum.gradient);
  for (auto& stage : sum.gradient) {
    for (auto& values : stage) {
      for (float& x : values) x = IsAdmissible(x) && !overflows ? x : kPoison;
    }
  }
  return sum;
}

absl::StatusOr<MicroBatchResult> ReferenceTraining::RunParts() const {
  EPS_ASSIGN_OR_RETURN(MicroBatchResult sum,
                       SumOf(spec_.training.parts, plant_ == Plant::kSequentialTree,
                             [&](uint32_t part) { return RunPart(part); }));
  if (plant_ == Plant::kDoubledPart) {
    const LossSum loss = sum.loss;
    EPS_ASSIGN_OR_RETURN(MicroBatchResult again, RunPart(0));
    sum = Sum(std::move(sum), std::move(again));
    sum.loss = loss;
  }
  return sum;
}

// The planted mistake: sums over the parts inside, over the micro-batches outside.
absl::StatusOr<MicroBatchResult> ReferenceTraining::RunSwappedTree() const {
  return SumOf(spec_.training.micro_batches, /*sequential=*/false, [&](uint32_t j) {
    return SumOf(spec_.training.parts, /*sequential=*/false,
                 [&](uint32_t part) { return RunMicroBatch(part, j); });
  });
}

// Returns one gradient per tensor: its uses are added in stage order. A frozen tensor has none.
TensorValues ReferenceTraining::ReduceUses(UseGradients gradient) const {
  TensorValues reduced(spec_.tensors.size());
  for (size_t stage = 0; stage < spec_.stages.size(); ++stage) {
    for (size_t use = 0; use < spec_.stages[stage].uses.size(); ++use) {
      const TensorId tensor = spec_.stages[stage].uses[use].tensor;
      if (spec_.IsFrozen(tensor)) continue;
      std::vector<float>& sum = reduced[tensor.value()];
      if (sum.empty()) {
        sum = std::move(gradient[stage][use]);
      } else if (plant_ != Plant::kDroppedUse) {
        AddInto(gradient[stage][use], &sum);
      }
    }
  }
  return reduced;
}

// Returns the norm of the scaled gradient: squares are summed chunk by chunk and tile by tile, as
// SquareSum documents, then over the chunks in their order.
double ReferenceTraining::Norm(const TensorValues& gradient, float scale) const {
  double sum = 0;
  for (const Chunk& chunk : chunks_.chunks()) {
    if (chunk.frozen) continue;
    SquareSum squares;
    ForEachTile(chunk, [&](const Tile& tile) {
      const Segment& s = chunk.segments[tile.segment];
      const float* const values = gradient[s.tensor.value()].data() + s.tensor_offset;
      squares.Add(values + uint64_t{tile.row} * s.cols + tile.col, tile.rows, tile.cols, s.cols,
                  scale);
    });
    sum += squares.Fold();
  }
  return std::sqrt(sum);
}

double ReferenceTraining::Rate(uint64_t update) const {
  return LearningRate(spec_.schedule, spec_.optimizer.lr, update, spec_.training.steps);
}

double ReferenceTraining::ClipFactor(double norm) const {
  double clipped = norm;  // Clip::kExact clips with the current norm
  if (spec_.training.clip == Clip::kNone) return 1.0;
  if (spec_.training.clip == Clip::kLagged && plant_ != Plant::kWrongClip) clipped = last_norm_;
  if (clipped == 0) return 1.0;
  return std::min(1.0, spec_.training.max_grad_norm / (clipped + kClipEpsilon));
}

StepScalars ReferenceTraining::Scalars(double scale, double norm) const {
  const uint64_t t = update_;
  const uint64_t corrected = plant_ == Plant::kWrongBiasCorrection ? t + 1 : t;
  StepScalars scalars;
  scalars.update = t;
  scalars.lr = Rate(t);
  scalars.bias_correction1 = 1.0 - IntegerPower(spec_.optimizer.beta1, corrected);
  scalars.bias_correction2 = 1.0 - IntegerPower(spec_.optimizer.beta2, corrected);
  scalars.grad_scale = static_cast<float>(scale * ClipFactor(norm));
  return scalars;
}

GroupScalars ReferenceTraining::GroupOf(size_t tensor) const {
  const ParameterGroup& own = spec_.groups[spec_.tensors[tensor].group.value()];
  GroupScalars group;
  group.weight_decay = own.weight_decay;
  group.lr_multiplier = own.lr_multiplier;
  if (plant_ != Plant::kDecayOnBias) return group;
  for (const ParameterGroup& each : spec_.groups) {
    group.weight_decay = std::max(group.weight_decay, each.weight_decay);
  }
  return group;
}

TileState ReferenceTraining::StateOf(size_t tensor) {
  TileState state;
  state.weight = state_[0][tensor].data();
  for (size_t i = 1; i < state_.size(); ++i) state.field[i - 1] = state_[i][tensor].data();
  state.ld = spec_.tensors[tensor].cols;
  return state;
}

// Sums squares as Norm does, but each tensor for itself: by segments, then over its chunks in their
// order.
std::vector<double> ReferenceTraining::TrustRatios(const TensorValues& gradient,
                                                   const StepScalars& scalars) {
  std::vector<double> ratios(spec_.tensors.size(), 1.0);
  if (!RowOf(spec_.optimizer.name).adapts) return ratios;
  TensorValues steps(spec_.tensors.size());
  for (size_t t = 0; t < steps.size(); ++t) {
    steps[t].resize(gradient[t].size());
    rule_->PrepareSteps(scalars, GroupOf(t))
        ->Run(steps[t].size(), gradient[t].data(), StateOf(t), steps[t].data());
  }
  std::vector<double> weight_sums(steps.size(), 0.0), step_sums(steps.size(), 0.0);
  for (const Chunk& chunk : chunks_.chunks()) {
    if (chunk.frozen) continue;
    std::vector<SquareSum> of_weights(chunk.segments.size()), of_steps(chunk.segments.size());
    ForEachTile(chunk, [&](const Tile& tile) {
      const Segment& s = chunk.segments[tile.segment];
      const uint64_t first = s.tensor_offset + uint64_t{tile.row} * s.cols + tile.col;
      const size_t t = s.tensor.value();
      of_weights[tile.segment].Add(weights()[t].data() + first, tile.rows, tile.cols, s.cols, 1);
      of_steps[tile.segment].Add(steps[t].data() + first, tile.rows, tile.cols, s.cols, 1);
    });
    for (size_t i = 0; i < chunk.segments.size(); ++i) {
      weight_sums[chunk.segments[i].tensor.value()] += of_weights[i].Fold();
      step_sums[chunk.segments[i].tensor.value()] += of_steps[i].Fold();
    }
  }
  for (size_t t = 0; t < steps.size(); ++t) {
    const ParameterGroup& group = spec_.groups[spec_.tensors[t].group.value()];
    if (HasTrustRatio(spec_.optimizer, group)) {
      ratios[t] = TrustRatio({weight_sums[t], step_sums[t]});
    }
  }
  return ratios;
}

void ReferenceTraining::Update(const TensorValues& gradient, const StepScalars& scalars) {
  const std::vector<double> ratios = TrustRatios(gradient, scalars);
  for (size_t t = 0; t < spec_.tensors.size(); ++t) {
    const TensorSpec& tensor = spec_.tensors[t];
    if (spec_.IsFrozen(TensorId(static_cast<uint32_t>(t)))) continue;
    GroupScalars group = GroupOf(t);
    group.trust_ratio = ratios[t];
    rule_->Run(tensor.rows, tensor.cols, gradient[t].data(), tensor.cols, scalars, group,
               StateOf(t));
  }
}

}  // namespace eps
