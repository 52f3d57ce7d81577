#include "base/machine/python_tools.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

class PythonToolsTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(tree_);
    Write("python/eps_models/data/__main__.py");
    fs::create_directories(tree_ + "/bin/cli");
  }
  void Write(const std::string& name) {
    fs::create_directories(fs::path(tree_ + "/" + name).parent_path());
    std::ofstream(tree_ + "/" + name) << "x";
  }
  void Install() { Write("third_party/.oracles/.complete"); }

  const std::string tree_ = fs::canonical(testing::TempDir()).string() + "/python_tools";
};

TEST_F(PythonToolsTest, TakesThePythonOfTheTree) {
  Install();
  for (const PythonPlaces& places :
       {PythonPlaces{tree_ + "/bin/cli/eps", "/"}, PythonPlaces{"/usr/bin/eps", tree_ + "/bin"}}) {
    const auto tools = FindPythonTools(places);
    ASSERT_TRUE(tools.ok()) << tools.status();
    EXPECT_EQ(tools->interpreter, tree_ + "/third_party/.oracles/bin/python");
    EXPECT_EQ(
        tools->environment,
        (std::vector<std::string>{"PYTHONPATH=" + tree_ + "/python",
                                  "LD_LIBRARY_PATH=" + tree_ + "/third_party/.oracles/stub_libs"}));
  }
}

TEST_F(PythonToolsTest, FollowsTheLinksOfABuild) {
  Install();
  const std::string build = tree_ + "-build";
  fs::remove_all(build);
  fs::create_directories(build + "/out/cli");
  fs::create_directory_symlink(tree_ + "/python", build + "/python");
  const auto tools = FindPythonTools({build + "/out/cli/eps", "/"});
  ASSERT_TRUE(tools.ok()) << tools.status();
  EXPECT_EQ(tools->interpreter, tree_ + "/third_party/.oracles/bin/python");
}

TEST_F(PythonToolsTest, EpsPythonWins) {
  Install();
  auto tools = FindPythonTools({tree_ + "/bin/cli/eps", "/", "/my/python", "/mine", "/libs"});
  ASSERT_TRUE(tools.ok()) << tools.status();
  EXPECT_EQ(tools->interpreter, "/my/python");
  EXPECT_EQ(tools->environment, std::vector<std::string>{"PYTHONPATH=" + tree_ + "/python:/mine"});
  tools = FindPythonTools({"/usr/bin/eps", "/", "/my/python"});
  ASSERT_TRUE(tools.ok()) << tools.status();
  EXPECT_TRUE(tools->environment.empty()) << "its packages are installed";
}

TEST_F(PythonToolsTest, NamesTheCommandThatInstallsIt) {
  for (const PythonPlaces& places :
       {PythonPlaces{tree_ + "/bin/cli/eps", "/"}, PythonPlaces{"/usr/bin/eps", "/"}}) {
    const absl::Status status = FindPythonTools(places).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(absl::StrContains(status.message(), "third_party/install/setup_oracles.sh"));
    EXPECT_TRUE(absl::StrContains(status.message(), "EPS_PYTHON"));
  }
}

TEST_F(PythonToolsTest, SaysWhichPythonCannotRun) {
  const absl::Status status = BecomePythonTool({"/nonexistent/python", {}}, "a", {});
  EXPECT_TRUE(absl::StrContains(status.message(), "/nonexistent/python")) << status;
}

}  // namespace
}  // namespace eps
