#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "base/job/models/gpt2.h"
#include "base/job/models/model_family.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

ModelSpec Gpt2Small() {
  ModelSpec model;
  model.gpt2.n_layer = 12;
  model.gpt2.n_head = 12;
  model.gpt2.n_embd = 768;
  model.gpt2.n_positions = 1024;
  model.gpt2.vocab_size = 50257;
  return model;
}

TEST(Families, StandInTheOrderOfTheTypes) {
  std::set<std::string> hf_types;
  for (size_t i = 0; i < kNames<ModelType>.size(); ++i) {
    ModelSpec model;
    model.type = static_cast<ModelType>(i);
    if (model.type == ModelType::kProgram) model = ModelOf(LlamaProgram(LlamaShape()));
    const ModelFamily& family = FamilyOf(model.type);
    const absl::StatusOr<ModelSpec> read = family.Parse(ModelToJson(model), family.file());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->type, model.type);
    EXPECT_TRUE(ValidateModel(model).ok());
    EXPECT_TRUE(hf_types.insert(FamilyOf(model.type).hf_type()).second);
  }
}

TEST(ParseModel, NamesTheFileAndTheField) {
  const struct {
    const char* json;
    const char* message;
  } cases[] = {
      {"[1]", "c.json: expected a JSON object"},
      {"{\"model_type\": \"bert\"}", "model.path: c.json has the model_type \"bert\""},
      {"{\"model_type\": \"\"}",
       "`eps model export FOLDER --out=DIR` makes a folder with eps/program.json"},
      {"{\"model_type\": 5}", "c.json: model.path: config.json field model_type"},
      {"{\"model_type\": \"eps-synthetic\", \"width\": 3}", "c.json: width: eps-synthetic has"},
      {"{\"model_type\": \"eps-synthetic\", \"n_layer\": -3}", "c.json: n_layer: eps-synthetic"},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParseModel(c.json, "c.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.json;
    EXPECT_TRUE(absl::StrContains(status.message(), c.message)) << status;
  }
}

TEST(Gpt2Family, CountsAsTheFormulasDo) {
  const ModelSpec model = Gpt2Small();
  const ModelFamily& family = FamilyOf(model.type);
  EXPECT_EQ(family.ForwardFlops(model, {0, 14, 0, 8}), 0);
  EXPECT_EQ(family.ForwardFlops(model, {1, 14, 0, 8}), BlockForwardFlops(8, 768, 3072));
  EXPECT_EQ(family.ForwardFlops(model, {13, 14, 0, 8}), HeadForwardFlops(8, 768, 50257));
  EXPECT_EQ(family.ActivationBytes(model, {0, 14, 0, 8}), 0);
  EXPECT_EQ(family.ActivationBytes(model, {1, 14, 0, 8}), BlockActivationBytes(8, 768, 12));
  EXPECT_EQ(family.ActivationBytes(model, {13, 14, 0, 8}), HeadActivationBytes(8, 50257));
  EXPECT_EQ(BlockForwardFlops(2, 3, 12), 4 * 2 * 3 * 12 + 8 * 2 * 9 + 4 * 4 * 3);
  EXPECT_EQ(HeadForwardFlops(2, 3, 5), 2 * 2 * 3 * 5);
  EXPECT_EQ(BlockActivationBytes(2, 3, 4), 4 * 2 * (17 * 3 + 2.5 * 4 * 2));
  EXPECT_EQ(HeadActivationBytes(2, 5), 4 * 3 * 2 * 5);
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
