#include "base/config/spec_builder.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/optimizers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

const char kSha256[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr uint64_t kTokens = 100'000;

DataSpec DataOf(uint64_t tokens) {
  DataSpec data;
  data.tokens = tokens;
  data.sha256 = kSha256;
  return data;
}
const DataSpec kData = DataOf(kTokens);

Config EagerConfig() {
  Config config;
  config.training.clip = Clip::kLagged;
  return config;
}

absl::StatusOr<JobSpec> Build(const Config& config, uint64_t tokens = kTokens) {
  DataSpec data = kData;
  data.tokens = tokens;
  return BuildJobSpec(config, ModelSpec(), data, /*workers=*/2);
}

TEST(BuildJobSpec, TakesEveryValueFromTheConfiguration) {
  Config config = EagerConfig();
  config.data.order = DataOrder::kSequential;
  config.training.steps = 7;
  config.training.micro_batch_size = 3;
  config.training.micro_batches = 5;
  config.training.parts = 4;
  config.training.train_batch_size = 60;
  config.training.seq_len = 128;
  config.training.seed = 9;
  config.training.max_grad_norm = 0.5;
  config.training.determinism = Determinism::kRelaxed;
  config.training.loss_block_tokens = 99;
  config.training.chunk_elements = 12'345;
  config.optimizer.lr = 0.25;
  config.optimizer.beta1 = 0.8;
  config.optimizer.beta2 = 0.95;
  config.optimizer.eps = 1e-6;
  config.optimizer.weight_decay = 0.125;
  config.lr_scheduler.name = "polynomial";
  config.lr_scheduler.warmup_steps = 11;
  config.lr_scheduler.min_lr_ratio = 0.1;
  config.lr_scheduler.num_cycles = 2;
  config.lr_scheduler.power = 3;
  config.quantization.weights = "bf16";
  config.quantization.gradients = "fp8:e5m2";
  const absl::StatusOr<JobSpec> spec = Build(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::string text = spec->ToText();
  for (const char* line : {"optimizer.name = adamw",
                           "optimizer.lr = 0.25",
                           "optimizer.beta1 = 0.8",
                           "optimizer.beta2 = 0.95",
                           "optimizer.eps = 1e-06",
                           "lr_scheduler.name = polynomial",
                           "lr_scheduler.warmup_steps = 11",
                           "lr_scheduler.min_lr_ratio = 0.1",
                           "lr_scheduler.num_cycles = 2",
                           "lr_scheduler.power = 3",
                           "training.steps = 7",
                           "training.micro_batch_size = 3",
                           "training.micro_batches = 5",
                           "training.parts = 4",
                           "training.seq_len = 128",
                           "training.seed = 9",
                           "training.mode = eager",
                           "training.clip = lagged",
                           "training.max_grad_norm = 0.5",
                           "training.replay = rollback",
                           "training.determinism = relaxed",
                           "training.loss_block_tokens = 99",
                           "training.chunk_elements = 12345",
                           "data.order = sequential",
                           "data.tokens = 100000",
                           "quantization.weights = bf16",
                           "quantization.gradients = fp8:e5m2",
                           "group.0 = decay 0.125",
                           "group.1 = no_decay 0"}) {
    EXPECT_TRUE(absl::StrContains(text, absl::StrCat("\n", line, "\n"))) << line;
  }
  EXPECT_TRUE(absl::StrContains(text, kSha256));
}

// Returns the line of the group that a tensor of the spec belongs to.
std::string GroupOf(const JobSpec& spec, absl::string_view name) {
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.name != name) continue;
    const ParameterGroup& group = spec.groups[tensor.group.value()];
    return absl::StrCat(group.name, " ", group.weight_decay, " ", group.lr_multiplier);
  }
  return "no such tensor";
}

TEST(BuildJobSpec, TheFirstMatchingRuleApplies) {
  Config config = EagerConfig();
  config.optimizer.weight_decay = 0.5;
  ASSERT_TRUE(config
                  .MergeYaml("optimizer:\n  groups:\n"
                             "    - {match: 'h\\.[01]\\.', lr_multiplier: 0.25}\n"
                             "    - match: 'attn|wpe'\n      weight_decay: 2\n",
                             "a.yaml")
                  .ok());
  const absl::StatusOr<JobSpec> spec = Build(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto group = [&](const char* name) {
    return GroupOf(*spec, absl::StrCat("transformer.", name));
  };
  EXPECT_EQ(group("h.1.attn.c_attn.weight"), "groups.0.decay 0.5 0.25");
  EXPECT_EQ(group("h.0.attn.c_attn.bias"), "groups.0.no_decay 0 0.25");
  EXPECT_EQ(group("h.2.attn.c_attn.weight"), "groups.1.decay 2 1");
  EXPECT_EQ(group("h.2.attn.c_attn.bias"), "groups.1.no_decay 0 1") << "vectors are not decayed";
  EXPECT_EQ(group("wpe.weight"), "groups.1.decay 2 1");
  EXPECT_EQ(group("h.2.mlp.c_fc.weight"), "decay 0.5 1");
  const absl::StatusOr<JobSpec> read = JobSpec::Parse(spec->ToText());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(GroupOf(*read, "transformer.h.1.ln_1.weight"), "groups.0.no_decay 0 0.25");
}

TEST(BuildJobSpec, FreezesTheTensorsOfARule) {
  Config config = EagerConfig();
  config.optimizer.weight_decay = 0.5;
  ASSERT_TRUE(config.Set("optimizer.groups", "[{match: 'h\\.0\\.', frozen: true}]").ok());
  const absl::StatusOr<JobSpec> spec = Build(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(absl::StrContains(spec->ToText(), " = groups.0.decay 0 frozen\n"));
  const absl::StatusOr<JobSpec> read = JobSpec::Parse(spec->ToText());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ToText(), spec->ToText());
  for (uint32_t t = 0; t < read->tensors.size(); ++t) {
    EXPECT_EQ(read->IsFrozen(TensorId(t)), absl::StrContains(read->tensors[t].name, ".h.0."));
  }
  EXPECT_EQ(read->LowestTrainableStage(), StageId(0));
}

TEST(BuildJobSpec, RefusesRulesThatFindNothing) {
  const std::pair<const char*, const char*> cases[] = {
      {"[{match: 'lm_heed'}]", "rule 0, match \"lm_heed\": no tensor has such a name"},
      {"[{match: wte}, {match: 'wte\\.weight'}]",
       "rule 1, match \"wte\\.weight\": all its tensors"},
      {"[{match: 'a('}]", "rule 0, match \"a(\": not a regular expression"},
      {"[{match: wte, lr_multiplier: -1}]", "lr_multiplier"},
      {"[{match: wte, weight_decay: -1}]", "weight_decay"},
      {"[{match: wte, frozen: true, lr_multiplier: 2}]", "frozen tensors have no lr_multiplier"},
      {"[{match: '.', frozen: true}]", "all tensors of the model are frozen"}};
  for (const auto& [groups, message] : cases) {
    Config config = EagerConfig();
    ASSERT_TRUE(config.Set("optimizer.groups", groups).ok()) << groups;
    const absl::Status status = Build(config).status();
    EXPECT_TRUE(absl::StrContains(status.message(), message)) << groups << ": " << status;
  }
}

TEST(BuildJobSpec, RefusesAModelWithoutItsAdapters) {
  Config config = EagerConfig();
  config.lora.r = 4;
  const absl::Status status = Build(config).status();
  EXPECT_TRUE(
      absl::StrContains(status.message(),
                        "lora.r: expected a model with adapters of r 4, alpha 8, dropout 0, found "
                        "none"))
      << status;
}

TEST(BuildJobSpec, FillsOpenSettingsFromModelAndWorkers) {
  const absl::StatusOr<JobSpec> spec = Build(EagerConfig());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training.parts, 2u);
  EXPECT_EQ(spec->training.seq_len, 256u);
  EXPECT_EQ(spec->chunk_elements, 65536u);
  EXPECT_TRUE(spec->Validate().ok());
  EXPECT_TRUE(JobSpec::Parse(spec->ToText()).ok());
}

TEST(BuildJobSpec, PartsMakeItIndependentOfTheWorkers) {
  Config config = EagerConfig();
  config.training.parts = 4;
  const absl::StatusOr<JobSpec> two = BuildJobSpec(config, ModelSpec(), kData, 2);
  const absl::StatusOr<JobSpec> four = BuildJobSpec(config, ModelSpec(), kData, 4);
  EXPECT_EQ(two->Digest(), four->Digest());
}

TEST(BuildJobSpec, TheBatchEquationNamesAllFourNumbers) {
  Config config = EagerConfig();
  config.training.micro_batch_size = 3;
  config.training.micro_batches = 5;
  config.training.parts = 4;
  config.training.train_batch_size = 61;
  const absl::Status status = Build(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "training.train_batch_size = 61")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "3 * 5 * 4 = 60")) << status;
}

TEST(BuildJobSpec, RefusesTooLittleData) {
  const absl::Status status = Build(EagerConfig(), 256).status();
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "data.path: 256 tokens, a sample needs training.seq_len+1 = 257"))
      << status;
  EXPECT_TRUE(Build(EagerConfig(), 257).ok());
}

TEST(BuildJobSpec, DefaultsToExactClippingAndSealedMode) {
  const absl::StatusOr<JobSpec> spec = Build(Config());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training.clip, Clip::kExact);
  EXPECT_EQ(spec->training.mode, Mode::kSealed);
}

TEST(BuildJobSpec, TheDefaultScheduleIsHuggingFaces) {
  const absl::StatusOr<JobSpec> spec = Build(Config());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training.steps, 100u);
  EXPECT_EQ(spec->schedule.name, "linear");
  EXPECT_EQ(spec->schedule.warmup_steps, 0u);
}

TEST(BuildJobSpec, GivenWeightsLearnSlower) {
  Config config;
  EXPECT_EQ(Build(config)->optimizer.lr, 1e-3);
  const auto given = [&config] {
    return BuildJobSpec(config, ModelSpec(), kData, /*workers=*/2, StartWeights::kGiven)
        ->optimizer.lr;
  };
  EXPECT_EQ(given(), 5e-5);
  config.optimizer.lr = 0.25;
  EXPECT_EQ(given(), 0.25);
}

TEST(BuildJobSpec, EpochsBecomeStepsThatUseEverySample) {
  // 390 samples, 8 in a step.
  const struct {
    double epochs;
    uint64_t steps;
  } cases[] = {{1, 49}, {2, 98}, {0.5, 25}, {16, 780}, {1e-6, 1}};
  for (const auto& c : cases) {
    Config config;
    config.training.epochs = c.epochs;
    const absl::StatusOr<JobSpec> spec = Build(config);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->training.steps, c.steps) << c.epochs;
  }
  Config config;
  config.training.epochs = 1e6;
  const absl::Status status = Build(config, uint64_t{1} << 40).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "training.epochs = 1e+06 takes")) << status;
}

TEST(BuildJobSpec, AnEpochIsAllRows) {
  Config config;
  config.training.epochs = 2;
  DataSpec data = kData;
  data.samples = 10;  // 8 in a step
  const absl::StatusOr<JobSpec> spec = BuildJobSpec(config, ModelSpec(), data, /*workers=*/2);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training.steps, 3u);
  EXPECT_EQ(spec->data.samples, 10u);
}

TEST(BuildJobSpec, TheWarmupRatioRoundsUp) {
  const struct {
    double ratio;
    uint64_t steps;
  } cases[] = {{0, 0}, {0.07, 7}, {0.071, 8}, {1e-6, 1}, {1, 100}};
  for (const auto& c : cases) {
    Config config;
    config.lr_scheduler.warmup_ratio = c.ratio;
    const absl::StatusOr<JobSpec> spec = Build(config);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->schedule.warmup_steps, c.steps) << c.ratio;
  }
}

TEST(BuildJobSpec, WhatWasResolvedIsKept) {
  Config config;
  config.training.epochs = 2;
  config.lr_scheduler.warmup_ratio = 0.1;
  const absl::StatusOr<JobSpec> spec =
      BuildJobSpec(config, ModelSpec(), kData, /*workers=*/2, StartWeights::kGiven);
  ASSERT_TRUE(spec.ok()) << spec.status();
  KeepResolved(*spec, &config);
  // A later run has more workers, other data, and no weights.
  const absl::StatusOr<JobSpec> later =
      BuildJobSpec(config, ModelSpec(), DataOf(2 * kTokens), /*workers=*/3);
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(later->training.steps, spec->training.steps);
  EXPECT_EQ(later->training.parts, spec->training.parts);
  EXPECT_EQ(later->schedule.warmup_steps, spec->schedule.warmup_steps);
  EXPECT_EQ(later->optimizer.lr, spec->optimizer.lr);
}

TEST(BuildJobSpec, TopkScopeIsPartOfTheJob) {
  Config config = EagerConfig();
  config.quantization.gradients = "topk:0.01";
  const absl::StatusOr<JobSpec> of_chunks = Build(config);
  config.quantization.scope = TopkScope::kTensor;
  config.quantization.index = TopkIndex::kRaw32;
  const absl::StatusOr<JobSpec> of_tensors = Build(config);
  ASSERT_TRUE(of_chunks.ok() && of_tensors.ok()) << of_tensors.status();
  EXPECT_EQ(of_chunks->codecs.gradients, "topk:0.01");
  EXPECT_EQ(of_tensors->codecs.gradients, "topk:0.01:raw32:tensor");
  EXPECT_EQ(of_tensors->codecs.head.gradients, "bf16");
  const absl::StatusOr<JobSpec> again = JobSpec::Parse(of_tensors->ToText());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->Digest(), of_tensors->Digest());
  EXPECT_NE(again->Digest(), of_chunks->Digest());
}

TEST(BuildJobSpec, TopkValuesArePartOfTheName) {
  Config config = EagerConfig();
  config.quantization.weights = "mx6";
  config.quantization.gradients = "topk:0.01";
  config.quantization.embedding.gradients = "topk:0.1:sampled";  // has its parameters
  config.quantization.values = TopkValues::kFp32;
  const absl::StatusOr<JobSpec> alone = Build(config);
  config.quantization.index = TopkIndex::kRaw32;
  config.quantization.scope = TopkScope::kTensor;
  const absl::StatusOr<JobSpec> with_all = Build(config);
  ASSERT_TRUE(alone.ok() && with_all.ok()) << alone.status() << with_all.status();
  EXPECT_EQ(alone->codecs.gradients, "topk:0.01:fp32");
  EXPECT_EQ(alone->codecs.weights, "mx6");
  EXPECT_EQ(alone->codecs.embedding.gradients, "topk:0.1:sampled");
  EXPECT_EQ(with_all->codecs.gradients, "topk:0.01:raw32:fp32:tensor");
}

TEST(BuildJobSpec, OpenParametersFollowTheOptimizer) {
  Config config = EagerConfig();
  config.optimizer.name = OptimizerName::kLion;
  absl::StatusOr<JobSpec> spec = Build(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->optimizer.beta2, 0.99);
  config.optimizer.beta2 = 0.999;
  spec = Build(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->optimizer.beta2, 0.999);
  config.optimizer = OptimizerConfig();
  config.optimizer.name = OptimizerName::kAdagrad;
  spec = Build(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->optimizer.eps, 1e-10);
  KeepResolved(*spec, &config);
  EXPECT_EQ(config.optimizer.eps, 1e-10);
  EXPECT_FALSE(config.optimizer.beta1.has_value());
  const absl::StatusOr<JobSpec> again = Build(config);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->Digest(), spec->Digest());
}

// Configurations printed before there were open parameters hold those of both optimizers.
TEST(BuildJobSpec, ReadsPrintedConfigurationsWithAllParameters) {
  const std::string printed = "  betas: [0.9, 0.999]\n  eps: 1e-08\n  momentum: 0\n";
  for (const char* name : {"adamw", "sgd"}) {
    Config config = EagerConfig();
    config.optimizer.name =
        std::string(name) == "sgd" ? OptimizerName::kSgd : OptimizerName::kAdamW;
    const absl::StatusOr<JobSpec> spec = Build(config);
    const absl::Status read =
        config.MergeYaml(absl::StrCat("optimizer:\n  name: ", name, "\n", printed), "printed");
    ASSERT_TRUE(read.ok()) << read;
    const absl::StatusOr<JobSpec> again = Build(config);
    ASSERT_TRUE(spec.ok() && again.ok()) << again.status();
    EXPECT_EQ(again->Digest(), spec->Digest());
  }
}

TEST(BuildJobSpec, RefusesParametersThatTheRuleLacks) {
  Config config = EagerConfig();
  config.optimizer.name = OptimizerName::kAdagrad;
  config.optimizer.momentum = 0.9;
  absl::Status status = Build(config).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "adagrad has optimizer.eps, optimizer.lr_decay"))
      << status;
  config = EagerConfig();
  config.optimizer.name = OptimizerName::kSgd;
  config.optimizer.nesterov = true;
  status = Build(config).status();
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "optimizer.nesterov: expected optimizer.momentum above 0"))
      << status;
}

TEST(BuildJobSpec, NamesTheKeyOfEveryBadValue) {
  const struct {
    std::function<void(Config*)> change;
    const char* message;
  } cases[] = {
      {[](Config* c) { c->optimizer.momentum = 0.9; }, "optimizer.momentum is a setting of opt"},
      {[](Config* c) {
         c->optimizer.name = OptimizerName::kSgd;
         c->optimizer.eps = 1e-6;
       },
       "optimizer.eps is a setting of optimizer.name=adamw"},
      {[](Config* c) {
         c->optimizer.name = OptimizerName::kSgd;
         c->optimizer.beta2 = 0.99;
       },
       "optimizer.betas is a setting of optimizer.name=adamw"},
      {[](Config* c) {
         c->optimizer.name = OptimizerName::kSgd;
         c->optimizer.momentum = 1.0;
       },
       "optimizer.momentum"},
      {[](Config* c) { c->optimizer.beta2 = 1.0; }, "optimizer.beta2"},
      {[](Config* c) { c->optimizer.weight_decay = -1; }, "optimizer.weight_decay"},
      {[](Config* c) { c->lr_scheduler.name = "cosin"; }, "lr_scheduler.name: 'cosin'"},
      {[](Config* c) {
         c->training.mode = Mode::kEager;
         c->training.nonfinite = Nonfinite::kSkip;
       },
       "training.mode=eager and training.nonfinite=skip exclude"},
      {[](Config* c) {
         c->training.steps = 5;
         c->training.epochs = 2;
       },
       "training.steps = 5 and training.epochs = 2 give the same setting"},
      {[](Config* c) {
         c->lr_scheduler.warmup_steps = 5;
         c->lr_scheduler.warmup_ratio = 0.1;
       },
       "lr_scheduler.warmup_steps = 5 and lr_scheduler.warmup_ratio = 0.1 give the same setting"},
      {[](Config* c) {
         c->lr_scheduler.name = "constant";
         c->lr_scheduler.warmup_ratio = 0.1;
       },
       "lr_scheduler.name=constant has no warm-up; use constant_with_warmup"},
      {[](Config* c) { c->lr_scheduler.warmup_ratio = 1.5; },
       "lr_scheduler.warmup_ratio: expected"},
      {[](Config* c) { c->lr_scheduler.warmup_ratio = -1; }, "lr_scheduler.warmup_ratio: expected"},
      {[](Config* c) { c->training.epochs = -1; }, "training.epochs: expected"},
      {[](Config* c) { c->training.seq_len = 257; }, "training.seq_len: expected at most"},
      {[](Config* c) { c->training.steps = 0; }, "training.steps"},
      {[](Config* c) { c->training.parts = 1025; }, "training.parts: expected 1 to 1024"},
      {[](Config* c) { c->quantization.weights = "fp 8"; }, "quantization.weights"},
      {[](Config* c) {
         c->quantization.scope = TopkScope::kTensor;
         c->quantization.selection = TopkSelection::kSampled;
       },
       "quantization.selection=sampled and quantization.scope=tensor exclude"},
  };
  for (const auto& c : cases) {
    Config config = EagerConfig();
    c.change(&config);
    const absl::Status status = Build(config).status();
    EXPECT_TRUE(absl::StrContains(status.message(), c.message))
        << status << "\nexpected " << c.message;
  }
}

}  // namespace
}  // namespace eps
