// The command line as a user meets it at first: exit codes, advice, and what a run refuses.

#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/testing/eps_fixture.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

TEST_F(EpsTest, FailuresHaveExitCodesAndAdvice) {
  struct Case {
    Arguments arguments;
    int code;
    std::string says;
  };
  WriteFile(folder_ + "/torn/eps/manifest.json", "{}");
  WriteFile(folder_ + "/a-file", "");
  WriteFile(folder_ + "/job.yaml", "training:\nservers: 2\n");
  WriteFile(folder_ + "/damaged/latest", "checkpoint-7\n");
  const std::vector<Case> cases = {
      {{"--help"}, 0, "train"},
      {{"--version"}, 0, "eps "},
      {{"config", "reference"}, 0, "| `training.steps` |"},
      {{}, 64, "a command is missing"},
      {{"serv"}, 64, "did you mean serve?"},
      {{"trian"}, 64, "did you mean train?"},
      {{"train", "--lr=1e-3"}, 64, "optimizer.lr"},
      {{"train", "--bf16"}, 64, "training.precision=bf16"},
      {{"plan", "--hardwrae=x"}, 64, "did you mean --hardware?"},
      {{"checkpoint", "lss"}, 64, "did you mean ls?"},
      {{"generate", "--modle=x"}, 64, "did you mean --model?"},
      {{"verify", "--run=x", "--setps=1"}, 64, "did you mean --steps?"},
      {{"worker", "--servres=a:1"}, 64, "eps worker: unknown argument --servres"},
      {{"train", "--training.stepps=3"}, 64, "did you mean training.steps?"},
      {{"train", "--training.steps=many"}, 64, "expected an integer"},
      {Train("o", {"--servers=0"}), 64, "servers.addresses"},
      {Train("o", {"--training.steps=0"}), 64, "training.steps"},
      {{"status"}, 64, "--servers=host:port"},
      {Train("o", {"--resume=" + folder_ + "/torn"}), 65, "not the manifest of a checkpoint"},
      {{"checkpoint"}, 64, "eps checkpoint --help"},
      {{"checkpoint", "--help"}, 0, "export"},
      {{"checkpoint", "verify", folder_ + "/torn"}, 65, "not the manifest of a checkpoint"},
      {{"checkpoint", "ls", "/nowhere"}, 66, "/nowhere"},
      {{"train", "--config=/nowhere.yaml"}, 66, "/nowhere.yaml"},
      {{"train", "--model=/nowhere"}, 66, "model.path: cannot open /nowhere"},
      {{"train", "--data=/nowhere.txt"}, 66, "/nowhere.txt"},
      {Train("damaged", {"--resume=latest"}), 65, "names checkpoint-7, which is not there"},
      {{"status", "--servers=127.0.0.1:1"}, 69, "127.0.0.1:1"},
      {Train("o", {"--servers.memory_limit=10KiB"}), 71, "servers.memory_limit"},
      {Train("a-file/o", {}), 74, "checkpoint.dir"},
      {{"serve", "--listen=0.0.0.0:0"}, 77, "--insecure"},
      {{"submit", "--servers=127.0.0.1:1"}, 64, "--file"},
      {{"submit", "-f", folder_ + "/Job_1.yaml", "--servers=127.0.0.1:1"}, 64, "add --name"},
      {{"submit", "-f", folder_ + "/job.yaml", "--servers=127.0.0.1:1"}, 64, "job.yaml:2: servers"},
      {{"submit", "-f", "/nowhere.yaml", "--servers=127.0.0.1:1"}, 66, "/nowhere.yaml"},
      {{"job", "lss"}, 64, "did you mean ls?"},
      {{"job", "ls"}, 64, "--servers=host:port"},
      {{"job", "pause", "--servers=127.0.0.1:1"}, 64, "NAME is required"},
      {{"job", "show", "a", "--servers=127.0.0.1:1"}, 69, "127.0.0.1:1"},
      {{"driver", "--servers=2", "--out=" + folder_}, 64, "found \"2\""},
      {{"driver", "--servers=127.0.0.1:1", "--out=" + folder_, "--data-root=/nowhere"},
       66,
       "--data-root: /nowhere"},
      {{"serve", "--storage.log=all"}, 64, "expected none or contributions, found \"all\""},
      {{"serve", "--storage.log=contributions"}, 64, "it needs cuts"},
      {{"serve", "--storage.log=contributions", "--storage.path=" + folder_,
        "--storage.cut_steps=0"},
       64,
       "it needs cuts"},
  };
  for (const Case& c : cases) {
    const Result result = Run(c.arguments);
    EXPECT_EQ(result.code, c.code) << c.says << ": " << result.out;
    EXPECT_TRUE(absl::StrContains(result.out, c.says)) << c.says << ": " << result.out;
  }
}

TEST_F(EpsTest, ASecondRunIsRefused) {
  const auto first = Start(Train("o", {"--training.steps=1000000"}), /*read_stdout=*/true);
  ASSERT_TRUE(first->WaitForLine("step: 2/", Clock::now() + kPatience).ok());
  for (const Arguments& more : {Arguments{}, {"--overwrite"}, {"--resume=latest"}}) {
    const Result second = Run(Train("o", more));
    EXPECT_EQ(second.code, 64) << second.out;
    EXPECT_TRUE(absl::StrContains(second.out, absl::StrCat("in use by process ", first->pid())))
        << second.out;
    EXPECT_TRUE(absl::StrContains(second.out, folder_ + "/o")) << second.out;
  }
  first->Signal(SIGTERM);
  EXPECT_EQ(CodeOf(first.get()), 143);
  // The folder is free again, and holds a run that is not finished.
  const Result next = Run(Train("o", {"--training.steps=3"}));
  EXPECT_EQ(next.code, 64) << next.out;
  EXPECT_TRUE(absl::StrContains(next.out, "of 1000000; --resume=latest continues it")) << next.out;
}

TEST_F(EpsTest, FinishedRunsAreReplacedOnRequestOnly) {
  ASSERT_EQ(Run(Train("o", {"--training.steps=4", "--checkpoint.save_steps=2"})).code, 0);
  const std::string old_run = Digest(folder_ + "/o/checkpoint-4");
  const Result refused = Run(Train("o", {"--training.steps=3"}));
  EXPECT_EQ(refused.code, 64) << refused.out;
  EXPECT_TRUE(absl::StrContains(refused.out, folder_ + "/o holds a finished run of 4 steps"));
  EXPECT_TRUE(absl::StrContains(refused.out, "--overwrite")) << refused.out;
  EXPECT_EQ(Digest(folder_ + "/o/checkpoint-4"), old_run);
  // Nor does a run that continues another one write into it.
  const Result other = Run(Train("o", {"--resume=" + folder_ + "/elsewhere/checkpoint-2"}));
  EXPECT_EQ(other.code, 64) << other.out;
  // A run that does not start replaces nothing.
  EXPECT_EQ(Run(Train("o", {"--overwrite", "--servers.memory_limit=10KiB"})).code, 71);
  EXPECT_EQ(Digest(folder_ + "/o/checkpoint-4"), old_run);
  const Result replaced = Run(Train("o", {"--training.steps=3", "--overwrite"}));
  EXPECT_EQ(replaced.code, 0) << replaced.out;
  EXPECT_FALSE(fs::exists(folder_ + "/o/checkpoint-2"));
  EXPECT_FALSE(fs::exists(folder_ + "/o/checkpoint-4"));
  EXPECT_EQ(ReadFile(folder_ + "/o/latest"), "checkpoint-3\n");
}

TEST_F(EpsTest, OtherDataOrSeedNeedAWord) {
  ASSERT_EQ(Run(TrainGpt2("o", {"--training.steps=2"})).code, 0);
  WriteFile(folder_ + "/other.txt", ReadFile(folder_ + "/text.txt") + "another line\n");
  Arguments other = TrainGpt2(
      "o", {"--resume=latest", "--training.steps=3", "--training.seed=7", "--optimizer.lr=0.002"});
  other.back() = "--data=" + folder_ + "/other.txt";
  const Result refused = Run(other);
  EXPECT_EQ(refused.code, 64) << refused.out;
  const std::vector<std::string> differences = {
      "data.sha256: ", "training.seed: ", "training.steps: ", "optimizer.lr: "};
  for (const std::string& difference : differences) {
    EXPECT_TRUE(absl::StrContains(refused.out, difference)) << difference << refused.out;
  }
  EXPECT_TRUE(absl::StrContains(refused.out, "--allow-changes")) << refused.out;
  other.push_back("--allow-changes");
  const Result resumed = Run(other);
  EXPECT_EQ(resumed.code, 0) << resumed.out;
  for (const std::string& difference : differences) {
    EXPECT_TRUE(absl::StrContains(resumed.out, "note: not the same job as before: " + difference))
        << difference << resumed.out;
  }
  // Settings that do not change what the run means need no word.
  const Result longer =
      Run({"train", "--out=" + folder_ + "/o", "--resume=latest", "--training.steps=4",
           "--worker.threads=1", "--metrics.log_every_steps=2", "--optimizer.lr=0.001"});
  EXPECT_EQ(longer.code, 0) << longer.out;
}

TEST_F(EpsTest, TheDeviceReachesTheWorker) {
  const Result result = Run(TrainGpt2("o", {"--training.steps=1", "--device=tpu"}));
  EXPECT_EQ(result.code, 64) << result.out;
  EXPECT_TRUE(absl::StrContains(result.out, "tpu")) << result.out;
}

}  // namespace
}  // namespace eps
