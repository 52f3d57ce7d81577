#include "base/config/app_arguments.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// The state of a small command with two subcommands.
struct Example {
  Example() {
    app.require_subcommand(1);
    app.add_subcommand("ls", "list");
    remove = app.add_subcommand("rm", "remove");
    remove->add_option("FILE", files, "files")->required();
    remove->add_flag("--force", force, "always");
    remove->add_option("--job", job, "id");
  }
  CLI::App app{"An example.", "eps example"};
  CLI::App* remove = nullptr;
  std::vector<std::string> files;
  std::string job;
  bool force = false;
};

TEST(AppArgumentsTest, TakesValuesAfterSpaceOrEquals) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"rm", "a", "--job", "7", "--force"}, {"rm", "--force", "--job=7", "a"}}) {
    Example example;
    const auto help = ParseAppArguments(&example.app, arguments);
    ASSERT_TRUE(help.ok()) << help.status();
    EXPECT_EQ(*help, "");
    EXPECT_TRUE(example.remove->parsed());
    EXPECT_TRUE(example.force);
    EXPECT_EQ(example.job, "7");
    EXPECT_EQ(example.files, std::vector<std::string>{"a"});
  }
}

TEST(AppArgumentsTest, HelpIsATextToPrint) {
  Example example;
  const auto help = ParseAppArguments(&example.app, {"--help"});
  ASSERT_TRUE(help.ok()) << help.status();
  EXPECT_TRUE(absl::StrContains(*help, "eps example")) << *help;
}

TEST(AppArgumentsTest, SuggestsTheNearestName) {
  struct Case {
    std::vector<std::string> arguments;
    std::string says;
  };
  const std::vector<Case> cases = {
      {{"rm", "--froce", "a"}, "unknown argument --froce; did you mean --force?"},
      {{"rm", "--jbo=7"}, "did you mean --job?"},  // although FILE is missing
      {{"rm", "--other", "a"}, "unknown argument --other (eps example --help)"},
      {{"rm"}, "FILE is required"},
      {{"rmm"}, "unknown command or option rmm, known are ls, rm; did you mean rm?"},
      {{}, "eps example needs ls, rm (eps example --help)"},
  };
  for (const Case& c : cases) {
    Example example;
    const absl::Status status = ParseAppArguments(&example.app, c.arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.says;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.says << " | " << status;
  }
}

TEST(AppArgumentsTest, LeavesExtrasToAppsThatAllowThem) {
  CLI::App app{"An example.", "eps example"};
  app.allow_extras();
  bool json = false;
  app.add_flag("--json", json, "as JSON");
  const auto help = ParseAppArguments(&app, {"--training.steps", "5", "--json"});
  ASSERT_TRUE(help.ok()) << help.status();
  EXPECT_TRUE(json);
  EXPECT_EQ(app.remaining(), (std::vector<std::string>{"--training.steps", "5"}));
}

}  // namespace
}  // namespace eps
