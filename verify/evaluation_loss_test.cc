// Compares the loss of held-out samples that a worker's stage programs compute with the reference:
// the bits are equal, and no dropout is applied whatever the model's configuration says.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/job/layout/model_layout.h"
#include "gtest/gtest.h"
#include "verify/reference_models.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

constexpr int kThreads = 2;

// A model and the sizes of its batches.
struct Case {
  bool tied;
  double drop;
  uint32_t samples;
  uint32_t loss_block;
};

JobSpec MakeSpec(const Case& c, double drop) {
  JobSpec spec;
  spec.name = "test";
  Gpt2Config& gpt2 = spec.model.gpt2;
  gpt2.n_layer = 2;
  gpt2.n_head = 2;
  gpt2.n_embd = 64;
  gpt2.vocab_size = 101;
  gpt2.n_positions = 24;
  gpt2.tie_word_embeddings = c.tied;
  gpt2.resid_pdrop = gpt2.embd_pdrop = gpt2.attn_pdrop = drop;
  spec.training.micro_batch_size = c.samples;
  spec.training.seq_len = 20;
  spec.training.loss_block_tokens = c.loss_block;
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  return spec;
}

// Reproducible values of both signs.
float Value(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return static_cast<float>(*state >> 8) / 16777216.0f - 0.5f;
}

MicroBatch HeldOutBatch(const JobSpec& spec, uint32_t samples) {
  MicroBatch batch;
  batch.held_out = true;
  batch.samples = samples;
  batch.seq_len = spec.training.seq_len;
  for (uint32_t i = 0; i < samples * batch.seq_len; ++i) {
    batch.tokens.push_back(static_cast<int32_t>((i * 37 + 11) % 101));
    batch.labels.push_back(i % 7 == 3 ? kIgnoreLabel : static_cast<int32_t>((i * 53 + 5) % 101));
  }
  return batch;
}

// Runs the batch through all stages and returns the loss of the last one.
LossSum LossOfStages(const JobSpec& spec, StageRuntime* runtime, const StageInputs& weights,
                     const MicroBatch& batch) {
  ActivationPtr in;
  for (uint32_t s = 0;; ++s) {
    std::shared_ptr<HostStage> host = runtime->NewHostStage(StageId(s)).value();
    for (size_t use = 0; use < weights[s].size(); ++use) {
      const TensorSpec& tensor = spec.tensors[spec.stages[s].uses[use].tensor.value()];
      std::copy(weights[s][use], weights[s][use] + tensor.elements(), host->tensor(use));
    }
    const auto loaded = runtime->Load(StageId(s), std::move(host));
    StageProgram& program = runtime->program(StageId(s));
    if (s + 1 == spec.stages.size()) {
      const auto loss = program.Loss(*loaded, batch, in, nullptr);
      EXPECT_TRUE(loss.ok()) << loss.status();
      return *loss;
    }
    auto out = program.Forward(*loaded, batch, in);
    EXPECT_TRUE(out.ok()) << out.status();
    in = *std::move(out);
  }
}

TEST(EvaluationLossTest, MatchesTheReferenceWithoutDropout) {
  const std::vector<Case> cases = {{true, 0.0, 3, 1024}, {true, 0.3, 3, 7}, {false, 0.5, 2, 16}};
  for (const Case& c : cases) {
    const JobSpec spec = MakeSpec(c, c.drop);
    const JobSpec without = MakeSpec(c, 0.0);
    RuntimeOptions options;
    options.device = "cpu";
    options.threads = kThreads;
    auto runtime = NewTorchRuntime(spec, NewModelStage, options, nullptr);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    auto reference = NewReferenceModel(without, ReferenceOptions{kThreads, 0});
    ASSERT_TRUE(reference.ok()) << reference.status();
    uint32_t state = 7;
    std::vector<std::vector<float>> tensors;
    for (const TensorSpec& tensor : spec.tensors) {
      tensors.emplace_back(tensor.elements());
      for (float& v : tensors.back()) {
        v = 0.3f * Value(&state) + (tensor.init == Initializer::kOnes ? 1.0f : 0.0f);
      }
    }
    StageInputs weights;
    for (const StageSpec& stage : spec.stages) {
      weights.emplace_back();
      for (const TensorUse& use : stage.uses) {
        weights.back().push_back(tensors[use.tensor.value()].data());
      }
    }
    // The last micro-batch of an evaluation may be smaller than a training micro-batch.
    for (const uint32_t samples : {c.samples, 1u}) {
      const MicroBatch batch = HeldOutBatch(spec, samples);
      const LossSum loss = LossOfStages(spec, runtime->get(), weights, batch);
      auto expected = (*reference)->Run(weights, weights, batch, 0);
      ASSERT_TRUE(expected.ok()) << expected.status();
      EXPECT_EQ(loss.sum, expected->loss.sum);
      EXPECT_EQ(loss.tokens, expected->loss.tokens);
      EXPECT_EQ(loss.tokens, CountedTokens(batch));
    }
  }
}

}  // namespace
}  // namespace eps
