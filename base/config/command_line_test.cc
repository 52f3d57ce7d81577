#include "base/config/command_line.h"

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/files/files.h"
#include "cli/launch/run_config.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

CommandLine Parse(const std::vector<std::string>& arguments) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(arguments);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? *line : CommandLine();
}

std::string WriteTemp(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << content;
  return path;
}

TEST(CommandLineTest, TakesDottedOverridesWithEqualsOrASpaceAndInOrder) {
  const CommandLine line = Parse({"train", "--training.steps=5", "--optimizer.lr", "3e-4",
                                  "--training.micro-batch-size=2", "--training.steps=6"});
  EXPECT_EQ(line.command, Command::kTrain);
  EXPECT_EQ(line.settings, (Settings{{"training.steps", "5"},
                                     {"optimizer.lr", "3e-4"},
                                     {"training.micro-batch-size", "2"},
                                     {"training.steps", "6"}}));
}

TEST(CommandLineTest, ShortFormsStandForTheirKeys) {
  const CommandLine line = Parse({"train", "--model", "m", "--out=o", "--resume=latest",
                                  "--servers=2", "--workers", "3", "--config", "c.yaml"});
  EXPECT_EQ(line.config_file, "c.yaml");
  EXPECT_EQ(line.settings, (Settings{{"model.path", "m"},
                                     {"checkpoint.dir", "o"},
                                     {"checkpoint.resume", "latest"},
                                     {"servers.addresses", "2"},
                                     {"worker.count", "3"}}));
}

TEST(CommandLineTest, DataTakesSeveralFilesAndRepeats) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"train", "--data", "a, b", "c", "--training.steps=1"},
           {"train", "--data", "a, b", "--training.steps=1", "--data=c"}}) {
    const CommandLine line = Parse(arguments);
    ASSERT_EQ(line.settings.size(), 2u);
    EXPECT_EQ(line.settings[0].second, "[\"a, b\", \"c\"]");
    Config config;
    ASSERT_TRUE(config.Set(line.settings[0].first, line.settings[0].second).ok());
    EXPECT_EQ(config.data.path, (std::vector<std::string>{"a, b", "c"}));
  }
}

TEST(CommandLineTest, ANegativeNumberIsAValue) {
  EXPECT_EQ(Parse({"train", "--optimizer.lr", "-1"}).settings, (Settings{{"optimizer.lr", "-1"}}));
}

TEST(CommandLineTest, OtherProgramsGetTheirArgumentsUntouched) {
  const CommandLine line = Parse({"generate", "--help", "--prompt", "a b", "--x"});
  EXPECT_EQ(line.command, Command::kGenerate);
  EXPECT_EQ(line.passed_on, (std::vector<std::string>{"--help", "--prompt", "a b", "--x"}));
  EXPECT_EQ(Parse({"worker", "--rank=1"}).command, Command::kWorker);
  EXPECT_EQ(Parse({"verify"}).command, Command::kVerify);
  EXPECT_EQ(Parse({"codec", "list", "--json"}).command, Command::kCodec);
  EXPECT_EQ(Parse({"codec", "list", "--json"}).passed_on,
            (std::vector<std::string>{"list", "--json"}));
}

TEST(CommandLineTest, HelpAndVersionAreTextsToPrint) {
  EXPECT_TRUE(absl::StrContains(Parse({"--help"}).text, "train"));
  EXPECT_TRUE(absl::StrContains(Parse({"train", "--help"}).text, "--resume"));
  EXPECT_TRUE(absl::StrContains(Parse({"--version"}).text, "eps "));
}

TEST(CommandLineTest, RefusesWhatItDoesNotKnowAndNamesTheNearest) {
  struct Case {
    std::vector<std::string> arguments;
    std::string says;
  };
  const std::vector<Case> cases = {
      {{}, "a command is missing"},
      {{"trian"}, "unknown command or option trian, known are train"},
      {{"trains"}, "did you mean train?"},
      {{"train", "--modle=x"}, "did you mean --model?"},
      {{"train", "--wrokers", "2"}, "did you mean --workers?"},
      {{"train", "stray"}, "unknown argument stray"},
      {{"train", "--training.steps"}, "--training.steps: a value is missing"},
      {{"train", "--training.steps", "--out=x"}, "--training.steps: a value is missing"},
      {{"config"}, "print, reference or import-deepspeed"},
      {{"config", "prnt"}, "did you mean print?"},
      {{"status", "--jsn"}, "unknown argument --jsn"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ParseCommandLine(c.arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.says;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.says << " | " << status;
  }
}

TEST(RunConfigTest, FlagsWinOverTheEnvironmentOverTheFileOverDefaults) {
  const std::string file = WriteTemp("layers.yaml",
                                     "model:\n  path: m\n"
                                     "training:\n  steps: 1\n  seed: 1\n  seq_len: 1\n");
  const auto run =
      ResolveConfig(Parse({"train", "--config", file, "--training.steps=3"}),
                    {{"EPS_TRAINING__STEPS", "2"}, {"EPS_TRAINING__SEED", "2"}, {"HOME", "/"}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->config.training.steps, 3u);
  EXPECT_EQ(run->config.training.seed, 2u);
  EXPECT_EQ(run->config.training.seq_len, 1u);
  EXPECT_EQ(run->config.training.micro_batches, 1u);
  EXPECT_FALSE(run->quickstart);
  EXPECT_EQ(run->origin, file);
}

TEST(RunConfigTest, TheQuickstartIsTheFileOnlyWithoutModelAndConfig) {
  const auto plain = ResolveConfig(Parse({"train"}), {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(plain->quickstart);
  EXPECT_EQ(plain->config.training.clip, "lagged");
  EXPECT_EQ(plain->config.servers.addresses, "2");

  const auto with_model = ResolveConfig(Parse({"train", "--model=m"}), {});
  ASSERT_TRUE(with_model.ok());
  EXPECT_FALSE(with_model->quickstart);
  EXPECT_EQ(with_model->config.training.clip, "exact");

  const auto by_variable = ResolveConfig(Parse({"train"}), {{"EPS_MODEL__PATH", "m"}});
  ASSERT_TRUE(by_variable.ok());
  EXPECT_FALSE(by_variable->quickstart);

  const auto with_file = ResolveConfig(Parse({"train", "--config", WriteTemp("e.yaml", "")}), {});
  ASSERT_TRUE(with_file.ok()) << with_file.status();
  EXPECT_FALSE(with_file->quickstart);

  const auto serve = ResolveConfig(Parse({"serve"}), {});
  ASSERT_TRUE(serve.ok());
  EXPECT_EQ(serve->config.servers.addresses, "");
}

TEST(RunConfigTest, ResumingTheLatestOfAnEmptyFolderIsANewRun) {
  const auto run = ResolveConfig(Parse({"train", "--resume=latest", "--out=/nowhere"}), {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_TRUE(run->quickstart);
}

TEST(RunConfigTest, ErrorsNameTheFlagTheVariableOrTheFile) {
  struct Case {
    std::vector<std::string> arguments;
    std::map<std::string, std::string> environment;
    absl::StatusCode code;
    std::string says;
  };
  const std::string bad = WriteTemp("bad.yaml", "training:\n  stepps: 3\n");
  const std::vector<Case> cases = {
      {{"train", "--training.stepps=3"}, {}, absl::StatusCode::kInvalidArgument, "training.steps"},
      {{"train", "--training.steps=x"}, {}, absl::StatusCode::kInvalidArgument, "--training.steps"},
      {{"train"},
       {{"EPS_TRAINING__STEPPS", "3"}},
       absl::StatusCode::kInvalidArgument,
       "EPS_TRAINING__STEPPS"},
      {{"train", "--config", bad}, {}, absl::StatusCode::kInvalidArgument, "bad.yaml:2"},
      {{"train", "--config=/nowhere.yaml"}, {}, absl::StatusCode::kNotFound, "/nowhere.yaml"},
      {{"train", "--resume=latest", "--checkpoint.dir="},
       {},
       absl::StatusCode::kInvalidArgument,
       "latest needs checkpoint.dir"},
      {{"train", "--resume=/nowhere"}, {}, absl::StatusCode::kNotFound, "eps/manifest.json"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ResolveConfig(Parse(c.arguments), c.environment).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.says << " | " << status;
  }
}

TEST(RunConfigTest, TheReferencePageInTheDocsIsTheOneThatIsPrinted) {
  const auto page = ReadTextFile("docs/reference/config.md");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_TRUE(*page == ConfigReference())
      << "write it anew: bazel-bin/cli/eps config reference > docs/reference/config.md";
}

}  // namespace
}  // namespace eps
