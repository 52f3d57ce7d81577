#include "cli/launch/run_config.h"

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/config/command_line.h"
#include "base/files/files.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

CommandLine Parse(const std::vector<std::string>& arguments,
                  const ConfigCommand& command = kTrainCommand) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(command, arguments);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? *line : CommandLine();
}

std::string WriteTemp(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << content;
  return path;
}

TEST(RunConfigTest, FlagsOverrideEnvironmentFileAndDefaults) {
  const std::string file = WriteTemp("layers.yaml",
                                     "model:\n  path: m\n"
                                     "training:\n  steps: 1\n  seed: 1\n  seq_len: 1\n");
  const auto run =
      ResolveConfig(Parse({"--config", file, "--training.steps=3"}),
                    {{"EPS_TRAINING__STEPS", "2"}, {"EPS_TRAINING__SEED", "2"}, {"HOME", "/"}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->config.training.steps, 3u);
  EXPECT_EQ(run->config.training.seed, 2u);
  EXPECT_EQ(run->config.training.seq_len, 1u);
  EXPECT_EQ(run->config.training.micro_batches, 1u);
  EXPECT_FALSE(run->quickstart);
  EXPECT_EQ(run->origin, file);
}

TEST(RunConfigTest, UsesTheQuickstartWithoutModelAndConfig) {
  const auto plain = ResolveConfig(Parse({}), {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(plain->quickstart);
  EXPECT_EQ(plain->config.training.clip, Clip::kLagged);
  EXPECT_EQ(plain->config.servers.addresses, "2");

  const auto with_model = ResolveConfig(Parse({"--model=m"}), {});
  ASSERT_TRUE(with_model.ok());
  EXPECT_FALSE(with_model->quickstart);
  EXPECT_EQ(with_model->config.training.clip, Clip::kExact);

  const auto by_variable = ResolveConfig(Parse({}), {{"EPS_MODEL__PATH", "m"}});
  ASSERT_TRUE(by_variable.ok());
  EXPECT_FALSE(by_variable->quickstart);

  const auto with_file = ResolveConfig(Parse({"--config", WriteTemp("e.yaml", "")}), {});
  ASSERT_TRUE(with_file.ok()) << with_file.status();
  EXPECT_FALSE(with_file->quickstart);

  const auto serve = ResolveConfig(Parse({}, {"eps serve", "run one parameter server"}), {});
  ASSERT_TRUE(serve.ok());
  EXPECT_EQ(serve->config.servers.addresses, "");
}

TEST(RunConfigTest, AnEmptyFolderHasNoLatest) {
  const auto run = ResolveConfig(Parse({"--resume=latest", "--out=/nowhere"}), {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_TRUE(run->quickstart);
}

TEST(RunConfigTest, ErrorsNameFlagVariableOrFile) {
  struct Case {
    std::vector<std::string> arguments;
    std::map<std::string, std::string> environment;
    absl::StatusCode code;
    std::string says;
  };
  const std::string bad = WriteTemp("bad.yaml", "training:\n  stepps: 3\n");
  const std::vector<Case> cases = {
      {{"--training.stepps=3"}, {}, absl::StatusCode::kInvalidArgument, "training.steps"},
      {{"--training.steps=x"}, {}, absl::StatusCode::kInvalidArgument, "--training.steps"},
      {{},
       {{"EPS_TRAINING__STEPPS", "3"}},
       absl::StatusCode::kInvalidArgument,
       "EPS_TRAINING__STEPPS"},
      {{"--config", bad}, {}, absl::StatusCode::kInvalidArgument, "bad.yaml:2"},
      {{"--config=/nowhere.yaml"}, {}, absl::StatusCode::kNotFound, "/nowhere.yaml"},
      {{"--resume=latest", "--checkpoint.dir="},
       {},
       absl::StatusCode::kInvalidArgument,
       "latest needs checkpoint.dir"},
      {{"--resume=/nowhere"}, {}, absl::StatusCode::kNotFound, "eps/manifest.json"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ResolveConfig(Parse(c.arguments), c.environment).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.says << " | " << status;
  }
}

TEST(RunConfigTest, TheReferencePageIsUpToDate) {
  const auto page = ReadTextFile("docs/reference/config.md");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_TRUE(*page == ConfigReference())
      << "write it again: bazel-bin/cli/eps config reference > docs/reference/config.md";
}

}  // namespace
}  // namespace eps
