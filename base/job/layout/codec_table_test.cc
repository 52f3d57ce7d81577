#include "base/job/layout/codec_table.h"

#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TensorId Named(const JobSpec& spec, const std::string& name) {
  for (uint32_t i = 0; i < spec.tensors.size(); ++i) {
    if (spec.tensors[i].name == name) return TensorId(i);
  }
  ADD_FAILURE() << name;
  return TensorId(0);
}

TEST(KindOf, TellsEmbeddingsHeadsNormsAndBlocksApart) {
  const JobSpec tied = TinyGpt2Spec();
  EXPECT_EQ(KindOf(tied, Named(tied, "transformer.wte.weight")), TensorKind::kEmbedding);
  EXPECT_EQ(KindOf(tied, Named(tied, "transformer.wpe.weight")), TensorKind::kEmbedding);
  EXPECT_EQ(KindOf(tied, Named(tied, "transformer.h.1.ln_1.weight")), TensorKind::kNorm);
  EXPECT_EQ(KindOf(tied, Named(tied, "transformer.h.1.mlp.c_fc.bias")), TensorKind::kNorm);
  EXPECT_EQ(KindOf(tied, Named(tied, "transformer.h.0.attn.c_attn.weight")), TensorKind::kBlock);
  const JobSpec synthetic = TinySyntheticSpec();
  EXPECT_EQ(KindOf(synthetic, synthetic.stages.front().uses[0].tensor), TensorKind::kEmbedding);
  EXPECT_EQ(KindOf(synthetic, synthetic.stages[1].uses[0].tensor), TensorKind::kBlock);
  JobSpec untied = synthetic;
  untied.tensors.push_back(untied.tensors[0]);
  const TensorId head(static_cast<uint32_t>(untied.tensors.size() - 1));
  untied.stages.back().uses[0].tensor = head;
  EXPECT_EQ(KindOf(untied, head), TensorKind::kHead);
}

TEST(CodecNames, FollowTheKindAndTheWarmup) {
  JobSpec spec = TinyGpt2Spec();
  spec.codecs.weights = "mx6";
  spec.codecs.gradients = "topk:0.01";
  spec.codecs.embedding = {"bf16", "fp16"};
  spec.codecs.warmup_steps = 3;
  const TensorId block = Named(spec, "transformer.h.0.attn.c_attn.weight");
  const TensorId embedding = Named(spec, "transformer.wte.weight");
  const TensorId norm = Named(spec, "transformer.h.0.ln_1.bias");
  EXPECT_EQ(WeightCodecName(spec, block), "mx6");
  EXPECT_EQ(WeightCodecName(spec, embedding), "bf16");
  EXPECT_EQ(WeightCodecName(spec, norm), "fp32");
  EXPECT_EQ(GradientCodecName(spec, block, Step(3)), "bf16");
  EXPECT_EQ(GradientCodecName(spec, block, Step(4)), "topk:0.01");
  EXPECT_EQ(GradientCodecName(spec, embedding, Step(4)), "fp16");
  EXPECT_EQ(GradientCodecName(spec, norm, Step(1)), "fp32");
}

TEST(CodecNames, ListsTheCodecsOfExistingTensors) {
  JobSpec spec = TinyGpt2Spec();
  EXPECT_THAT(CodecNamesOf(spec), testing::ElementsAre("bf16", "fp32"));  // of residuals: bf16
  spec.codecs.weights = "mx6";
  spec.codecs.gradients = "topk:0.01";
  spec.codecs.stash = "fp16";
  spec.codecs.residual = "mx9";
  EXPECT_THAT(CodecNamesOf(spec), testing::ElementsAre("fp16", "fp32", "mx6", "mx9", "topk:0.01"));
  spec.codecs.warmup_steps = 1;
  EXPECT_THAT(CodecNamesOf(spec),
              testing::ElementsAre("bf16", "fp16", "fp32", "mx6", "mx9", "topk:0.01"));
}

TEST(WeightAxes, AxesFollowThePassAndBackwardWeights) {
  JobSpec spec = TinyGpt2Spec();
  TensorUse use;
  use.tensor = Named(spec, "transformer.h.0.attn.c_attn.weight");
  use.forward_axis = Axis::kColumn;
  use.backward_axis = Axis::kRow;
  for (const bool backward : {false, true}) {
    EXPECT_EQ(WeightAxesOf(spec, use, backward).first, Axis::kColumn);
    EXPECT_FALSE(WeightAxesOf(spec, use, backward).has_second);
  }
  spec.codecs.backward_weights = BackwardWeights::kBothAxes;
  EXPECT_FALSE(WeightAxesOf(spec, use, /*backward=*/false).has_second);
  ASSERT_TRUE(WeightAxesOf(spec, use, /*backward=*/true).has_second);
  EXPECT_EQ(WeightAxesOf(spec, use, /*backward=*/true).second, Axis::kRow);
  use.tensor = Named(spec, "transformer.h.0.ln_1.bias");
  EXPECT_EQ(WeightAxesOf(spec, use, /*backward=*/true).first, Axis::kRow);
  EXPECT_FALSE(WeightAxesOf(spec, use, /*backward=*/true).has_second);
}

}  // namespace
}  // namespace eps
