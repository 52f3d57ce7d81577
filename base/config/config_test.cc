#include "base/config/config.h"

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

std::string SetError(absl::string_view key, absl::string_view value) {
  Config config;
  const absl::Status status = config.Set(key, value);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key << "=" << value;
  return MessageOf(status);
}

std::string YamlError(absl::string_view yaml) {
  Config config;
  const std::string before = config.ToYaml();
  const absl::Status status = config.MergeYaml(yaml, "run.yaml");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << yaml;
  EXPECT_EQ(config.ToYaml(), before) << "a refused document changed the configuration";
  return MessageOf(status);
}

// Returns, per type, values that no key has by default and that are hard to print.
const std::map<std::string, std::vector<std::string>>& HardValues() {
  static const auto* const kValues = new std::map<std::string, std::vector<std::string>>{
      {"integer", {"2147483647", "7"}},
      {"number", {"0.30000000000000004", "1e-300", "-1.7976931348623157e+308"}},
      {"text",
       {"plain", "", "~", "null", "true", "- a", "a: b", "#no comment", "say \"hi\" \\ ",
        "\x01\n\t", "host:1,host:2", "näh", " padded ", "-dash", "[a]", "'"}},
      {"size", {"17GiB", "17179869185", "18446744073709551615"}},
      {"duration", {"1500ms", "7s", "9223372036854775807ms"}},
      {"flag", {"true", "false"}},
      {"list of maps",
       {"[{match: a.*, lr_multiplier: 0.30000000000000004, weight_decay: 0}, {match: "
        "\"b|\\\\.c$\"}]",
        "[]"}},
  };
  return *kValues;
}

std::vector<std::string> HardValuesOf(const ConfigKey& key) {
  if (key.type == "name") return key.names;
  if (key.type != "list") return HardValues().at(key.type);
  if (key.name == "eval.metrics") return {"[loss, f1]", "pearson", "[]"};
  if (key.name == "optimizer.betas") return {"[0.1, 0.30000000000000004]", "[0, 1e-300]"};
  return {"[\"a, b\", \"\", \"c: d\", plain]", "one", "[]"};
}

TEST(Config, EveryKeyReadsBackFromItsYaml) {
  for (const ConfigKey& key : ConfigKeys()) {
    for (const std::string& value : HardValuesOf(key)) {
      Config config;
      ASSERT_TRUE(config.Set(key.name, value).ok()) << key.name << "=" << value;
      Config read;
      const absl::Status status = read.MergeYaml(config.ToYaml(), "printed");
      ASSERT_TRUE(status.ok()) << status << "\n" << config.ToYaml();
      EXPECT_EQ(read.ToYaml(), config.ToYaml()) << key.name;
    }
  }
}

TEST(Config, AllKeysTogetherReadBack) {
  Config config;
  const std::string defaults = config.ToYaml();
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string before = config.ToYaml();
    const std::vector<std::string> values = HardValuesOf(key);
    if (values.size() == 1) continue;  // the key accepts only one name
    const std::string& value = values[0] == key.default_value ? values[1] : values[0];
    ASSERT_TRUE(config.Set(key.name, value).ok()) << key.name;
    EXPECT_NE(config.ToYaml(), before) << key.name << " has no effect";
  }
  Config read;
  ASSERT_TRUE(read.MergeYaml(config.ToYaml(), "printed").ok());
  EXPECT_EQ(read.ToYaml(), config.ToYaml());
  EXPECT_EQ(read.worker.rpc_timeout_ms, 1500);
  EXPECT_EQ(read.servers.memory_limit, uint64_t{17} << 30);
  EXPECT_EQ(read.optimizer.lr, 0.30000000000000004);
  EXPECT_THAT(read.data.path, ElementsAre("a, b", "", "c: d", "plain"));
  EXPECT_TRUE(read.servers.insecure);
}

TEST(Config, TextReadsBackByteForByte) {
  for (const std::string& value : HardValues().at("text")) {
    Config config;
    config.model.path = value;
    config.data.path = {value, value};
    Config read;
    ASSERT_TRUE(read.MergeYaml(config.ToYaml(), "printed").ok()) << config.ToYaml();
    EXPECT_EQ(read.model.path, value);
    EXPECT_THAT(read.data.path, ElementsAre(value, value));
  }
}

TEST(Config, ReferenceHasEachKeyOnce) {
  std::map<std::string, ConfigKey> by_name;
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_TRUE(by_name.emplace(key.name, key).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
  }
  EXPECT_EQ(by_name.at("training.seq_len").type, "integer");
  EXPECT_EQ(by_name.at("optimizer.lr").default_value, "auto");
  EXPECT_EQ(by_name.at("training.steps").type, "integer");
  EXPECT_EQ(by_name.at("optimizer.betas").default_value, "auto");
  EXPECT_THAT(
      by_name.at("optimizer.betas").help,
      HasSubstr("auto means 0.9, 0.999 for adamw, adam, adamw_sqrtv, lamb; 0.9, 0.99 for lion."));
  EXPECT_EQ(by_name.at("optimizer.nesterov").type, "flag");
  EXPECT_THAT(by_name.at("optimizer.nesterov").help, HasSubstr("auto means false."));
  EXPECT_EQ(by_name.at("worker.rpc_timeout").default_value, "60s");
  EXPECT_EQ(by_name.at("servers.listen").default_value, "\"127.0.0.1:0\"");
  EXPECT_THAT(by_name.at("training.seq_len").help, HasSubstr("Also: training.max_seq_len."));
}

TEST(Config, ReadsAndPrintsSizes) {
  const std::vector<std::tuple<std::string, uint64_t, std::string>> cases = {
      {"0", 0, "0"},
      {"123", 123, "123"},
      {"4KiB", 4096, "4096"},
      {"16GiB", uint64_t{16} << 30, "16GiB"},
      {"1.5GiB", uint64_t{3} << 29, "1610612736"},
      {"1TiB", uint64_t{1} << 40, "1024GiB"},
      {"2GB", 2'000'000'000, "2000000000"},
      {"10 MB", 10'000'000, "10000000"},
      {"18446744073709551615", std::numeric_limits<uint64_t>::max(), "18446744073709551615"},
  };
  for (const auto& [text, bytes, printed] : cases) {
    Config config;
    ASSERT_TRUE(config.Set("servers.memory_limit", text).ok()) << text;
    EXPECT_EQ(config.servers.memory_limit, bytes) << text;
    EXPECT_THAT(config.ToYaml(), HasSubstr("memory_limit: " + printed + "\n"));
  }
}

TEST(Config, ReadsAndPrintsDurations) {
  const std::vector<std::tuple<std::string, int64_t, std::string>> cases = {
      {"0", 0, "0s"},
      {"0s", 0, "0s"},
      {"30s", 30'000, "30s"},
      {"250ms", 250, "250ms"},
      {"1.5s", 1500, "1500ms"},
      {"5m", 300'000, "300s"},
      {"2h", 7'200'000, "7200s"},
  };
  for (const auto& [text, ms, printed] : cases) {
    Config config;
    ASSERT_TRUE(config.Set("worker.rpc_timeout", text).ok()) << text;
    EXPECT_EQ(config.worker.rpc_timeout_ms, ms) << text;
    EXPECT_THAT(config.ToYaml(), HasSubstr("rpc_timeout: " + printed + "\n"));
  }
}

TEST(Config, ErrorsSayWhatIsExpected) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"training.steps", "many", "expected an integer from 0 to 18446744073709551615"},
      {"training.steps", "-1", "found \"-1\""},
      {"training.steps", "1.5", "expected an integer"},
      {"training.steps", "", "expected an integer"},
      {"training.seq_len", "4294967296", "expected an integer from 0 to 4294967295"},
      {"worker.threads", "2147483648", "expected an integer from 0 to 2147483647"},
      {"optimizer.lr", "fast", "expected a finite number"},
      {"optimizer.lr", "nan", "expected a finite number"},
      {"optimizer.lr", "1e999", "expected a finite number"},
      {"optimizer.betas", "0.9,x", "expected a finite number, found \"x\""},
      {"optimizer.betas", "[0.9, [1]]", "a list of plain values"},
      {"optimizer.betas", "[0.9", "expected a list"},
      {"optimizer.betas", "0.9", "expected 2 numbers, found 1"},
      {"optimizer.betas", "[]", "expected 2 numbers, found 0"},
      {"optimizer.nesterov", "yes", "expected true or false"},
      {"optimizer.groups", "head", "expected a list [{match: REGEX"},
      {"optimizer.groups", "[{match: [a}]", "expected a list [{match: REGEX"},
      {"optimizer.groups", "[head]", "expected maps {match: REGEX"},
      {"optimizer.groups", "[{match: [a]}]", "expected plain values"},
      {"optimizer.groups", "[{lr_multiplier: 2}]", "a rule needs match"},
      {"optimizer.groups", "[{match: a, lr: 2}]", "'lr' is unknown"},
      {"optimizer.groups", "[{match: a, lr_multiplier: x}]", "lr_multiplier: expected a finite"},
      {"optimizer.name", "adamv", "optimizer.name: 'adamv' is unknown, did you mean 'adamw'?"},
      {"optimizer.name", "adafactor", "choose one of adamw, sgd, adam, adagrad, lion, "},
      {"data.order", "shufled", "data.order: 'shufled' is unknown, did you mean 'shuffled'?"},
      {"training.clip", "laged", "training.clip: 'laged' is unknown, did you mean 'lagged'?"},
      {"training.nonfinite", "skp", "training.nonfinite: 'skp' is unknown, did you mean 'skip'?"},
      {"training.mode", "egaer", "training.mode: 'egaer' is unknown, did you mean 'eager'?"},
      {"training.mode", "", "training.mode: '' is unknown"},
      {"training.replay", "frontier", "'frontier' is unknown; choose one of rollback"},
      {"training.determinism", "stric", "training.determinism: 'stric' is unknown, did you mean"},
      {"quantization.scope", "tensors", "'tensors' is unknown, did you mean 'tensor'?"},
      {"quantization.values", "fp23", "'fp23' is unknown, did you mean 'fp32'?"},
      {"quantization.residual_home", "[server]", "did you mean 'server'?"},
      {"servers.insecure", "yes", "expected true or false"},
      {"servers.memory_limit", "16 parsecs", "expected a size such as 16GiB"},
      {"servers.memory_limit", "GiB", "expected a size"},
      {"servers.memory_limit", "-1", "expected a size"},
      {"servers.memory_limit", "1.2.3GiB", "expected a size"},
      {"servers.memory_limit", "18446744073709551616", "expected a size"},
      {"servers.memory_limit", "16777216TiB", "expected a size"},
      {"servers.memory_limit", "16777215.999999999TiB", "expected a size"},
      {"worker.rpc_timeout", "2562047788015.9h", "expected a duration"},
      {"worker.rpc_timeout", "60", "expected a duration such as 500ms"},
      {"worker.rpc_timeout", "9223372036854775808ms", "expected a duration"},
      {"servers.push_timeout", "999ms", "expected a duration of at least 1s"},
      {"servers.unread_timeout", "0s", "expected a duration of at least 1s"},
  };
  for (const auto& [key, value, expected] : cases) {
    const std::string message = SetError(key, value);
    EXPECT_THAT(message, HasSubstr(expected)) << value;
    EXPECT_THAT(message, HasSubstr(key)) << value;
  }
}

TEST(Config, UnknownKeysNameTheNearestOne) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"training.stepz", "did you mean training.steps?"},
      {"trainig.seq_len", "did you mean training.seq_len?"},
      {"training.lr", "did you mean optimizer.lr?"},
      {"lr", "did you mean optimizer.lr?"},
      {"threads", "did you mean servers.threads or worker.threads?"},
      {"zzz", "eps config reference lists all keys"},
      {"", "eps config reference lists all keys"},
      {"training", "eps config reference lists all keys"},
  };
  for (const auto& [key, hint] : cases) {
    EXPECT_THAT(SetError(key, "1"), HasSubstr(hint)) << key;
  }
}

TEST(Config, AliasesAndSpellingsReachTheSameKey) {
  Config config;
  EXPECT_TRUE(config.Set("gradient_accumulation_steps", "8").ok());
  EXPECT_TRUE(config.Set("training.gradient-clipping", "0.5").ok());
  EXPECT_TRUE(config.Set("training.max-seq-len", "64").ok());
  EXPECT_TRUE(config.Set("lr-scheduler.warmup-steps", "9").ok());
  EXPECT_TRUE(config.Set("servers", "2").ok());
  EXPECT_EQ(config.training.micro_batches, 8u);
  EXPECT_EQ(config.training.max_grad_norm, 0.5);
  EXPECT_EQ(config.training.seq_len, 64u);
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 9u);
  EXPECT_EQ(config.servers.addresses, "2");
}

TEST(Config, PrintsOpenOptimizerParametersAsAuto) {
  Config config;
  EXPECT_THAT(config.ToYaml(), HasSubstr("  betas: auto\n  eps: auto\n  momentum: auto\n"));
  EXPECT_TRUE(config.Set("optimizer.betas", "[0.8, 0.95]").ok());
  EXPECT_THAT(config.ToYaml(), HasSubstr("  betas: [0.8, 0.95]\n  eps: auto\n"));
  EXPECT_TRUE(config.Set("optimizer.betas", "auto").ok());
  EXPECT_FALSE(config.optimizer.beta1.has_value());
  EXPECT_FALSE(config.optimizer.beta2.has_value());
  // One of them is given: the other is printed as its optimizer has it.
  config.optimizer.name = OptimizerName::kLion;
  config.optimizer.beta1 = 0.95;
  EXPECT_THAT(config.ToYaml(), HasSubstr("  betas: [0.95, 0.99]\n"));
}

TEST(Config, ListsAreReadWithAndWithoutBrackets) {
  Config config;
  EXPECT_TRUE(config.Set("optimizer.betas", "[0.8, 0.95]").ok());
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_TRUE(config.Set("optimizer.betas", "0.7,0.9").ok());
  EXPECT_EQ(config.optimizer.beta1, 0.7);
  EXPECT_EQ(config.optimizer.beta2, 0.9);
  EXPECT_TRUE(config.Set("data.path", " a.txt , b.txt").ok());
  EXPECT_THAT(config.data.path, ElementsAre("a.txt", "b.txt"));
  EXPECT_TRUE(config.Set("data.path", "[]").ok());
  EXPECT_THAT(config.data.path, IsEmpty());
}

TEST(Config, MergesOnlyTheKeysOfADocument) {
  Config config;
  config.training.seed = 7;
  const absl::Status status = config.MergeYaml(
      "# a comment\n"
      "servers: 2\n"
      "training:\n"
      "  steps: 500\n"
      "  micro-batch-size: 2\n"
      "data:\n"
      "  path:\n"
      "    - a.txt\n"
      "    - b.txt\n"
      "optimizer.lr: 3e-4\n"
      "storage:\n"
      "  # kind: nvme\n",
      "run.yaml");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config.servers.addresses, "2");
  EXPECT_EQ(config.training.steps, 500u);
  EXPECT_EQ(config.training.micro_batch_size, 2u);
  EXPECT_EQ(config.training.seed, 7u);
  EXPECT_THAT(config.data.path, ElementsAre("a.txt", "b.txt"));
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.storage.kind, "auto");
  EXPECT_EQ(config.storage.tier(), "dram");
  EXPECT_FALSE(config.storage.durable());
}

TEST(Config, ServersAcceptsAListOrASection) {
  Config config;
  EXPECT_TRUE(config.MergeYaml("servers: [a:1, \"b:2\"]", "run.yaml").ok());
  EXPECT_EQ(config.servers.addresses, "a:1,b:2");
  EXPECT_TRUE(config.MergeYaml("servers: {addresses: 3, threads: 4}", "run.yaml").ok());
  EXPECT_EQ(config.servers.addresses, "3");
  EXPECT_EQ(config.servers.threads, 4);
}

TEST(Config, EmptyDocumentsChangeNothing) {
  for (const char* yaml : {"", "\n", "# nothing\n", "---\n"}) {
    Config config;
    EXPECT_TRUE(config.MergeYaml(yaml, "run.yaml").ok()) << yaml;
    EXPECT_EQ(config.ToYaml(), Config().ToYaml());
  }
}

TEST(Config, YamlErrorsNameFileAndLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"training:\n  steps: 5\n  stepz: 6\n",
       "run.yaml:3: training.stepz is not a configuration key; did you mean training.steps?"},
      {"training:\n  steps: many\n", "run.yaml:2: training.steps: expected an integer"},
      {"trainin:\n  steps: 5\n", "run.yaml:1: trainin is not a configuration key"},
      {"training:\n  steps: 5\n  seed: 1\n  steps: 6\n",
       "run.yaml:4: training.steps is set twice, first in line 2"},
      {"training:\n  micro_batches: 2\n  gradient_accumulation_steps: 2\n",
       "run.yaml:3: training.micro_batches is set twice, first in line 2"},
      {"training:\n  steps: 5\ndata:\ntraining:\n  seed: 1\n",
       "run.yaml:4: section training appears twice, first in line 1"},
      {"training:\n  steps: 5\ntraining.steps: 6\n",
       "run.yaml:3: training.steps is set twice, first in line 2"},
      {"training:\n  steps: {a: 1}\n", "run.yaml:2: training.steps: expected a value"},
      {"training:\n  steps:\n", "found nothing"},
      {"training:\n  steps: [1]\n", "found a list of 1"},
      {"data:\n  path:\n    - [a]\n", "run.yaml:3: data.path: a list of plain values"},
      {"data:\n  path:\n    - {a: b}\n", "run.yaml:3: data.path: a list of plain values"},
      {"optimizer:\n  groups:\n    - a\n", "run.yaml:3: optimizer.groups: a list of maps"},
      {"training: 5\n", "run.yaml:1: training is not a configuration key"},
      {"- a\n- b\n", "run.yaml:1: expected sections of keys"},
      {"training:\n  steps: 5\n bad\n", "run.yaml:"},
      {"a: b: c\n", "run.yaml:1: not YAML"},
      {"training:\n  steps: 5\n---\ntraining:\n  seed: 5\n", "a second document"},
      {"[a]: 5\n", "run.yaml:1: a key must be a plain name"},
      {std::string(100'000, '['), "not YAML"},
  };
  for (const auto& [yaml, expected] : cases) {
    EXPECT_THAT(YamlError(yaml), HasSubstr(expected)) << yaml.substr(0, 80);
  }
}

TEST(Config, TheEnvironmentSetsOnlyItsKeys) {
  Config config;
  const absl::Status status = config.MergeEnvironment({{"EPS_TRAINING__SEQ_LEN", "64"},
                                                       {"EPS_LR_SCHEDULER__NAME", "cosine"},
                                                       {"EPS_SERVERS", "h:1,h:2"},
                                                       {"EPS_LOG", "debug"},
                                                       {"HOME", "/"}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config.training.seq_len, 64u);
  EXPECT_EQ(config.lr_scheduler.name, "cosine");
  EXPECT_EQ(config.servers.addresses, "h:1,h:2");
}

TEST(Config, EnvironmentErrorsNameTheVariable) {
  Config config;
  const std::string before = config.ToYaml();
  absl::Status status =
      config.MergeEnvironment({{"EPS_DATA__ORDER", "sequential"}, {"EPS_TRAINING__STEPZ", "1"}});
  EXPECT_THAT(MessageOf(status), HasSubstr("EPS_TRAINING__STEPZ: training.stepz is not"));
  EXPECT_EQ(config.ToYaml(), before);
  status = config.MergeEnvironment({{"EPS_OPTIMIZER__LR", "x"}});
  EXPECT_THAT(MessageOf(status), HasSubstr("EPS_OPTIMIZER__LR: optimizer.lr: expected a finite"));
}

TEST(Config, AKeyReplacesItsPartnerBelow) {
  Config config;
  ASSERT_TRUE(
      config.MergeYaml("training: {steps: 7}\nlr_scheduler: {warmup_ratio: 0.1}\n", "run.yaml")
          .ok());
  ASSERT_TRUE(config.MergeEnvironment({{"EPS_TRAINING__EPOCHS", "3"}}).ok());
  EXPECT_EQ(config.training.steps, std::nullopt);
  EXPECT_EQ(config.training.epochs, 3);
  // A 0 says no warm-up, but not that there are no steps.
  ASSERT_TRUE(config.MergeFlags({{"lr_scheduler.warmup_steps", "0"}}).ok());
  EXPECT_EQ(config.lr_scheduler.warmup_ratio, 0);
  ASSERT_TRUE(config.MergeFlags({{"training.steps", "9"}}).ok());
  EXPECT_EQ(config.training.steps, 9u);
  EXPECT_EQ(config.training.epochs, 0);
  ASSERT_TRUE(config.MergeFlags({{"training.epochs", "0"}}).ok());
  EXPECT_EQ(config.training.steps, 9u);
  ASSERT_TRUE(config.Set("training.epochs", "2").ok());
  EXPECT_EQ(config.training.steps, std::nullopt);
}

TEST(Config, BothKeysOfALayerStay) {
  const std::string both = "training: {epochs: 2, steps: 7}\n";
  Config config;
  ASSERT_TRUE(config.MergeYaml(both, "run.yaml").ok());
  EXPECT_EQ(config.training.steps, 7u);
  EXPECT_EQ(config.training.epochs, 2);
  config = Config();
  ASSERT_TRUE(config.MergeFlags({{"training.steps", "7"}, {"training.epochs", "2"}}).ok());
  EXPECT_EQ(config.training.steps, 7u);
  EXPECT_EQ(config.training.epochs, 2);
}

TEST(Config, FlagErrorsNameTheFlag) {
  Config config;
  const std::string before = config.ToYaml();
  const absl::Status status = config.MergeFlags({{"training.seed", "1"}, {"optimizer.lr", "x"}});
  EXPECT_THAT(MessageOf(status), HasSubstr("--optimizer.lr: optimizer.lr: expected a finite"));
  EXPECT_EQ(config.ToYaml(), before);
}

TEST(ParseSize, AcceptsTheValuesOfSizeKeys) {
  EXPECT_EQ(*ParseSize("5GB"), 5'000'000'000u);
  EXPECT_EQ(*ParseSize("1.5KiB"), 1536u);
  EXPECT_EQ(*ParseSize("7"), 7u);
  for (const char* wrong : {"", "GB", "-1", "5 apples", "99999999999TB"}) {
    EXPECT_EQ(ParseSize(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace eps
