#include "base/config/command_line.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "base/config/config.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Settings = std::vector<Setting>;

CommandLine Parse(const std::vector<std::string>& arguments) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(kTrainCommand, arguments);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? *line : CommandLine();
}

TEST(CommandLineTest, TakesDottedOverridesInOrder) {
  const CommandLine line = Parse({"--training.steps=5", "--optimizer.lr", "3e-4",
                                  "--training.micro-batch-size=2", "--training.steps=6"});
  EXPECT_EQ(line.settings, (Settings{{"training.steps", "5"},
                                     {"optimizer.lr", "3e-4"},
                                     {"training.micro-batch-size", "2"},
                                     {"training.steps", "6"}}));
}

TEST(CommandLineTest, ShortFormsStandForTheirKeys) {
  const CommandLine line = Parse({"--model", "m", "--out=o", "--resume=latest", "--servers=2",
                                  "--workers", "3", "--config", "c.yaml"});
  EXPECT_EQ(line.config_file, "c.yaml");
  EXPECT_EQ(line.settings, (Settings{{"model.path", "m"},
                                     {"checkpoint.dir", "o"},
                                     {"checkpoint.resume", "latest"},
                                     {"servers.addresses", "2"},
                                     {"worker.count", "3"}}));
}

TEST(CommandLineTest, DataTakesSeveralFilesAndRepeats) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"--data", "a, b", "c", "--training.steps=1"},
           {"--data", "a, b", "--training.steps=1", "--data=c"}}) {
    const CommandLine line = Parse(arguments);
    ASSERT_EQ(line.settings.size(), 2u);
    EXPECT_EQ(line.settings[0].second, "[\"a, b\", \"c\"]");
    Config config;
    ASSERT_TRUE(config.Set(line.settings[0].first, line.settings[0].second).ok());
    EXPECT_EQ(config.data.path, (std::vector<std::string>{"a, b", "c"}));
  }
}

TEST(CommandLineTest, ANegativeNumberIsAValue) {
  EXPECT_EQ(Parse({"--optimizer.lr", "-1"}).settings, (Settings{{"optimizer.lr", "-1"}}));
}

TEST(CommandLineTest, ABooleanMayStandAlone) {
  EXPECT_EQ(
      Parse({"--metrics.tensorboard", "--servers.insecure", "--training.steps=1"}).settings,
      (Settings{
          {"metrics.tensorboard", "true"}, {"servers.insecure", "true"}, {"training.steps", "1"}}));
  EXPECT_EQ(Parse({"--metrics.tensorboard", "false"}).settings,
            (Settings{{"metrics.tensorboard", "false"}}));
}

TEST(CommandLineTest, OwnOptionsWinOverShortForms) {
  CLI::App app{"", "eps example"};
  std::string workers;
  app.add_option("--workers", workers, "of the example");
  const auto line = ParseCommandLine(kTrainCommand, &app, {"--workers", "3", "--servers=2"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(workers, "3");
  EXPECT_EQ(line->settings, (Settings{{"servers.addresses", "2"}}));
}

TEST(CommandLineTest, HelpIsATextToPrint) {
  EXPECT_TRUE(absl::StrContains(Parse({"--help"}).help, "--resume"));
  EXPECT_TRUE(absl::StrContains(Parse({"--help"}).help, "eps train [OPTIONS]"));
  EXPECT_EQ(Parse({}).help, "");
}

TEST(CommandLineTest, OnlySomeCommandsTakeJson) {
  const ConfigCommand status = {"eps status", "", /*trains=*/false, /*has_json=*/true};
  const auto line = ParseCommandLine(status, {"--json", "--servers=a:1"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(line->json);
  EXPECT_FALSE(line->trains);
  EXPECT_TRUE(Parse({}).trains);
}

TEST(CommandLineTest, NamesTheNearestKnownArgument) {
  struct Case {
    std::vector<std::string> arguments;
    std::string says;
  };
  const std::vector<Case> cases = {
      {{"--modle=x"}, "did you mean --model?"},
      {{"--wrokers", "2"}, "did you mean --workers?"},
      {{"stray"}, "unknown argument stray"},
      {{"--training.steps"}, "--training.steps: a value is missing"},
      {{"--training.steps", "--out=x"}, "--training.steps: a value is missing"},
      {{"--jsn"}, "unknown argument --jsn"},
      {{"--json"}, "unknown argument --json"},
      {{"--lr=1e-3"}, "did you mean optimizer.lr?"},
      {{"--steps", "5"}, "training.steps"},
      {{"--seed=1"}, "training.seed"},
      {{"--batch-size=8"}, "training.micro_batch_size"},
      {{"--epochs=3"}, "did you mean training.epochs?"},
      {{"--bf16"}, "use training.precision=bf16"},
      {{"--wandb"}, "did you mean metrics.wandb?"},
      {{"--output_dir=x"}, "--out"},
      {{"--learning_rate", "1e-3"}, "optimizer.lr"},
      {{"--warmup_ratio=0.1"}, "did you mean lr_scheduler.warmup_ratio?"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ParseCommandLine(kTrainCommand, c.arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.says;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.says << " | " << status;
  }
}

}  // namespace
}  // namespace eps
