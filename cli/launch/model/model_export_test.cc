#include "cli/launch/model/model_export.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "base/exit_code.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// A model that is not built in, and a program in place of the Python that exports it.
class ModelExportTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / "model_export";
    fs::remove_all(root_);
    Write("theirs/config.json", R"({"model_type": "theirs"})");
    // Its arguments are -m, a module, the folder and --out=OUT.
    WriteTool(
        "out=${4#--out=}; mkdir -p \"$out/eps\"; echo {} > \"$out/eps/program.json\"\n"
        "ln -s \"$3/config.json\" \"$out/config.json\"; echo called $5 >> " +
        (root_ / "calls").string() + "\n");
    setenv("EPS_PYTHON", (root_ / "tool").c_str(), 1);
    config_.model.path = (root_ / "theirs").string();
    config_.checkpoint.dir = (root_ / "run").string();
  }
  void TearDown() override { unsetenv("EPS_PYTHON"); }

  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  void WriteTool(const std::string& text) const {
    Write("tool", "#!/bin/sh\n" + text);
    chmod((root_ / "tool").c_str(), 0755);
  }
  // How often the tool was called.
  int calls() const {
    std::ifstream file(root_ / "calls");
    int count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }

  fs::path root_;
  Config config_;
};

TEST_F(ModelExportTest, TheRunReadsTheExportedFolder) {
  ASSERT_TRUE(NeedsExport(config_));
  const absl::Status status = ExportModelOfRun(&config_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config_.model.path, root_ / "run/model");
  EXPECT_TRUE(fs::exists(root_ / "run/model/eps/program.json"));
  EXPECT_FALSE(NeedsExport(config_));
}

TEST_F(ModelExportTest, ExportsForThePrecisionOfTheRun) {
  config_.training.precision = Precision::kBf16;
  ASSERT_TRUE(ExportModelOfRun(&config_).ok());
  std::string line;
  std::getline(std::ifstream(root_ / "calls") >> std::ws, line);
  EXPECT_EQ(line, "called --dtype=bfloat16");
}

TEST_F(ModelExportTest, OnlyUnknownModelsNeedIt) {
  Config without = config_;
  without.checkpoint.dir = "";
  EXPECT_FALSE(NeedsExport(without));
  Write("gpt2/config.json", R"({"model_type": "gpt2"})");
  Write("exported/config.json", R"({"model_type": "theirs"})");
  Write("exported/eps/program.json", "{}");
  Write("broken/config.json", "{");
  for (const char* const name : {"gpt2", "exported", "broken", "gone"}) {
    config_.model.path = (root_ / name).string();
    EXPECT_FALSE(NeedsExport(config_)) << name;
  }
}

TEST_F(ModelExportTest, ARunThatContinuesKeepsItsModel) {
  ASSERT_TRUE(ExportModelOfRun(&config_).ok());
  config_.model.path = (root_ / "theirs").string();
  config_.checkpoint.resume = "latest";
  ASSERT_TRUE(ExportModelOfRun(&config_).ok());
  EXPECT_EQ(config_.model.path, root_ / "run/model");
  EXPECT_EQ(calls(), 1);
  Write("other/config.json", R"({"model_type": "theirs"})");
  config_.model.path = (root_ / "other").string();
  const absl::Status status = ExportModelOfRun(&config_);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "is another one")) << status;
  config_.checkpoint.resume = "none";
  ASSERT_TRUE(ExportModelOfRun(&config_).ok());
  EXPECT_EQ(calls(), 2);
  EXPECT_TRUE(fs::equivalent(root_ / "run/model/config.json", root_ / "other/config.json"));
}

TEST_F(ModelExportTest, SaysWhatTheToolSays) {
  Config other = config_;
  ASSERT_TRUE(ExportModelOfRun(&other).ok());
  WriteTool("echo 'eps model: 2 values cross' >&2; exit 65\n");
  absl::Status status = ExportModelOfRun(&config_);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "2 values cross")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "model-export.log")) << status;
  EXPECT_TRUE(fs::exists(root_ / "run/model/eps/program.json"));
  setenv("EPS_PYTHON", "/nowhere/python", 1);
  status = ExportModelOfRun(&config_);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "/nowhere/python")) << status;
}

}  // namespace
}  // namespace eps
