#include "cli/launch/plan.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/checksum.h"
#include "base/config/model_folder.h"
#include "base/job/models/model_family.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/workload.h"
#include "worker/data/testing/write_data_file.h"

namespace eps {
namespace {

std::string WriteTemp(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + "/" + name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

RunConfig Synthetic() {
  RunConfig run;
  run.config.model.path =
      WriteTemp("synthetic/config.json",
                R"({"model_type": "eps-synthetic", "n_layer": 3, "n_embd": 32, "tied": true})");
  run.config.training.clip = Clip::kNone;
  return run;
}

TEST(PlanTest, ASyntheticModelNeedsNoData) {
  const auto plan = MakePlan(Synthetic());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.model.type, ModelType::kSynthetic);
  EXPECT_EQ(plan->spec.model.synthetic.n_embd, 32);
  EXPECT_EQ(plan->config.training.parts, 1u);
  const auto again = ParseModel(ModelToJson(plan->spec.model), "again");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->synthetic.n_layer, 3);
  EXPECT_TRUE(again->synthetic.tied);
}

TEST(PlanTest, TheModelIsAFolderOrFile) {
  RunConfig run = Synthetic();
  const auto by_file = MakePlan(run);
  run.config.model.path = testing::TempDir() + "/synthetic";
  const auto by_folder = MakePlan(run);
  ASSERT_TRUE(by_file.ok() && by_folder.ok()) << by_folder.status();
  EXPECT_EQ(by_file->spec.ToText(), by_folder->spec.ToText());
  EXPECT_EQ(by_folder->initial_weights, "");
  WriteTemp("synthetic/model.safetensors", "");
  const auto with_weights = MakePlan(run);
  EXPECT_EQ(with_weights->initial_weights, testing::TempDir() + "/synthetic/model.safetensors");
  EXPECT_EQ(with_weights->config.optimizer.lr, 5e-5);
  EXPECT_EQ(by_folder->config.optimizer.lr, 1e-3);
  std::filesystem::remove(testing::TempDir() + "/synthetic/model.safetensors");
}

TEST(PlanTest, BestAndEarlyStopNeedEvaluations) {
  const auto refusal = [](const std::function<void(Config*)>& change) {
    RunConfig run = Synthetic();
    change(&run.config);
    return MakePlan(run).status();
  };
  const auto evaluate = [](Config* config) {
    config->training.eval_steps = 4;
    config->training.eval_samples = 3;
  };
  EXPECT_TRUE(
      absl::StrContains(refusal([](Config* c) { c->training.early_stop_patience = 2; }).message(),
                        "training.early_stop_patience compares evaluations, and the run has none"));
  EXPECT_TRUE(
      absl::StrContains(refusal([](Config* c) { c->checkpoint.save_best = true; }).message(),
                        "checkpoint.save_best compares evaluations"));
  EXPECT_TRUE(absl::StrContains(refusal([&](Config* c) {
                                  evaluate(c);
                                  c->checkpoint.save_best = true;
                                }).message(),
                                "checkpoint.save_best needs checkpoint.dir"));
  EXPECT_TRUE(absl::StrContains(refusal([&](Config* c) {
                                  evaluate(c);
                                  c->checkpoint.dir = "out";
                                  c->checkpoint.save_steps = 6;
                                  c->checkpoint.save_best = true;
                                }).message(),
                                "checkpoint.save_steps, 6, is no multiple of training.eval_steps, "
                                "4"));
  EXPECT_TRUE(absl::StrContains(refusal([&](Config* c) {
                                  evaluate(c);
                                  c->eval.metrics = {Metric::kAccuracy};
                                }).message(),
                                "eval.metrics: the model has no accuracy; it has loss"));
  // Without a request, steps that are not evaluated are no mistake.
  const absl::Status open = refusal([&](Config* c) {
    evaluate(c);
    c->checkpoint.dir = "out";
    c->checkpoint.save_steps = 6;
    c->training.early_stop_patience = 1;
  });
  EXPECT_TRUE(open.ok()) << open;
}

TEST(PlanTest, WorkersAreTheDefaultOfParts) {
  RunConfig run = Synthetic();
  run.config.worker.count = 3;
  const auto plan = MakePlan(run);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.training.parts, 3u);
}

TEST(PlanTest, AFolderOfDataListsRegularFiles) {
  WriteTemp("data/b/two.txt", "bb");
  WriteTemp("data/a/one.txt", "a");
  WriteTemp("data/c.txt", std::string(400, 'c'));
  RunConfig run;
  run.config.training.clip = Clip::kNone;
  run.config.data.path = {testing::TempDir() + "/data"};
  const auto plan = MakePlan(run);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->config.data.path.size(), 3u);
  EXPECT_TRUE(absl::EndsWith(plan->config.data.path[0], "a/one.txt"));
  EXPECT_TRUE(absl::EndsWith(plan->config.data.path[1], "b/two.txt"));
  EXPECT_EQ(plan->spec.data.tokens, 403u);
}

RunConfig Quickstart() {
  RunConfig run;
  run.quickstart = true;
  run.config.training.clip = Clip::kLagged;
  return run;
}

// Three rows of 32 tokens.
std::string RowsFile() {
  return DataFileBytes({{"kind", "rows"}, {"samples", 3}, {"seq_len", 32}, {"vocab_size", 256}},
                       {{"tokens", "u16", ColumnBytes(std::vector<uint16_t>(96, 7))},
                        {"lengths", "u32", ColumnBytes<uint32_t>({32, 5, 9})}});
}

TEST(PlanTest, RowsGiveTheirLengthToTheJob) {
  RunConfig run;
  run.config.training.clip = Clip::kNone;
  run.config.data.path = {WriteTemp("rows.epsd", RowsFile())};
  const auto plan = MakePlan(run);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.training.seq_len, 32u);
  EXPECT_EQ(plan->spec.data.samples, 3u);
  EXPECT_EQ(plan->spec.data.tokens, 96u);
  EXPECT_TRUE(absl::StrContains(plan->spec.ToText(), "data.samples = 3\n"));
  run.config.training.seq_len = 32;
  EXPECT_TRUE(MakePlan(run).ok());
  run.config.training.seq_len = 64;
  const absl::Status status = MakePlan(run).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "training.seq_len is 64")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "have 32 tokens")) << status;
}

TEST(PlanTest, DataAndModelShareATokenizer) {
  const std::string content = "{\"version\": \"1.0\"}\n";
  WriteTemp("tokenized/tokenizer.json", content);
  const std::string digest =
      ToHex(Sha256Of(absl::StrCat(ToHex(Sha256Of(content)), "  tokenizer.json\n")));
  const std::string other(64, 'a');
  RunConfig run;
  run.config.training.clip = Clip::kNone;
  run.config.model.path =
      WriteTemp("tokenized/config.json",
                R"({"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 4,
          "vocab_size": 300})");
  const std::vector<uint32_t> tokens(40, 299);
  run.config.data.path = {WriteTemp("same.epsd", StreamFileBytes(tokens, 300, digest))};
  ASSERT_TRUE(MakePlan(run).ok()) << MakePlan(run).status();
  run.config.training.eval_steps = 1;
  run.config.data.eval_path = {WriteTemp("other.epsd", StreamFileBytes(tokens, 300, other))};
  const absl::Status held_out = MakePlan(run).status();
  run.config.data.path = run.config.data.eval_path;
  for (const absl::Status& status : {held_out, MakePlan(run).status()}) {
    EXPECT_TRUE(absl::StrContains(status.message(), digest)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), other)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "other.epsd")) << status;
  }
}

TEST(PlanTest, TheQuickstartModelMatchesItsPage) {
  const RunConfig run = Quickstart();
  const auto plan = MakePlan(run);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.model.gpt2.n_layer, 4);
  EXPECT_EQ(plan->spec.model.gpt2.n_embd, 128);
  EXPECT_EQ(plan->spec.stages.size(), 6u);
  EXPECT_EQ(plan->spec.training.mode, Mode::kEager);
  EXPECT_GT(plan->unigram_entropy, 2.0);
  const auto summary = PlanSummary(*plan, 2);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(absl::StrContains(*summary, "model: gpt2, 842,496 parameters, 6 stages")) << *summary;
  EXPECT_TRUE(absl::StrContains(*summary, "servers: 2, 9.6 MiB of state")) << *summary;
}

TEST(PlanTest, TheQuickstartEvaluatesOtherText) {
  const auto plan = MakePlan(Quickstart());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const DataConfig& data = plan->config.data;
  ASSERT_EQ(data.eval_path.size(), 1u);
  EXPECT_EQ(std::count(data.path.begin(), data.path.end(), data.eval_path[0]), 0);
  EXPECT_EQ(plan->config.training.eval_steps, plan->spec.training.steps / 4);
  EXPECT_EQ(plan->eval_samples, 64u);
}

TEST(PlanTest, EpochsNeedData) {
  RunConfig run = Quickstart();
  run.config.training.epochs = 2;
  const auto plan = MakePlan(run);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->config.training.steps, plan->spec.training.steps);
  EXPECT_EQ(plan->config.training.epochs, 0);
  EXPECT_EQ(plan->config.training.eval_steps, plan->spec.training.steps / 4);
  run = Synthetic();
  run.config.training.epochs = 2;
  const absl::Status status = MakePlan(run).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "training.epochs: a model of type")) << status;
}

TEST(PlanTest, OwnDataIsNotEvaluatedUnasked) {
  RunConfig run = Quickstart();
  run.config.data.path = {WriteTemp("own.txt", std::string(400, 'a'))};
  const auto plan = MakePlan(run);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->eval_samples, 0u);
  run = Quickstart();
  run.config.training.eval_steps = 7;
  EXPECT_FALSE(MakePlan(run).ok()) << "evaluations that were asked for need a data.eval_path";
}

TEST(PlanTest, WireBytesCountEveryPassAndPart) {
  RunConfig run = Synthetic();
  run.config.training.parts = 2;
  const auto plan = MakePlan(run);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // Three square layers of 32 and their biases; the last stage is fetched once.
  const double stage = 32 * 32 + 32;
  const auto bytes = planner::WorkloadOf(plan->spec);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(planner::FetchedBytes(*bytes, 1).value(), (2 * stage + 2 * stage + stage) * 4);
  EXPECT_EQ(planner::PushedBytes(*bytes).value(), 3 * stage * 4 * 2);
}

TEST(PlanTest, TheWorkersMemoryCountsSecondCopies) {
  RunConfig run = Synthetic();
  run.config.worker.prefetch = 1;
  const auto summary = [&run] {
    const auto plan = MakePlan(run);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? PlanSummary(*plan, 1).value_or("") : "";
  };
  // A gradient and two stages of weights, each a matrix of 32 x 32 and a bias.
  EXPECT_TRUE(absl::StrContains(summary(), "about 12.4 KiB of weights")) << summary();
  run.config.quantization.weights = "mx6";
  EXPECT_TRUE(absl::StrContains(summary(), "about 12.4 KiB of weights")) << summary();
  run.config.quantization.backward_weights = BackwardWeights::kBothAxes;
  EXPECT_TRUE(absl::StrContains(summary(), "about 20.4 KiB of weights")) << summary();
}

TEST(PlanTest, DataFilesBringTheMaskToken) {
  RunConfig run;
  run.config.training.clip = Clip::kNone;
  run.config.model.path = FolderOfModel(
      WriteTemp("masked/eps/program.json",
                absl::StrReplaceAll(LlamaProgram(LlamaShape()), {{"\"causal_lm\"", "\"mlm\""}})));
  run.config.data.path = {
      WriteTemp("plain.epsd", StreamFileBytes(std::vector<uint32_t>(1000, 3), 256))};
  const absl::Status status = MakePlan(run).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "data.mask_token")) << status;
  run.config.data.mask_token = 9;
  auto plan = MakePlan(run);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.data.mask_token, 9u);
  EXPECT_EQ(plan->unigram_entropy, 0) << "the loss of masked tokens has no such yardstick";
  run.config.data.mask_token.reset();
  nlohmann::json fields = {{"kind", "rows"}, {"samples", 3}, {"seq_len", 8}, {"vocab_size", 256}};
  fields["masking"] = {{"mask_token", 4}, {"special_tokens", {0, 4}}};
  const TestColumn tokens = {"tokens", "u16", ColumnBytes(std::vector<uint16_t>(24, 5))};
  run.config.data.path = {WriteTemp("masking.epsd", DataFileBytes(fields, {tokens}))};
  plan = MakePlan(run);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->config.data.mask_token, 4u);
  EXPECT_TRUE(absl::StrContains(plan->spec.ToText(), "data.mask_token = 4\n"));
  EXPECT_TRUE(absl::StrContains(plan->spec.ToText(), "data.special_tokens = 0 4\n"));
  EXPECT_TRUE(JobSpec::Parse(plan->spec.ToText()).ok());
  run.config.data.mask_token = 256;
  EXPECT_TRUE(absl::StrContains(MakePlan(run).status().message(), "below the model's vocabulary"));
}

TEST(PlanTest, RefusesImpossibleSettingsByKey) {
  struct Case {
    std::string says;
    RunConfig run;
    absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  };
  std::vector<Case> cases(7);
  cases[0].says = "model.path: cannot open /nowhere";
  cases[0].run.config.model.path = "/nowhere";
  cases[0].code = absl::StatusCode::kNotFound;
  cases[1].says = "expected a JSON object";
  cases[1].run.config.model.path = WriteTemp("broken.json", "{");
  cases[2].says = "n_layers";
  cases[2].run.config.model.path =
      WriteTemp("typo.json", R"({"model_type": "eps-synthetic", "n_layers": 3})");
  cases[3].says = "data.path (--data) is empty";
  cases[3].run.config.training.clip = Clip::kNone;
  cases[4].says = "/nowhere.txt";
  cases[4].run.config.data.path = {"/nowhere.txt"};
  cases[4].code = absl::StatusCode::kNotFound;
  cases[5].says = "training.seq_len+1";
  cases[5].run.config.data.path = {WriteTemp("short.txt", "short")};
  cases[5].run.config.training.clip = Clip::kNone;
  cases[6].says = "training.train_batch_size = 7";
  cases[6].run = Synthetic();
  cases[6].run.config.training.train_batch_size = 7;
  for (const Case& c : cases) {
    const absl::Status status = MakePlan(c.run).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.says << " | " << status;
  }
}

TEST(PlanTest, CountsTheStateThatTheOptimizerKeeps) {
  const std::pair<const char*, double> kept[] = {
      {"12 bytes", -1}, {"8 bytes", 0.9}, {"4 bytes", 0}};
  for (const auto& [bytes, momentum] : kept) {
    RunConfig run = Synthetic();
    if (momentum >= 0) {
      run.config.optimizer.name = OptimizerName::kSgd;
      run.config.optimizer.momentum = momentum;
    }
    const auto plan = MakePlan(run);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto summary = PlanSummary(*plan, 1);
    ASSERT_TRUE(summary.ok());
    EXPECT_TRUE(absl::StrContains(*summary, absl::StrCat("(", bytes, " per parameter)")))
        << *summary;
  }
}

TEST(PlanTest, RefusesAServerThatWouldHoldNothing) {
  const auto plan = MakePlan(Synthetic());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(PlanSummary(*plan, 2).ok());
  const absl::Status status = PlanSummary(*plan, 100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "training.chunk_elements")) << status;
}

TEST(PlanTest, ServersAreANumberOrAddresses) {
  ServersConfig config;
  EXPECT_EQ(ChooseServers(config)->spawn, 1u);
  config.addresses = "3";
  EXPECT_EQ(ChooseServers(config)->spawn, 3u);
  config.addresses = "127.0.0.1:5000";
  EXPECT_EQ(ChooseServers(config)->spawn, 0u) << "an address begins with a number too";
  config.addresses = "a:1,b:2";
  EXPECT_EQ(ChooseServers(config)->attach, (std::vector<std::string>{"a:1", "b:2"}));
  for (const std::string bad : {"0", "257", "a", "a:1,", "a:0", "a:1,a:1", "a:70000"}) {
    config.addresses = bad;
    const absl::Status status = ChooseServers(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_TRUE(absl::StrContains(status.message(), "servers.addresses")) << status;
  }
}

}  // namespace
}  // namespace eps
