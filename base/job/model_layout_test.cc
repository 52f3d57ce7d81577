#include "base/job/model_layout.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
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

TEST(Gpt2Layout, HasHuggingFacesNamesShapesAndInitialValues) {
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

TEST(Gpt2Layout, TiedHeadUsesTheEmbeddingWithTheOtherAxes) {
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

constexpr char kGpt2Json[] = R"({
  "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
  "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
  "layer_norm_epsilon": 1e-05, "resid_pdrop": 0.2, "vocab_size": 50257, "n_inner": null
})";

TEST(ParseGpt2Config, ReadsHuggingFacesFileWithItsDefaults) {
  const absl::StatusOr<Gpt2Config> config = ParseGpt2Config(kGpt2Json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->n_layer, 12);
  EXPECT_EQ(config->vocab_size, 50257);
  EXPECT_EQ(config->n_inner, 0);
  EXPECT_EQ(config->resid_pdrop, 0.2);
  EXPECT_EQ(config->attn_pdrop, 0.1);
  EXPECT_TRUE(config->tie_word_embeddings);
}

TEST(ParseGpt2Config, NamesTheFieldThatItCannotTake) {
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } cases[] = {
      {"\"model_type\": \"gpt2\"", "\"model_type\": \"llama\"", "field model_type: expected"},
      {"\"model_type\": \"gpt2\",", "", "no field model_type"},
      {"\"n_layer\": 12,", "", "no field n_layer"},
      {"\"n_layer\": 12", "\"n_layer\": 12.5", "field n_layer: expected a whole number"},
      {"\"n_layer\": 12", "\"n_layer\": 4294967308", "field n_layer: expected a whole number"},
      {"\"n_layer\": 12", "\"n_layer\": 18446744073709551615", "field n_layer: expected"},
      {"\"n_layer\": 12", "\"n_layer\": 0", "model.n_layer: expected 1"},
      {"\"n_head\": 12", "\"n_head\": \"12\"", "field n_head"},
      {"0.2", "true", "field resid_pdrop: expected a number, found true"},
      {"gelu_new", "relu", "field activation_function: expected \"gelu_new\""},
      {"\"n_ctx\": 1024", "\"scale_attn_weights\": false", "field scale_attn_weights"},
      {"}", "", "not a JSON object"},
  };
  for (const auto& c : cases) {
    const std::string json = absl::StrReplaceAll(kGpt2Json, {{c.from, c.to}});
    ASSERT_NE(json, kGpt2Json) << c.from;
    const absl::Status status = ParseGpt2Config(json).status();
    EXPECT_TRUE(absl::StrContains(status.message(), c.message))
        << status << "\nexpected " << c.message;
  }
  EXPECT_FALSE(ParseGpt2Config("[1]").ok());
  EXPECT_FALSE(ParseGpt2Config("").ok());
}

TEST(Gpt2ConfigToJson, ReadsBack) {
  Gpt2Config config = Gpt2Small().gpt2;
  config.n_inner = 99;
  config.embd_pdrop = 0.30000000000000004;
  config.tie_word_embeddings = false;
  const absl::StatusOr<Gpt2Config> read = ParseGpt2Config(Gpt2ConfigToJson(config));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->n_inner, 99);
  EXPECT_EQ(read->embd_pdrop, config.embd_pdrop);
  EXPECT_EQ(read->resid_pdrop, 0.0);
  EXPECT_FALSE(read->tie_word_embeddings);
  config.n_inner = 0;
  EXPECT_EQ(ParseGpt2Config(Gpt2ConfigToJson(config))->n_inner, 0);
}

}  // namespace
}  // namespace eps
