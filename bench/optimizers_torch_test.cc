// The update rules against LibTorch's optimizers over a hundred updates: ours must stay about as
// close as torch to torch's own results in double. Roundings grow with the updates, so a bound on
// the distance alone would say little.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/job/optimizers.h"
#include "gtest/gtest.h"
#include "optimizer/update_rule.h"
#include "torch/optim/adagrad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/sgd.h"

namespace eps {
namespace {

namespace optim = torch::optim;

constexpr int kElements = 20'000;
constexpr int kUpdates = 100;
constexpr double kLr = 0.01;
constexpr double kDecay = 0.3;
// Torch's distance to its results in double times this bounds ours: it fuses some operations that
// we round apart, and the other way round.
constexpr double kSlack = 1.25;

using NewOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(std::vector<torch::Tensor> weights)>;

template <class Optimizer, class Options>
NewOptimizer Torchs(Options options) {
  return [options](std::vector<torch::Tensor> weights) {
    return std::make_unique<Optimizer>(std::move(weights), options);
  };
}

// Reproducible numbers in [-1, 1), of which each is times a factor from 1/e^spread to e^spread.
std::vector<float> Numbers(uint64_t seed, double spread) {
  std::vector<float> numbers(kElements);
  const auto next = [&seed] {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(static_cast<int32_t>(seed >> 32)) * 0x1p-31;
  };
  for (float& number : numbers) {
    const double x = next();
    number = static_cast<float>(x * std::exp(spread * next()));
  }
  return numbers;
}

std::vector<float> FirstWeights() { return Numbers(9, 0); }
std::vector<float> GradientOf(int update) { return Numbers(77 + update, 4); }

torch::Tensor ToTensor(std::vector<float> numbers, torch::Dtype type) {
  return torch::from_blob(numbers.data(), {kElements}, torch::kFloat).clone().to(type);
}

std::vector<double> TorchsWeights(const NewOptimizer& make, torch::Dtype type) {
  torch::Tensor weights = ToTensor(FirstWeights(), type).set_requires_grad(true);
  const std::unique_ptr<optim::Optimizer> optimizer = make({weights});
  for (int t = 1; t <= kUpdates; ++t) {
    weights.mutable_grad() = ToTensor(GradientOf(t), type);
    optimizer->step();
  }
  const torch::Tensor result = weights.detach().to(torch::kDouble).contiguous();
  return std::vector<double>(result.data_ptr<double>(), result.data_ptr<double>() + kElements);
}

std::vector<double> OurWeights(const OptimizerSpec& spec) {
  std::vector<float> weights = FirstWeights();
  std::vector<float> first(kElements, 0.0f), second(kElements, 0.0f);
  TileState state;
  state.weight = weights.data();
  state.field = {first.data(), second.data()};
  state.ld = kElements;
  GroupScalars group;
  group.weight_decay = kDecay;
  const auto rule = NewUpdateRule(spec);
  EXPECT_TRUE(rule.ok()) << rule.status();
  for (int t = 1; t <= kUpdates; ++t) {
    StepScalars step;
    step.lr = kLr;
    step.update = t;
    step.bias_correction1 = 1 - std::pow(spec.beta1, t);
    step.bias_correction2 = 1 - std::pow(spec.beta2, t);
    (*rule)->Run(1, kElements, GradientOf(t).data(), kElements, step, group, state);
  }
  return std::vector<double>(weights.begin(), weights.end());
}

// The largest and the root of the mean square of distances.
struct Distance {
  double largest = 0;
  double rms = 0;
};

Distance DistanceOf(const std::vector<double>& found, const std::vector<double>& exact) {
  Distance distance;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double d = std::fabs(found[i] - exact[i]);
    EXPECT_TRUE(std::isfinite(d)) << "element " << i;
    distance.largest = std::max(distance.largest, d);
    distance.rms += d * d;
  }
  distance.rms = std::sqrt(distance.rms / static_cast<double>(exact.size()));
  return distance;
}

void ExpectAsCloseAsTorch(const OptimizerSpec& spec, const NewOptimizer& make) {
  SCOPED_TRACE(testing::Message() << NameOf(spec.name) << ", momentum " << spec.momentum
                                  << ", dampening " << spec.dampening);
  const std::vector<double> exact = TorchsWeights(make, torch::kDouble);
  const Distance theirs = DistanceOf(TorchsWeights(make, torch::kFloat), exact);
  const Distance ours = DistanceOf(OurWeights(spec), exact);
  EXPECT_LE(ours.largest, kSlack * theirs.largest);
  EXPECT_LE(ours.rms, kSlack * theirs.rms);
}

OptimizerSpec DefaultSpec(OptimizerName name) {
  OptimizerSpec spec;
  static_cast<OptimizerSettings&>(spec) = DefaultsOf(name);
  return spec;
}

TEST(OptimizersAndTorch, SgdIsAsCloseToDouble) {
  OptimizerSpec spec = DefaultSpec(OptimizerName::kSgd);
  optim::SGDOptions options = optim::SGDOptions(kLr).weight_decay(kDecay);
  ExpectAsCloseAsTorch(spec, Torchs<optim::SGD>(options));
  spec.momentum = 0.9;
  options.momentum(0.9);
  ExpectAsCloseAsTorch(spec, Torchs<optim::SGD>(options));
  spec.nesterov = true;
  options.nesterov(true);
  ExpectAsCloseAsTorch(spec, Torchs<optim::SGD>(options));
  spec.nesterov = false;
  spec.dampening = 0.5;
  options.nesterov(false).dampening(0.5);
  ExpectAsCloseAsTorch(spec, Torchs<optim::SGD>(options));
}

TEST(OptimizersAndTorch, AdamsAreAsCloseToDouble) {
  const optim::AdamWOptions decoupled = optim::AdamWOptions(kLr).weight_decay(kDecay);
  ExpectAsCloseAsTorch(DefaultSpec(OptimizerName::kAdamW), Torchs<optim::AdamW>(decoupled));
  ExpectAsCloseAsTorch(DefaultSpec(OptimizerName::kAdamWSqrtV), Torchs<optim::AdamW>(decoupled));
  ExpectAsCloseAsTorch(DefaultSpec(OptimizerName::kAdam),
                       Torchs<optim::Adam>(optim::AdamOptions(kLr).weight_decay(kDecay)));
}

TEST(OptimizersAndTorch, AdagradIsAsCloseToDouble) {
  OptimizerSpec spec = DefaultSpec(OptimizerName::kAdagrad);
  spec.lr_decay = 0.05;
  ExpectAsCloseAsTorch(
      spec, Torchs<optim::Adagrad>(
                optim::AdagradOptions(kLr).lr_decay(spec.lr_decay).weight_decay(kDecay)));
}

}  // namespace
}  // namespace eps
