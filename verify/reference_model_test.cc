// Compares the reference with the workers' stage programs, chained by hand: the loss and the
// gradients of every use of every tensor have the same bits.

#include "verify/reference_models.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/job/layout/model_layout.h"
#include "base/memory_account.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "verify/stage_programs.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"
#include "worker/relay/weight_copies.h"

namespace eps {
namespace {

constexpr int kThreads = 2;

// A model and the shape of its batches.
struct Case {
  std::string name;
  int layers, heads, width, vocab, seq;
  uint32_t samples, loss_block;
  bool tied;
  double resid_pdrop, embd_pdrop, attn_pdrop;
  bool padded;  // some positions do not count in the loss
  bool both_axes = false;
  std::string stash = "fp32";
  std::string program = "";       // empty: by hand; else the program of this model
  bool packed = false;            // documents share rows
  std::string dtype = "float32";  // of a program; else bfloat16 and float16 are the job's precision
};

JobSpec MakeSpec(const Case& c) {
  JobSpec spec;
  spec.name = "test";
  Gpt2Config& gpt2 = spec.model.gpt2;
  gpt2.n_layer = c.layers;
  gpt2.n_head = c.heads;
  gpt2.n_embd = c.width;
  gpt2.vocab_size = c.vocab;
  gpt2.n_positions = c.seq + 1;
  gpt2.tie_word_embeddings = c.tied;
  gpt2.resid_pdrop = c.resid_pdrop;
  gpt2.embd_pdrop = c.embd_pdrop;
  gpt2.attn_pdrop = c.attn_pdrop;
  gpt2.layer_norm_epsilon = 2e-5;
  if (c.program == "gpt2") spec.model = ModelOf(Gpt2Program(gpt2, /*fused_gelu=*/false, c.dtype));
  if (c.program == "llama") {
    LlamaShape shape;
    shape.layers = c.layers;
    shape.heads = c.heads;
    shape.kv_heads = c.heads / 2;
    shape.width = c.width;
    shape.vocab = c.vocab;
    shape.positions = c.seq;
    shape.attention_dropout = c.attn_pdrop;
    shape.dtype = c.dtype;
    spec.model = ModelOf(LlamaProgram(shape));
  }
  if (c.program.empty() && c.dtype == "bfloat16") spec.training.precision = Precision::kBf16;
  if (c.program.empty() && c.dtype == "float16") spec.training.precision = Precision::kCmp;
  spec.training.micro_batch_size = c.samples;
  spec.training.seq_len = static_cast<uint32_t>(c.seq);
  spec.training.loss_block_tokens = c.loss_block;
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  return spec;
}

// A reproducible pseudo-random stream, of which only the upper bits are used.
class Noise {
 public:
  explicit Noise(uint32_t seed) : state_(seed) {}
  uint32_t Below(uint32_t n) { return (Next() >> 8) % n; }
  float Centred() { return static_cast<float>(Next() >> 8) / 16777216.0f - 0.5f; }

 private:
  uint32_t Next() { return state_ = state_ * 1664525u + 1013904223u; }
  uint32_t state_;
};

// Biases and norms differ from 0 and 1 too, where mistakes would not show.
std::vector<std::vector<float>> MakeWeights(const JobSpec& spec) {
  Noise noise(4711);
  std::vector<std::vector<float>> weights;
  for (const TensorSpec& tensor : spec.tensors) {
    weights.emplace_back(tensor.elements());
    for (float& w : weights.back()) {
      w = noise.Centred() * 0.3f + (tensor.init == Initializer::kOnes ? 1.0f : 0.0f);
    }
  }
  return weights;
}

MicroBatch MakeBatch(const Case& c, uint32_t index) {
  Noise noise(99 + index);
  MicroBatch batch;
  batch.step = Step(5);
  batch.index = index;
  batch.samples = c.samples;
  batch.seq_len = static_cast<uint32_t>(c.seq);
  const auto vocabulary = static_cast<uint32_t>(c.vocab);
  for (uint32_t i = 0; i < c.samples * batch.seq_len; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(noise.Below(vocabulary)));
    const bool skipped = c.padded && noise.Below(4) == 0;
    batch.labels.push_back(skipped ? kIgnoreLabel : static_cast<int32_t>(noise.Below(vocabulary)));
    if (!c.packed) continue;
    const bool starts = i % batch.seq_len == 0 || noise.Below(5) == 0;
    batch.positions.push_back(starts ? 0 : batch.positions.back() + 1);
  }
  return batch;
}

StageInputs InputsOf(const JobSpec& spec, const std::vector<std::vector<float>>& weights) {
  StageInputs inputs;
  for (const StageSpec& stage : spec.stages) {
    inputs.emplace_back();
    for (const TensorUse& use : stage.uses) {
      inputs.back().push_back(weights[use.tensor.value()].data());
    }
  }
  return inputs;
}

// Returns `inputs` with the pointers of `others` wherever a backward pass receives a second copy.
StageInputs WithSecondCopies(const JobSpec& spec, const std::vector<std::vector<float>>& others,
                             StageInputs inputs) {
  for (size_t s = 0; s < inputs.size(); ++s) {
    for (size_t use = 0; use < inputs[s].size(); ++use) {
      const TensorUse& of_stage = spec.stages[s].uses[use];
      if (HasSecondCopy(spec, of_stage)) inputs[s][use] = others[of_stage.tensor.value()].data();
    }
  }
  return inputs;
}

size_t DifferentBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  return count;
}

class ReferenceModelTest : public testing::TestWithParam<Case> {};

TEST_P(ReferenceModelTest, MatchesTheStageProgramsBitForBit) {
  const Case& c = GetParam();
  JobSpec spec = MakeSpec(c);
  spec.codecs.stash = c.stash;
  if (c.both_axes) {
    spec.codecs.backward_weights = BackwardWeights::kBothAxes;
    spec.codecs.weights = spec.codecs.embedding.weights = spec.codecs.head.weights = "mx9";
  }
  const auto weights = MakeWeights(spec);
  const StageInputs inputs = InputsOf(spec, weights);
  // Far from `weights`, farther than quantization would move them, so that nothing is equal by
  // chance.
  auto other_weights = weights;
  for (auto& values : other_weights) {
    for (float& x : values) x = 0.7f * x + 0.01f;
  }
  const StageInputs others = c.both_axes ? WithSecondCopies(spec, other_weights, inputs) : inputs;
  MemoryAccount account;
  auto runtime =
      NewTorchRuntime(spec, NewModelStage, RuntimeOptions{"cpu", "host", kThreads}, &account);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  ReferenceOptions options;
  options.threads = kThreads;
  auto reference = NewReferenceModel(spec, options);
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const uint32_t index : {0u, 3u}) {
    const MicroBatch batch = MakeBatch(c, index);
    const auto run = RunStagePrograms(spec, runtime->get(), inputs, others, batch, 0);
    ASSERT_TRUE(run.ok()) << run.status();
    const MicroBatchResult& expected = *run;
    const auto got = (*reference)->Run(inputs, others, batch, 0);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->loss.sum, expected.loss.sum);
    EXPECT_EQ(got->loss.tokens, expected.loss.tokens);
    for (size_t s = 0; s < spec.stages.size(); ++s) {
      for (size_t use = 0; use < inputs[s].size(); ++use) {
        EXPECT_EQ(DifferentBits(got->gradient[s][use], expected.gradient[s][use]), 0u)
            << spec.tensors[spec.stages[s].uses[use].tensor.value()].name << " by stage "
            << spec.stages[s].name << ", micro-batch " << index;
      }
    }
  }
}

const Case kCases[] = {
    // name, layers, heads, width, vocab, seq, samples, block, tied, resid, embd, attn, padded
    {"Tied", 2, 2, 32, 61, 12, 3, 1024, true, 0, 0, 0, false},
    {"Untied", 2, 2, 32, 61, 12, 3, 1024, false, 0, 0, 0, false},
    {"OneSample", 1, 2, 32, 61, 12, 1, 5, true, 0.1, 0, 0, false},
    {"Dropout", 2, 4, 64, 67, 16, 2, 1024, true, 0.1, 0.2, 0.3, false},
    {"SmallLossBlocks", 1, 4, 64, 67, 16, 5, 9, false, 0.1, 0.1, 0, false},
    {"Padded", 1, 2, 32, 61, 12, 3, 16, true, 0, 0, 0, true},
    // Loss blocks so long that the matrix product splits them itself.
    {"LongLossBlocks", 1, 4, 128, 256, 256, 6, 700, true, 0, 0, 0, false},
    {"BothAxesTied", 2, 2, 32, 61, 12, 3, 1024, true, 0.1, 0, 0, false, true},
    {"BothAxesUntied", 2, 2, 32, 61, 12, 3, 9, false, 0, 0, 0, false, true},
    {"StashBf16", 2, 2, 32, 61, 12, 3, 1024, true, 0.1, 0, 0, false, false, "bf16"},
    {"StashFp16", 1, 2, 32, 61, 12, 3, 1024, true, 0, 0, 0, false, false, "fp16"},
    {"StashFp8E4m3", 2, 2, 32, 61, 12, 3, 1024, false, 0, 0.1, 0, false, true, "fp8_e4m3"},
    {"StashFp8E5m2", 2, 2, 32, 61, 12, 3, 1024, true, 0, 0, 0, false, false, "fp8_e5m2"},
    {"ProgramOfGpt2", 2, 2, 32, 61, 12, 3, 9, true, 0.1, 0.2, 0.3, true, false, "fp32", "gpt2"},
    {"ProgramOfGpt2BothAxes", 2, 2, 32, 61, 12, 3, 9, true, 0.1, 0, 0, false, true, "bf16", "gpt2"},
    {"Llama", 3, 4, 32, 61, 12, 3, 1024, false, 0, 0, 0, false, false, "fp32", "llama"},
    {"LlamaDropout", 2, 4, 64, 67, 16, 2, 7, false, 0, 0, 0.3, true, false, "fp32", "llama"},
    {"LlamaBothAxes", 2, 4, 32, 61, 12, 3, 9, false, 0, 0, 0.1, false, true, "fp8_e4m3", "llama"},
    {"Gpt2InBf16", 2, 2, 32, 61, 12, 3, 9, true, 0.1, 0.2, 0.3, true, false, "fp32", "gpt2", false,
     "bfloat16"},
    {"LlamaInBf16", 3, 4, 32, 61, 12, 3, 1024, false, 0, 0, 0.3, false, false, "fp32", "llama",
     false, "bfloat16"},
    {"Gpt2InBf16BothAxes", 2, 2, 32, 61, 12, 3, 9, true, 0.1, 0, 0, false, true, "fp8_e4m3", "gpt2",
     false, "bfloat16"},
    {"LlamaInBf16StashFp16", 2, 4, 32, 61, 12, 3, 9, false, 0, 0, 0, true, false, "fp16", "llama",
     false, "bfloat16"},
    {"Packed", 2, 2, 32, 61, 40, 3, 1024, true, 0, 0, 0, true, false, "fp32", "", true},
    {"InBf16", 2, 2, 32, 61, 12, 3, 9, true, 0.1, 0.2, 0.3, true, false, "fp32", "", false,
     "bfloat16"},
    {"InFp16BothAxes", 2, 4, 64, 67, 16, 2, 9, false, 0.1, 0, 0, false, true, "fp8_e4m3", "", false,
     "float16"},
    {"InBf16Packed", 2, 2, 32, 61, 40, 3, 1024, true, 0, 0, 0, true, false, "fp32", "", true,
     "bfloat16"},
    {"PackedDropout", 2, 4, 64, 67, 40, 2, 9, false, 0.1, 0.2, 0.3, true, false, "fp32", "", true},
};
INSTANTIATE_TEST_SUITE_P(All, ReferenceModelTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(ReferenceModel, PlantedMaskShiftChangesTheMasks) {
  const Case c = {"", 1, 2, 32, 61, 12, 3, 1024, true, 0.1, 0, 0, false};
  const JobSpec spec = MakeSpec(c);
  const auto weights = MakeWeights(spec);
  ReferenceOptions options;
  options.threads = kThreads;
  auto right = NewReferenceModel(spec, options);
  options.mask_stage_shift = 1;
  auto wrong = NewReferenceModel(spec, options);
  ASSERT_TRUE(right.ok() && wrong.ok());
  const MicroBatch batch = MakeBatch(c, 0);
  EXPECT_NE((*right)->Run(InputsOf(spec, weights), InputsOf(spec, weights), batch, 0)->loss.sum,
            (*wrong)->Run(InputsOf(spec, weights), InputsOf(spec, weights), batch, 0)->loss.sum);
}

TEST(ReferenceModel, RefusesAModelWithoutReference) {
  JobSpec spec;
  spec.model.type = ModelType::kSynthetic;
  ASSERT_TRUE(BuildLayout(0, &spec).ok());
  const absl::Status status = NewReferenceModel(spec, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("synthetic"), std::string::npos) << status;
}

TEST(ReferenceModel, RefusesTensorsInAnotherOrder) {
  JobSpec spec = MakeSpec({"", 1, 2, 32, 61, 12, 3, 1024, true, 0, 0, 0, false});
  std::swap(spec.stages[1].uses[0], spec.stages[1].uses[1]);
  EXPECT_EQ(NewReferenceModel(spec, {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace eps
