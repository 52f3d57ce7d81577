// Runs stages of a program some of whose tensors are frozen.

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/exec/torch_stage.h"
#include "worker/models/testing/stage_runs.h"

namespace eps {
namespace {

using at::Tensor;
using nlohmann::json;

// The gradients of the others are those without frozen tensors, bit for bit.
TEST(ProgramStage, FrozenTensorsGiveNoGradient) {
  json root = json::parse(LlamaProgram(LlamaShape()));
  const JobSpec plain = SpecOf(ModelOf(root.dump()), 16);
  const size_t last = root["tensors"].size() - 1;
  for (size_t t = 0; t < root["tensors"].size(); ++t) {
    // The first two stages, the head, and of the second layer every other tensor.
    const bool trained = t % 2 == 1 && t > root["tensors"].size() / 2 && t < last;
    if (!trained) root["tensors"][t]["frozen"] = true;
  }
  const JobSpec spec = SpecOf(ModelOf(root.dump()), 16);
  ASSERT_EQ(spec.LowestTrainableStage(), StageId(2));
  const MicroBatch batch = BatchOf(2, 8, 256);
  const std::vector<StageTensors> weights = WeightsOf(plain);
  const at::NoGradGuard no_grad;
  const auto stages = StagesOf(spec);
  const Outcome expected = RunStages(plain, weights, weights, batch);
  Tensor grad;
  size_t compared = 0;
  for (size_t s = 3; s >= 2; --s) {
    TorchBackward back = stages[s]->Backward(
        weights[s], weights[s], batch, {expected.activations[s], grad, /*loss_scale_log2=*/1});
    for (size_t u = 0; u < back.gradient.size(); ++u) {
      const bool frozen = spec.IsFrozen(spec.stages[s].uses[u].tensor);
      EXPECT_EQ(back.gradient[u].defined(), !frozen) << s << " " << u;
      if (frozen) continue;
      EXPECT_TRUE(back.gradient[u].equal(expected.gradients[s][u])) << s << " " << u;
      ++compared;
    }
    EXPECT_EQ(back.grad_in.defined(), s == 3) << "nothing below is trained";
    grad = back.grad_in;
  }
  EXPECT_GT(compared, 2u);
}

}  // namespace
}  // namespace eps
