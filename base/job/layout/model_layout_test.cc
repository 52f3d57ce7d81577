#include "base/job/layout/model_layout.h"

#include <set>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

JobSpec Laid(const ModelSpec& model) {
  JobSpec spec;
  spec.model = model;
  const absl::Status status = BuildLayout(0.1, &spec);
  EXPECT_TRUE(status.ok()) << status;
  return spec;
}

ModelSpec Gpt2Small() {
  ModelSpec model;
  model.gpt2.n_layer = 12;
  model.gpt2.n_head = 12;
  model.gpt2.n_embd = 768;
  model.gpt2.n_positions = 1024;
  model.gpt2.vocab_size = 50257;
  return model;
}

const TensorSpec& Find(const JobSpec& spec, const std::string& name) {
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return spec.tensors[0];
}

TEST(Gpt2Layout, HasTheSizeOfThePublishedModel) {
  const JobSpec spec = Laid(Gpt2Small());
  EXPECT_EQ(spec.total_elements(), 124'439'808u);
  EXPECT_EQ(spec.tensors.size(), 2u + 12 * 12 + 2);
  EXPECT_EQ(spec.stages.size(), 14u);
}

TEST(Gpt2Layout, MatchesHuggingFacesNamesShapesAndValues) {
  const JobSpec spec = Laid(Gpt2Small());
  const struct {
    const char* name;
    uint32_t rank, rows, cols;
    Initializer init;
    double std;
    uint32_t group;
  } cases[] = {
      {"transformer.wte.weight", 2, 50257, 768, Initializer::kNormal, 0.02, 0},
      {"transformer.wpe.weight", 2, 1024, 768, Initializer::kNormal, 0.02, 0},
      {"transformer.h.0.ln_1.weight", 1, 1, 768, Initializer::kOnes, 0, 1},
      {"transformer.h.0.ln_1.bias", 1, 1, 768, Initializer::kZeros, 0, 1},
      {"transformer.h.0.attn.c_attn.weight", 2, 768, 2304, Initializer::kNormal, 0.02, 0},
      {"transformer.h.0.attn.c_attn.bias", 1, 1, 2304, Initializer::kZeros, 0, 1},
      {"transformer.h.0.attn.c_proj.weight", 2, 768, 768, Initializer::kNormal,
       0.004082482904638631, 0},
      {"transformer.h.11.ln_2.weight", 1, 1, 768, Initializer::kOnes, 0, 1},
      {"transformer.h.11.mlp.c_fc.weight", 2, 768, 3072, Initializer::kNormal, 0.02, 0},
      {"transformer.h.11.mlp.c_proj.weight", 2, 3072, 768, Initializer::kNormal,
       0.004082482904638631, 0},
      {"transformer.h.11.mlp.c_proj.bias", 1, 1, 768, Initializer::kZeros, 0, 1},
      {"transformer.ln_f.weight", 1, 1, 768, Initializer::kOnes, 0, 1},
      {"transformer.ln_f.bias", 1, 1, 768, Initializer::kZeros, 0, 1},
  };
  for (const auto& c : cases) {
    const TensorSpec& tensor = Find(spec, c.name);
    EXPECT_EQ(tensor.rank, c.rank) << c.name;
    EXPECT_EQ(tensor.rows, c.rows) << c.name;
    EXPECT_EQ(tensor.cols, c.cols) << c.name;
    EXPECT_EQ(tensor.init, c.init) << c.name;
    EXPECT_EQ(tensor.init_std, c.std) << c.name;
    EXPECT_EQ(tensor.group.value(), c.group) << c.name;
  }
  EXPECT_EQ(spec.groups[0].weight_decay, 0.1);
  EXPECT_EQ(spec.groups[1].weight_decay, 0.0);
}

TEST(Gpt2Layout, TiedHeadSwapsTheEmbeddingsAxes) {
  const JobSpec spec = Laid(Gpt2Small());
  const StageSpec& head = spec.stages.back();
  EXPECT_EQ(head.name, "head");
  ASSERT_EQ(head.uses.size(), 3u);
  EXPECT_EQ(head.uses[2].tensor, TensorId(0));
  EXPECT_EQ(head.uses[2].forward_axis, Axis::kRow);
  EXPECT_EQ(head.uses[2].backward_axis, Axis::kColumn);
  EXPECT_EQ(spec.stages[0].uses[0].forward_axis, Axis::kRow);
  EXPECT_EQ(spec.stages[0].uses[0].backward_axis, Axis::kRow);
  EXPECT_EQ(spec.stages[1].uses[2].forward_axis, Axis::kColumn);
  EXPECT_EQ(spec.stages[1].uses[2].backward_axis, Axis::kRow);
}

TEST(Gpt2Layout, UntiedHeadHasItsOwnWeight) {
  ModelSpec model = Gpt2Small();
  model.gpt2.tie_word_embeddings = false;
  model.gpt2.n_inner = 100;
  const JobSpec spec = Laid(model);
  EXPECT_EQ(Find(spec, "lm_head.weight").rows, 50257u);
  EXPECT_EQ(spec.tensors[spec.stages.back().uses[2].tensor.value()].name, "lm_head.weight");
  EXPECT_EQ(Find(spec, "transformer.h.3.mlp.c_proj.weight").rows, 100u);
}

TEST(SyntheticLayout, SharesTheFirstLayerWhenTied) {
  ModelSpec model;
  model.type = ModelType::kSynthetic;
  model.synthetic.n_layer = 3;
  JobSpec spec = Laid(model);
  EXPECT_EQ(spec.tensors.size(), 5u);
  EXPECT_EQ(spec.stages[2].uses[0].tensor, spec.stages[0].uses[0].tensor);
  EXPECT_EQ(spec.tensors[spec.stages[2].uses[1].tensor.value()].name, "bias.2");
  model.synthetic.tied = false;
  spec = Laid(model);
  EXPECT_EQ(spec.tensors.size(), 6u);
  EXPECT_EQ(Find(spec, "layer.2").rows, 64u);
  model.synthetic.n_layer = 1;
  model.synthetic.tied = true;
  EXPECT_EQ(Laid(model).tensors.size(), 2u);
}

TEST(BuildLayout, RefusesAModelOutOfBounds) {
  JobSpec spec;
  spec.model.gpt2.n_embd = -1;
  EXPECT_TRUE(absl::StrContains(BuildLayout(0, &spec).message(), "model.n_embd"));
}

}  // namespace
}  // namespace eps
