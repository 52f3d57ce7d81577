#include "verify/reference_training.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/job/layout/model_layout.h"
#include "base/job/optimizers.h"
#include "base/numerics/flush_denormals.h"
#include "base/numerics/rng.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "verify/testing/shard_oracle.h"
#include "verify/tree_sum.h"

namespace eps {
namespace {

// Word `i` of the pseudo-random stream of (step, micro-batch, stage, use).
uint32_t Word(uint64_t step, uint32_t micro_batch, size_t stage, size_t use, uint64_t i) {
  const PhiloxBlock block =
      Philox4x32({static_cast<uint32_t>(i / 4), static_cast<uint32_t>(step), micro_batch, 7},
                 {static_cast<uint32_t>(stage), static_cast<uint32_t>(use)});
  return block[i % 4];
}

// Gradients depend on the weights, the sample and the position, and span many binades, so that
// every order of addition has different bits.
class NoisyModel final : public ReferenceModel {
 public:
  explicit NoisyModel(const JobSpec& spec) : spec_(spec) {}

  absl::StatusOr<MicroBatchResult> Run(const StageInputs& weights,
                                       const StageInputs& for_input_gradient,
                                       const MicroBatch& batch, int /*loss_scale_log2*/) override {
    MicroBatchResult result;
    const uint32_t data = batch.tokens.empty() ? 0 : static_cast<uint32_t>(batch.tokens[0]);
    result.loss.sum = 100.0 + Word(data, batch.index, 0, 0, 0) * 0x1p-20;
    result.loss.tokens = CountedTokens(batch);
    for (size_t stage = 0; stage < weights.size(); ++stage) {
      result.gradient.emplace_back();
      for (size_t use = 0; use < weights[stage].size(); ++use) {
        const TensorId tensor = spec_.stages[stage].uses[use].tensor;
        std::vector<float> values(spec_.tensors[tensor.value()].elements());
        for (size_t i = 0; i < values.size(); ++i) {
          const uint32_t word = Word(batch.step.value() * 1000 + data, batch.index, stage, use, i);
          const auto mantissa = static_cast<float>(static_cast<int32_t>(word));
          values[i] = std::ldexp(mantissa, -26 - static_cast<int>(word % 12)) +
                      (weights[stage][use][i] - 0.25f * for_input_gradient[stage][use][i]);
          if (word % 61 == 0) values[i] = 1e-40f;
        }
        result.gradient.back().push_back(std::move(values));
      }
    }
    return result;
  }

 private:
  const JobSpec& spec_;
};

// Batches whose only token encodes step and micro-batch.
class NumberedBatches final : public BatchSource {
 public:
  absl::StatusOr<MicroBatch> Get(Step step, uint32_t index) override {
    MicroBatch batch;
    batch.step = step;
    batch.index = index;
    batch.samples = 1;
    batch.seq_len = 1;
    batch.tokens = {static_cast<int32_t>(step.value() * 100 + index)};
    batch.labels = {0};
    return batch;
  }
};

// Draws noise by the step to which the data belongs, with one NaN in the gradient of one step (0:
// none).
class PoisonedModel final : public ReferenceModel {
 public:
  PoisonedModel(const JobSpec& spec, uint64_t step) : model_(spec), step_(step) {}
  absl::StatusOr<MicroBatchResult> Run(const StageInputs& weights,
                                       const StageInputs& for_input_gradient,
                                       const MicroBatch& batch, int /*loss_scale_log2*/) override {
    MicroBatch by_data = batch;
    by_data.step = Step(static_cast<uint64_t>(batch.tokens[0]) / 100);
    absl::StatusOr<MicroBatchResult> result = model_.Run(weights, for_input_gradient, by_data, 0);
    if (by_data.step == Step(step_) && batch.index == 1) {
      result->gradient[1][0].back() = std::numeric_limits<float>::quiet_NaN();
    }
    return result;
  }

 private:
  NoisyModel model_;
  const uint64_t step_;
};

// Serves the same batches, except that those of one step do not exist.
class BatchesWithout final : public BatchSource {
 public:
  explicit BatchesWithout(uint64_t step) : step_(step) {}
  absl::StatusOr<MicroBatch> Get(Step step, uint32_t index) override {
    return batches_.Get(step.value() < step_ ? step : step.Next(), index);
  }

 private:
  NumberedBatches batches_;
  const uint64_t step_;
};

JobSpec SpecFor(uint32_t parts, uint32_t micro_batches, bool tied) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = 3;
  spec.model.synthetic.n_embd = 72;  // leaves partial tiles at the edges
  spec.model.synthetic.tied = tied;
  spec.chunk_elements = 32 * 72;
  spec.schedule.name = "cosine";
  spec.optimizer.lr = 0.01;
  spec.training.parts = parts;
  spec.training.micro_batches = micro_batches;
  spec.training.max_grad_norm = 0.5;
  EXPECT_TRUE(BuildLayout(/*weight_decay=*/0.1, &spec).ok());
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

bool SameBits(const TensorValues& a, const TensorValues& b) {
  if (a.size() != b.size()) return false;
  for (size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size()) return false;
    if (std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) != 0) return false;
  }
  return true;
}

// The topology and optimizer of one case.
struct Shape {
  uint32_t parts, micro_batches;
  bool tied;
  Clip clip;
  OptimizerName optimizer = OptimizerName::kAdamW;
  double momentum = 0;
};

TEST(ReferenceTraining, MatchesAShardBitForBit) {
  std::vector<Shape> shapes = {
      {1, 1, false, Clip::kNone},  {2, 2, true, Clip::kLagged},
      {3, 1, true, Clip::kLagged}, {1, 5, false, Clip::kLagged},
      {5, 6, true, Clip::kNone},   {2, 2, true, Clip::kLagged, OptimizerName::kSgd, 0.9}};
  for (const OptimizerRow& row : Optimizers()) {
    shapes.push_back({1, 2, false, Clip::kNone, row.name, 0});
  }
  for (const Shape& shape : shapes) {
    JobSpec spec = SpecFor(shape.parts, shape.micro_batches, shape.tied);
    spec.training.clip = shape.clip;
    spec.optimizer.name = shape.optimizer;
    spec.optimizer.momentum = shape.momentum;
    SCOPED_TRACE(testing::Message() << shape.parts << " parts of " << shape.micro_batches);
    NoisyModel model(spec);
    NumberedBatches batches;
    ShardOracle shard(spec, &model, &batches);
    auto reference = ReferenceTraining::New(spec, &model, &batches, Plant::kNone);
    ASSERT_TRUE(reference.ok()) << reference.status();
    for (int step = 1; step <= 3; ++step) {
      const StepFigures expected = shard.RunStep();
      const auto figures = (*reference)->RunStep();
      ASSERT_TRUE(figures.ok()) << figures.status();
      EXPECT_EQ(figures->loss, expected.loss);
      EXPECT_EQ(figures->grad_norm, expected.grad_norm);
      EXPECT_EQ(figures->lr, expected.lr);
      EXPECT_EQ(figures->tokens, expected.tokens);
      const std::vector<TensorValues> state = shard.Read();
      ASSERT_EQ((*reference)->state().size(), state.size());
      for (size_t i = 0; i < state.size(); ++i) {
        EXPECT_TRUE(SameBits((*reference)->state()[i], state[i]))
            << NameOf(shape.optimizer) << ", array " << i << ", step " << step;
      }
    }
  }
}

// The codec settings of one case.
struct Codecs {
  const char* weights;
  const char* gradients;
  BackwardWeights backward_weights = BackwardWeights::kRecomputeAxis;
  uint64_t warmup_steps = 0;
  bool error_feedback = true;
  const char* residual = "bf16";
  const char* norm = "fp32";
};

JobSpec SpecWith(const Codecs& codecs, uint32_t parts, bool tied) {
  JobSpec spec = SpecFor(parts, 2, tied);
  CodecSpec& c = spec.codecs;
  c.weights = c.embedding.weights = c.head.weights = codecs.weights;
  c.gradients = c.head.gradients = codecs.gradients;
  c.embedding.gradients = "bf16";
  c.norm = {codecs.norm, codecs.norm};
  c.backward_weights = codecs.backward_weights;
  c.warmup_steps = codecs.warmup_steps;
  c.error_feedback = codecs.error_feedback;
  c.residual = codecs.residual;
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

TEST(ReferenceTraining, MatchesAShardWithEveryCodec) {
  constexpr auto kBothAxes = BackwardWeights::kBothAxes;
  constexpr auto kDecodeOnce = BackwardWeights::kDecodeOnce;
  constexpr auto kRecomputeAxis = BackwardWeights::kRecomputeAxis;
  uint32_t parts = 1;
  for (const Codecs& codecs :
       {Codecs{"mx9", "bf16", kBothAxes}, Codecs{"mx4:truncate", "mx9"},
        Codecs{"mxfp4_e2m1", "fp8_e5m2", kBothAxes, 1}, Codecs{"fp16", "fp16", kDecodeOnce},
        Codecs{"bf16", "topk:0.1", kRecomputeAxis, 2},
        Codecs{"mx6", "topk:0.05:sampled", kBothAxes},
        Codecs{"fp8_e4m3", "topk:0.02", kRecomputeAxis, 1, /*error_feedback=*/false},
        Codecs{"mxint8", "topk:0.03:raw32", kDecodeOnce, 0, true, "mx6", "mx9"},
        Codecs{"mxfp8_e4m3", "topk:0.03", kRecomputeAxis, 0, true, "fp32", "bf16"},
        Codecs{"bf16", "topk:0.03:tensor", kRecomputeAxis, 1, true, "bf16", "bf16"},
        Codecs{"mx9", "topk:0.05:raw32:fp32", kDecodeOnce, 0, true, "bf16", "bf16"},
        Codecs{"bf16", "topk:0.03:fp32:tensor", kRecomputeAxis, 1},
        Codecs{"mx6", "topk:0.05:raw32:tensor", kBothAxes, 0, /*error_feedback=*/false}}) {
    SCOPED_TRACE(testing::Message() << codecs.weights << " " << codecs.gradients);
    parts = parts % 3 + 1;
    const JobSpec spec = SpecWith(codecs, parts, /*tied=*/parts != 2);
    NoisyModel model(spec);
    NumberedBatches batches;
    ShardOracle shard(spec, &model, &batches);
    auto reference = ReferenceTraining::New(spec, &model, &batches, Plant::kNone);
    ASSERT_TRUE(reference.ok()) << reference.status();
    for (int step = 1; step <= 4; ++step) {
      const StepFigures expected = shard.RunStep();
      const auto figures = (*reference)->RunStep();
      ASSERT_TRUE(figures.ok()) << figures.status();
      EXPECT_EQ(figures->grad_norm, expected.grad_norm) << "step " << step;
      const std::vector<TensorValues> state = shard.Read();
      for (size_t i = 0; i < state.size(); ++i) {
        EXPECT_TRUE(SameBits((*reference)->state()[i], state[i])) << i << ", step " << step;
      }
    }
  }
}

// The state after a run.
struct Outcome {
  TensorValues weights, exp_avg, exp_avg_sq;
};

Outcome RunFor(const JobSpec& spec, Plant plant, int steps) {
  NoisyModel model(spec);
  NumberedBatches batches;
  auto reference = ReferenceTraining::New(spec, &model, &batches, plant);
  EXPECT_TRUE(reference.ok()) << reference.status();
  for (int i = 0; i < steps; ++i) EXPECT_TRUE((*reference)->RunStep().ok());
  return {(*reference)->weights(), (*reference)->state()[1], (*reference)->state()[2]};
}

TEST(ReferenceTraining, EveryPlantedMistakeChangesTheState) {
  const JobSpec spec = SpecFor(4, 2, /*tied=*/true);
  const Outcome right = RunFor(spec, Plant::kNone, 2);
  EXPECT_TRUE(SameBits(right.weights, RunFor(spec, Plant::kNone, 2).weights));
  for (const PlantInfo& info : Plants()) {
    if (info.plant == Plant::kWrongMaskKey) continue;  // planted in the model
    const Outcome wrong = RunFor(spec, info.plant, 2);
    EXPECT_FALSE(SameBits(right.weights, wrong.weights)) << info.name;
    // Mistakes in the gradient show in the moments; other mistakes leave the moments of step 1
    // alone.
    const Outcome first = RunFor(spec, info.plant, 1);
    const bool only_weights = info.plant == Plant::kWrongBiasCorrection ||
                              info.plant == Plant::kDecayOnBias ||
                              info.plant == Plant::kStaleWeights;
    EXPECT_EQ(SameBits(RunFor(spec, Plant::kNone, 1).exp_avg, first.exp_avg), only_weights)
        << info.name;
  }
}

TEST(ReferenceTraining, SkipsAStepWithNonFiniteGradient) {
  for (const Clip clip : {Clip::kNone, Clip::kLagged, Clip::kExact}) {
    for (const char* const codec : {"fp32", "bf16", "topk:0.1"}) {
      SCOPED_TRACE(testing::Message() << NameOf(clip) << " " << codec);
      JobSpec spec = SpecFor(2, 2, /*tied=*/true);
      spec.codecs.gradients = codec;
      spec.training.clip = clip;
      spec.training.mode = Mode::kSealed;
      spec.training.nonfinite = Nonfinite::kSkip;
      NumberedBatches batches;
      PoisonedModel poisoned(spec, /*step=*/2);
      auto found = ReferenceTraining::New(spec, &poisoned, &batches, Plant::kNone);
      PoisonedModel model(spec, /*step=*/0);
      BatchesWithout without(2);
      auto expected = ReferenceTraining::New(spec, &model, &without, Plant::kNone);
      ASSERT_TRUE(found.ok() && expected.ok());
      double rate = 0;
      for (uint64_t step = 1; step <= 4; ++step) {
        const auto figures = (*found)->RunStep();
        ASSERT_TRUE(figures.ok()) << figures.status();
        EXPECT_EQ(figures->skipped, step == 2);
        EXPECT_EQ(std::isnan(figures->grad_norm), step == 2);
        if (step == 3) {
          EXPECT_EQ(figures->lr, rate);
        }
        rate = figures->lr;
        if (step != 2) {
          const auto other = (*expected)->RunStep();
          ASSERT_TRUE(other.ok());
          EXPECT_EQ(figures->grad_norm, other->grad_norm);
          EXPECT_EQ(figures->lr, other->lr);
        }
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_TRUE(SameBits((*found)->state()[i], (*expected)->state()[i])) << step;
        }
      }
      spec.training.nonfinite = Nonfinite::kHalt;
      auto halting = ReferenceTraining::New(spec, &poisoned, &batches, Plant::kNone);
      ASSERT_TRUE((*halting)->RunStep().ok());
      EXPECT_EQ((*halting)->RunStep().status().code(), absl::StatusCode::kFailedPrecondition);
    }
  }
}

TEST(ReferenceTraining, RoundsBf16OnTheWire) {
  JobSpec spec = SpecFor(2, 2, /*tied=*/true);
  const Outcome exact = RunFor(spec, Plant::kNone, 1);
  spec.codecs.gradients = "bf16";
  EXPECT_FALSE(SameBits(exact.exp_avg, RunFor(spec, Plant::kNone, 1).exp_avg));
  spec.codecs.gradients = "fp32";
  spec.codecs.weights = "bf16";
  EXPECT_FALSE(SameBits(exact.exp_avg, RunFor(spec, Plant::kNone, 1).exp_avg));
}

// Every codec setting leads to different bits.
TEST(ReferenceTraining, EveryCodecSettingChangesTheBits) {
  const Codecs base{"mx4", "topk:0.05"};
  std::vector<Codecs> all(7, base);
  all[1].backward_weights = BackwardWeights::kBothAxes;
  all[2].warmup_steps = 1;
  all[3].warmup_steps = 2;
  all[4].error_feedback = false;
  all[5].residual = "mx4";
  all[6].weights = "mx4:truncate";
  std::vector<Outcome> outcomes;
  for (const Codecs& codecs : all) {
    outcomes.push_back(RunFor(SpecWith(codecs, 2, /*tied=*/true), Plant::kNone, 3));
    for (size_t i = 0; i + 1 < outcomes.size(); ++i) {
      EXPECT_FALSE(SameBits(outcomes[i].weights, outcomes.back().weights))
          << i << " and " << outcomes.size() - 1;
    }
  }
}

// Values that mx, fp8 and bf16 codecs decode to are bf16 values, so decode_once changes nothing;
// for fp32 and fp16 it does.
TEST(ReferenceTraining, DecodeOnceRoundsOnlyFp32AndFp16) {
  for (const char* const codec : {"mx9", "mx6", "mx4:truncate", "mxfp8_e4m3", "mxfp6_e3m2",
                                  "mxfp4_e2m1", "mxint8", "fp8_e4m3", "fp8_e5m2", "bf16"}) {
    Codecs codecs{codec, "fp32"};
    const Outcome recomputed = RunFor(SpecWith(codecs, 1, true), Plant::kNone, 2);
    codecs.backward_weights = BackwardWeights::kDecodeOnce;
    EXPECT_TRUE(
        SameBits(recomputed.weights, RunFor(SpecWith(codecs, 1, true), Plant::kNone, 2).weights))
        << codec;
  }
  for (const char* const codec : {"fp32", "fp16"}) {
    Codecs codecs{codec, "fp32"};
    const Outcome recomputed = RunFor(SpecWith(codecs, 1, true), Plant::kNone, 2);
    codecs.backward_weights = BackwardWeights::kDecodeOnce;
    EXPECT_FALSE(
        SameBits(recomputed.weights, RunFor(SpecWith(codecs, 1, true), Plant::kNone, 2).weights))
        << codec;
  }
}

TEST(ReferenceTraining, RefusesAnUnknownCodec) {
  JobSpec spec = SpecFor(1, 1, false);
  spec.codecs.gradients = "fp8";
  NoisyModel model(spec);
  NumberedBatches batches;
  const absl::Status status = ReferenceTraining::New(spec, &model, &batches, Plant::kNone).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("quantization.gradients=fp8"), std::string::npos) << status;
}

TEST(ReferenceTraining, StartsFromGivenWeights) {
  const JobSpec spec = SpecFor(1, 1, false);
  NoisyModel model(spec);
  NumberedBatches batches;
  auto reference = ReferenceTraining::New(spec, &model, &batches, Plant::kNone);
  ASSERT_TRUE(reference.ok());
  TensorValues weights = (*reference)->weights();
  weights[0][5] += 1.0f;
  (*reference)->SetWeights(weights);
  ASSERT_TRUE((*reference)->RunStep().ok());
  EXPECT_FALSE(SameBits((*reference)->weights(), RunFor(spec, Plant::kNone, 1).weights));
}

TEST(TreeSum, SplitsAtTheLargestPowerOfTwo) {
  const auto name = [](uint32_t i) { return absl::StatusOr<std::string>(std::to_string(i)); };
  const auto join = [](const std::string& a, const std::string& b) { return "(" + a + b + ")"; };
  const char* const expected[] = {"0",
                                  "(01)",
                                  "((01)2)",
                                  "((01)(23))",
                                  "(((01)(23))4)",
                                  "(((01)(23))(45))",
                                  "(((01)(23))((45)6))"};
  for (uint32_t n = 1; n <= 7; ++n) {
    EXPECT_EQ(*TreeSum<std::string>(0, n, name, join), expected[n - 1]);
  }
}

TEST(TreeSum, AddsWithDenormalsFlushed) {
  const ScopedFlushDenormals flush;
  std::vector<float> sum = {1e-40f, 2.0f, -0.0f};
  AddInto({1e-40f, 1e-40f, -0.0f}, &sum);
  EXPECT_EQ(sum[0], 0.0f);
  EXPECT_EQ(sum[1], 2.0f);
  EXPECT_TRUE(std::signbit(sum[2]));
}

TEST(Plant, ParsesEveryListedName) {
  for (const PlantInfo& info : Plants()) {
    const auto parsed = ParsePlant(info.name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, info.plant);
  }
  const absl::Status status = ParsePlant("tree").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("swapped_tree"), std::string::npos) << status;
}

}  // namespace
}  // namespace eps
