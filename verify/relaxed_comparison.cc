#include "verify/relaxed_comparison.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/ids.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr RelaxedBounds kFp32Bounds = {1e-5, 1e-4};
constexpr RelaxedBounds kOtherBounds = {2e-3, 2e-2};
constexpr double kLeastOfMean = 0.01;  // of the root mean square over all tensors
// Rounding of a state field to FP32, relative to its value.
constexpr double kRounding = 0x1p-22;

double Relative(double expected, double found) {
  if (expected == found) return 0;
  return std::abs(found - expected) / std::abs(expected);
}

std::vector<std::string> GradientCodecs(const JobSpec& spec) {
  const CodecSpec& codecs = spec.codecs;
  return {codecs.gradients, codecs.embedding.gradients, codecs.head.gradients,
          codecs.norm.gradients};
}

// The norms of one tensor's field and of its change in a step.
struct Norms {
  double error = 0;
  double change = 0;
  double value = 0;
};

Norms NormsOf(const std::vector<float>& before, const std::vector<float>& expected,
              const std::vector<float>& found) {
  Norms norms;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = expected[i];
    const double error = found[i] - value, change = value - before[i];
    norms.error += error * error;
    norms.change += change * change;
    norms.value += value * value;
  }
  norms.error = std::sqrt(norms.error);
  norms.change = std::sqrt(norms.change);
  norms.value = std::sqrt(norms.value);
  return norms;
}

}  // namespace

RelaxedBounds RelaxedBoundsOf(const JobSpec& spec) {
  bool is_fp32 = spec.training.precision == Precision::kFp32 && spec.codecs.stash == "fp32" &&
                 spec.codecs.warmup_steps == 0;
  for (const std::string& codec : GradientCodecs(spec)) is_fp32 &= codec == "fp32";
  return is_fp32 ? kFp32Bounds : kOtherBounds;
}

absl::Status CheckRelaxed(const JobSpec& spec) {
  for (const std::string& codec : GradientCodecs(spec)) {
    if (!absl::StartsWith(codec, "topk")) continue;
    return absl::UnimplementedError(absl::StrCat(
        "--relaxed: gradients travel as ", codec,
        ", of which elements wait for later steps; verify where the workers of the run computed"));
  }
  return absl::OkStatus();
}

RelaxedComparison::RelaxedComparison(const RunFolder& run, uint64_t steps, std::ostream* out)
    : run_(run), spec_(run.spec()), bounds_(RelaxedBoundsOf(spec_)), steps_(steps), out_(*out) {}

absl::StatusOr<bool> RelaxedComparison::CompareStep(const std::vector<TensorValues>& before,
                                                    const StepFigures& expected,
                                                    ReferenceTraining* reference) {
  const uint64_t step = reference->step();
  EPS_ASSIGN_OR_RETURN(const RecordedState files, run_.OpenState(step));
  EPS_ASSIGN_OR_RETURN(const StepFigures found, run_.Figures(step));
  std::vector<TensorValues> state = reference->state();  // for the sizes
  for (size_t field = 0; field < state.size(); ++field) {
    for (uint32_t t = 0; t < state[field].size(); ++t) {
      if (state[field][t].empty()) continue;
      EPS_RETURN_IF_ERROR(files[field].Read(TensorId(t), state[field][t].data()));
    }
  }
  differences_.clear();
  worst_gradient_ = 0;
  worst_tensor_.clear();
  CompareFigures(expected, found);
  const size_t judged = state.size() > 1 ? 1 : 0;
  CompareGradients(before[judged], reference->state()[judged], state[judged]);
  out_ << absl::StreamFormat("step: %d/%d loss: %.2g grad_norm: %.2g gradients: %.2g", step, steps_,
                             Relative(expected.loss, found.loss),
                             Relative(expected.grad_norm, found.grad_norm), worst_gradient_);
  out_ << (worst_tensor_.empty() ? "" : " (" + worst_tensor_ + ")") << std::endl;
  for (const std::string& text : differences_) {
    out_ << "different: step " << step << ", " << text << std::endl;
  }
  reference->Adopt(std::move(state), found);
  return differences_.empty();
}

void RelaxedComparison::Judge(const std::string& what, double error, double bound) {
  if (error <= bound) return;  // false for a NaN
  differences_.push_back(
      absl::StrFormat("%s: relative error %.3g, expected at most %.3g", what, error, bound));
}

void RelaxedComparison::CompareFigures(const StepFigures& expected, const StepFigures& found) {
  if (expected.tokens != found.tokens || expected.skipped != found.skipped ||
      expected.lr != found.lr) {
    differences_.push_back(absl::StrFormat(
        "tokens %d, lr %.17g, skipped %d: expected %d, %.17g, %d", found.tokens, found.lr,
        found.skipped ? 1 : 0, expected.tokens, expected.lr, expected.skipped ? 1 : 0));
    return;
  }
  Judge("loss", Relative(expected.loss, found.loss), bounds_.loss);
  if (found.skipped) return;
  Judge("grad_norm", Relative(expected.grad_norm, found.grad_norm), bounds_.gradient);
}

void RelaxedComparison::CompareGradients(const TensorValues& before, const TensorValues& expected,
                                         const TensorValues& found) {
  std::vector<Norms> norms;
  double squares = 0, elements = 0;
  for (size_t t = 0; t < expected.size(); ++t) {
    norms.push_back(NormsOf(before[t], expected[t], found[t]));
    squares += norms[t].change * norms[t].change;
    elements += static_cast<double>(expected[t].size());
  }
  const double least = kLeastOfMean * std::sqrt(squares / std::max(1.0, elements));
  for (size_t t = 0; t < expected.size(); ++t) {
    if (expected[t].empty() || norms[t].error == 0) continue;
    const double scale =
        std::max(norms[t].change, least * std::sqrt(static_cast<double>(expected[t].size())));
    const double rounding = kRounding * norms[t].value;
    const double error = std::max(0.0, norms[t].error - rounding) / scale;
    Judge(absl::StrCat("gradient of ", spec_.tensors[t].name), error, bounds_.gradient);
    if (error <= worst_gradient_) continue;
    worst_gradient_ = error;
    worst_tensor_ = spec_.tensors[t].name;
  }
}

}  // namespace eps
