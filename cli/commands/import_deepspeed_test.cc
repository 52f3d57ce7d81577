#include "cli/commands/import_deepspeed.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config/config.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

std::string Yaml(const std::string& json) {
  const absl::StatusOr<std::string> yaml = ImportDeepSpeed(json, "ds.json");
  EXPECT_TRUE(yaml.ok()) << yaml.status();
  return yaml.ok() ? *yaml : "";
}

Config Imported(const std::string& json) {
  Config config;
  const absl::Status status = config.MergeYaml(Yaml(json), "yaml");
  EXPECT_TRUE(status.ok()) << status;
  return config;
}

// Returns the line about `what`; empty if there is none.
std::string LineOf(const std::string& yaml, const std::string& what) {
  const size_t at = yaml.find(what);
  if (at == std::string::npos) return "";
  const size_t begin = yaml.rfind('\n', at) + 1;
  return yaml.substr(begin, yaml.find('\n', at) - begin);
}

TEST(ImportDeepSpeedTest, TranslatesKeysOfTheSameMeaning) {
  const Config config = Imported(R"({
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5, "steps_per_print": 20,
    "optimizer": {"type": "AdamW",
                  "params": {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 3e-2}},
    "scheduler": {"type": "WarmupDecayLR",
                  "params": {"total_num_steps": 5000, "warmup_num_steps": 100, "warmup_min_lr": 0,
                             "warmup_max_lr": 3e-4, "warmup_type": "linear"}},
    "tensorboard": {"enabled": false},
    "wandb": {"enabled": true, "project": "mine"}})");
  EXPECT_EQ(config.training.train_batch_size, 64u);
  EXPECT_EQ(config.training.micro_batch_size, 4u);
  EXPECT_EQ(config.training.micro_batches, 2u);
  EXPECT_EQ(config.training.parts, 8u);
  EXPECT_EQ(config.training.clip, Clip::kExact);
  EXPECT_EQ(config.training.max_grad_norm, 0.5);
  EXPECT_EQ(config.training.steps, 5000u);
  EXPECT_EQ(config.metrics.log_every_steps, 20u);
  EXPECT_FALSE(config.metrics.tensorboard);
  EXPECT_TRUE(config.metrics.wandb);
  EXPECT_EQ(config.optimizer.name, OptimizerName::kAdamW);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.optimizer.eps, 1e-7);
  EXPECT_EQ(config.optimizer.weight_decay, 3e-2);
  EXPECT_EQ(config.lr_scheduler.name, "linear");
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 100u);
}

TEST(ImportDeepSpeedTest, ExplainsDifferentDefaultsOfDeepSpeed) {
  const Config config = Imported(R"({"optimizer": {"type": "Adam", "params": {"lr": 0.1}}})");
  EXPECT_EQ(config.training.clip, Clip::kNone);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0);
  EXPECT_EQ(config.optimizer.name, OptimizerName::kAdamW);
  EXPECT_EQ(config.lr_scheduler.name, "constant");
}

TEST(ImportDeepSpeedTest, KnowsTheOtherOptimizerAndSchedules) {
  Config config = Imported(R"({
    "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}},
    "scheduler": {"type": "WarmupLR",
                  "params": {"warmup_max_lr": 0.1, "warmup_type": "linear"}}})");
  EXPECT_EQ(config.optimizer.name, OptimizerName::kSgd);
  EXPECT_EQ(config.optimizer.momentum, 0.9);
  EXPECT_EQ(config.optimizer.weight_decay, 1e-4);
  EXPECT_EQ(config.lr_scheduler.name, "constant_with_warmup");
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 1000u);
  config = Imported(R"({"scheduler": {"type": "WarmupCosineLR",
    "params": {"total_num_steps": 1e4, "warmup_num_steps": 10, "cos_min_ratio": 0.05}}})");
  EXPECT_EQ(config.lr_scheduler.name, "cosine_with_min_lr");
  EXPECT_EQ(config.lr_scheduler.min_lr_ratio, 0.05);
  EXPECT_EQ(config.training.steps, 10'000u);
  // If the optimizer has no rate, the schedule's peak is used.
  config = Imported(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.25}}})");
  EXPECT_EQ(config.optimizer.lr, 0.25);
}

TEST(ImportDeepSpeedTest, TranslatesEachOptimizerWithItsParameters) {
  Config config = Imported(R"({"optimizer": {"type": "Adam", "params": {
    "adam_w_mode": false, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.5}}})");
  EXPECT_EQ(config.optimizer.name, OptimizerName::kAdam);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.9);
  EXPECT_EQ(config.optimizer.eps, 1e-6);
  EXPECT_EQ(config.optimizer.weight_decay, 0.5);
  // DeepSpeed ignores the mode of AdamW, and the case of names.
  config = Imported(R"({"optimizer": {"type": "adamw", "params": {"adam_w_mode": false}}})");
  EXPECT_EQ(config.optimizer.name, OptimizerName::kAdamW);
  config = Imported(R"({"optimizer": {"type": "SGD", "params": {
    "momentum": 0.5, "dampening": 0, "nesterov": true}}})");
  EXPECT_EQ(config.optimizer.name, OptimizerName::kSgd);
  EXPECT_EQ(config.optimizer.momentum, 0.5);
  EXPECT_EQ(config.optimizer.dampening, 0);
  EXPECT_EQ(config.optimizer.nesterov, true);
  config = Imported(R"({"optimizer": {"type": "Adagrad", "params": {
    "lr_decay": 0.25, "eps": 1e-9}}})");
  EXPECT_EQ(config.optimizer.name, OptimizerName::kAdagrad);
  EXPECT_EQ(config.optimizer.lr_decay, 0.25);
  EXPECT_EQ(config.optimizer.eps, 1e-9);
  config = Imported(R"({"optimizer": {"type": "Lion", "params": {"betas": [0.95, 0.98]}}})");
  EXPECT_EQ(config.optimizer.name, OptimizerName::kLion);
  EXPECT_EQ(config.optimizer.beta2, 0.98);
  config = Imported(R"({"optimizer": {"type": "Lion", "params": {}}})");
  EXPECT_FALSE(config.optimizer.beta2.has_value());
}

TEST(ImportDeepSpeedTest, ListsEachKeyWithoutEquivalentAndWhy) {
  const std::string yaml = Yaml(R"({
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/n"}},
    "bf16": {"enabled": true}, "fp16": {"enabled": "auto"}, "wall_clock_breakdown": false,
    "no_such_key": [1, 2], "gradient_accumulation_steps": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "foo": 1, "adam_w_mode": true}},
    "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1}}})");
  const struct {
    const char* key;
    const char* why;
  } lines[] = {
      {"# zero_optimization", "on the servers"},
      {"#   stage: 3", ""},
      {"#   offload_param.device: \"nvme\"", ""},
      {"# bf16", "training.precision=bf16"},
      {"# fp16", "loss scale"},
      {"# wall_clock_breakdown: false", "--report"},
      {"# no_such_key: [1,2]", "not a key that is known"},
      {"# gradient_accumulation_steps: \"auto\"", "Trainer"},
      {"# optimizer.params.lr: \"auto\"", "Trainer"},
      {"# optimizer.params.foo: 1", "not supported"},
      {"# scheduler.type: \"OneCycle\"", "lr_scheduler.name"},
      {"# scheduler.params.cycle_min_lr: 1", "not supported"},
      {"# The number of GPUs", "training.parts"},
  };
  for (const auto& line : lines) {
    EXPECT_TRUE(absl::StrContains(LineOf(yaml, line.key), line.why)) << line.key << " in " << yaml;
    EXPECT_NE(LineOf(yaml, line.key), "") << line.key << " in " << yaml;
  }
  EXPECT_FALSE(absl::StrContains(yaml, "adam_w_mode")) << "AdamW is what it says";
  const Config config = Imported(R"({"gradient_clipping": "auto"})");
  EXPECT_EQ(config.training.clip, Config().training.clip);
}

TEST(ImportDeepSpeedTest, ReportsSettingsThatChangeTheUpdate) {
  for (const auto& [json, text] : std::vector<std::pair<std::string, std::string>>{
           {R"({"optimizer": {"type": "Adam", "params": {"bias_correction": false}}})",
            "always corrected"},
           {R"({"optimizer": {"type": "AdamW", "params": {"amsgrad": true}}})", "amsgrad"},
           {R"({"optimizer": {"type": "Adagrad", "params": {"initial_accumulator_value": 1}}})",
            "initial_accumulator_value: 1  -- not supported"},
           {R"({"optimizer": {"type": "Lamb", "params": {"lr": 1}}})", "adamw, sgd, adam, adagrad"},
           {R"({"optimizer": {"type": "Muon", "params": {"lr": 1}}})",
            "not supported as it is there"},
           {R"({"scheduler": {"type": "WarmupLR", "params": {}}})", "the warm-up is linear"},
           {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-5}}})",
            "begins at 0"},
       }) {
    EXPECT_TRUE(absl::StrContains(Yaml(json), text)) << text << " in " << Yaml(json);
  }
}

TEST(ImportDeepSpeedTest, RefusesMalformedConfigurations) {
  const std::string deep(100'000, '[');
  const std::pair<std::string, std::string> cases[] = {
      {"", "one JSON object"},
      {"[1]", "one JSON object"},
      {"{", "one JSON object"},
      {"{\"a\": 1e999}", "one JSON object"},
      {"{\"a\": \"\xff\"}", "one JSON object"},
      {"{\"a\": " + deep + "}", "levels deep"},
      {"{\"a\": \"" + std::string(2 << 20, 'x') + "\"}", "bytes"},
      {R"({"train_batch_size": 8, "train_batch_size": 16})", "train_batch_size appears twice"},
      {R"({"optimizer": {"type": "SGD", "params": {"lr": 1, "lr": 2}}})", "lr appears twice"},
      {R"({"train_batch_size": -1})", "train_batch_size: expected a whole number"},
      {R"({"train_batch_size": 1.5})", "train_batch_size"},
      {R"({"train_batch_size": "8"})", "train_batch_size"},
      {R"({"train_batch_size": 1e30})", "train_batch_size"},
      {R"({"gradient_clipping": -1})", "gradient_clipping"},
      {R"({"optimizer": "AdamW"})", "optimizer"},
      {R"({"optimizer": {"params": {}}})", "optimizer.type"},
      {R"({"optimizer": {"type": "AdamW", "params": []}})", "optimizer.params"},
      {R"({"optimizer": {"type": "AdamW", "params": {"lr": "fast"}}})", "optimizer.params.lr"},
      {R"({"optimizer": {"type": "AdamW", "params": {"betas": [1]}}})", "two numbers"},
      {R"({"optimizer": {"type": "AdamW", "params": {"betas": [1, "x"]}}})", "two numbers"},
      {R"({"optimizer": {"type": "AdamW", "params": {"eps": "small"}}})", "expected a number"},
      {R"({"optimizer": {"type": "SGD", "params": {"nesterov": 1}}})", "true or false"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1.5}}})",
       "warmup_num_steps"},
      {R"({"tensorboard": true})", "tensorboard"},
      {R"({"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2})", "not a multiple"},
      {R"({"optimizer": {"type": "SGD", "params": {"lr": 1}},
           "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 2}}})",
       "make them equal"},
  };
  for (const auto& [json, text] : cases) {
    const absl::Status status = ImportDeepSpeed(json, "ds.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json.substr(0, 100);
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "ds.json")) << status;
    EXPECT_LT(status.message().size(), 400u);
  }
}

TEST(ImportDeepSpeedTest, NoValueCanEndAComment) {
  for (const std::string text :
       {"\\ntraining:\\n  steps: 7", "\\r\\ntraining: {steps: 7}", "\\u2028steps", "\\u0085a"}) {
    const std::string json =
        absl::StrCat("{\"x\": \"", text, "\", \"", text, "\": 1, \"bf16\": {\"", text,
                     "\": {\"a\": \"", text, "\"}}}");
    const std::string yaml = Yaml(json);
    EXPECT_EQ(Imported(json).training.steps, Config().training.steps) << yaml;
    for (const char c : yaml) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << yaml;
  }
}

}  // namespace
}  // namespace eps
