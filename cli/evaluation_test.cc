// Evaluates held-out data with the real program, servers and workers, on the synthetic model, which
// needs no LibTorch.

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/launch/child_process.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Arguments = std::vector<std::string>;

constexpr std::chrono::seconds kPatience{600};

std::string ReadFile(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

class EvaluationTest : public testing::Test {
 protected:
  EvaluationTest()
      : folder_(absl::StrCat(testing::TempDir(), "/eps-",
                             testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    WriteModel(64);
  }
  ~EvaluationTest() override { fs::remove_all(folder_); }

  void WriteModel(int width) const {
    fs::create_directories(folder_ + "/model");
    std::ofstream(folder_ + "/model/config.json")
        << R"({"model_type": "eps-synthetic", "n_layer": 4, "tied": true, "n_embd": )" << width
        << "}";
  }
  Arguments Train(const std::string& out, const Arguments& more) const {
    Arguments arguments = {"train", "--model=" + folder_ + "/model", "--out=" + folder_ + "/" + out,
                           "--training.parts=2", "--training.micro_batch_size=2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  std::unique_ptr<ChildProcess> Start(const Arguments& arguments, bool read_stdout) {
    ChildOptions options;
    options.name = "eps";
    options.argv = {fs::absolute("cli/eps").string()};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.environment = {"PATH=/usr/bin:/bin", "TMPDIR=" + folder_};
    options.log_path = absl::StrCat(folder_, "/output-", ++runs_);
    options.read_stdout = read_stdout;
    auto child = ChildProcess::Start(std::move(options));
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }
  int CodeOf(ChildProcess* child) const {
    EXPECT_TRUE(child->WaitExit(Clock::now() + kPatience)) << "it hangs";
    return child->Running() ? -1 : WEXITSTATUS(child->wait_status());
  }
  // Returns the exit code and the output.
  std::pair<int, std::string> Run(const Arguments& arguments) {
    const auto child = Start(arguments, /*read_stdout=*/false);
    const int code = CodeOf(child.get());
    return {code, ReadFile(child->log_path())};
  }

  std::vector<nlohmann::json> Metrics(const std::string& out) const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ + "/" + out + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  // Returns the steps of metrics.jsonl as "1 2 e2 3"; an e marks an evaluation.
  std::string Steps(const std::string& out) const {
    std::string steps;
    for (const nlohmann::json& line : Metrics(out)) {
      absl::StrAppend(&steps, steps.empty() ? "" : " ", line.contains("eval_loss") ? "e" : "",
                      line["step"].get<int>());
    }
    return steps;
  }
  std::map<int, double> EvalLosses(const std::string& out) const {
    std::map<int, double> losses;
    for (const nlohmann::json& line : Metrics(out)) {
      if (line.contains("eval_loss")) losses[line["step"]] = line["eval_loss"];
    }
    return losses;
  }
  // Returns the results of training: weights, moments, and the figures of the steps.
  std::string TrainingBits(const std::string& out, int steps) const {
    const std::string checkpoint = absl::StrCat(folder_, "/", out, "/checkpoint-", steps);
    std::string bits;
    for (const char* file : {"model.safetensors", "eps/exp_avg.safetensors"}) {
      const std::string content = ReadFile(absl::StrCat(checkpoint, "/", file));
      EXPECT_FALSE(content.empty()) << checkpoint;
      bits += content;
    }
    for (const nlohmann::json& line : Metrics(out)) {
      if (line.contains("loss")) bits += line["loss"].dump() + line["grad_norm"].dump();
    }
    return bits;
  }
  // Kills the worker of `parent`.
  static void KillWorker(pid_t parent) {
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      int pid = 0;
      if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
      const std::string stat = ReadFile(entry.path().string() + "/stat");
      const std::vector<std::string> fields =
          absl::StrSplit(stat.substr(std::min(stat.rfind(')'), stat.size() - 1) + 1), ' ');
      if (fields.size() > 2 && fields[2] == absl::StrCat(parent) &&
          absl::StrContains(ReadFile(entry.path().string() + "/cmdline"), "eps-worker")) {
        kill(pid, SIGKILL);
      }
    }
  }

  const std::string folder_;
  int runs_ = 0;
};

TEST_F(EvaluationTest, IsIndependentOfServersWorkersAndPrefetch) {
  for (const std::string clip : {"none", "exact"}) {
    const Arguments job = {"--overwrite", "--training.steps=3", "--training.clip=" + clip};
    Arguments plain = job;
    ASSERT_EQ(Run(Train("plain", plain)).first, 0);
    const std::string bits = TrainingBits("plain", 3);
    EXPECT_EQ(Steps("plain"), "1 2 3");
    std::map<int, double> losses;
    const struct {
      int servers, workers, prefetch;
    } cases[] = {{1, 1, 1}, {2, 2, 0}, {1, 2, 1}, {2, 1, 0}};
    for (const auto& c : cases) {
      SCOPED_TRACE(absl::StrCat(clip, " ", c.servers, " ", c.workers, " ", c.prefetch));
      Arguments more = job;
      more.insert(more.end(),
                  {absl::StrCat("--servers=", c.servers), absl::StrCat("--workers=", c.workers),
                   absl::StrCat("--worker.prefetch=", c.prefetch), "--training.eval_steps=2",
                   "--training.eval_samples=17"});
      const auto [code, output] = Run(Train("o", more));
      ASSERT_EQ(code, 0) << output;
      EXPECT_TRUE(absl::StrContains(output, "every 2 steps and after the last, 17 held-out"));
      EXPECT_TRUE(absl::StrContains(output, "step: 3/3 eval_loss: ")) << output;
      EXPECT_EQ(TrainingBits("o", 3), bits);
      EXPECT_EQ(Steps("o"), "1 2 e2 3 e3");
      if (losses.empty()) losses = EvalLosses("o");
      EXPECT_EQ(EvalLosses("o"), losses);
      EXPECT_NE(losses[3], losses[2]) << "both evaluations used the same weights";
      const auto state = nlohmann::json::parse(ReadFile(folder_ + "/o/trainer_state.json"));
      EXPECT_EQ(state["log_history"].size(), 5u);
      EXPECT_EQ(state["log_history"][2]["eval_loss"], losses[2]);
      EXPECT_EQ(state["log_history"][4]["eval_loss"], losses[3]);
      EXPECT_EQ(state["eval_steps"], 2);
    }
  }
}

TEST_F(EvaluationTest, AResumeEvaluatesItsBorderAgain) {
  const Arguments more = {"--training.steps=4", "--training.eval_steps=2",
                          "--training.eval_samples=9", "--checkpoint.save_steps=2"};
  ASSERT_EQ(Run(Train("o", more)).first, 0);
  const std::string bits = TrainingBits("o", 4);
  const std::map<int, double> losses = EvalLosses("o");
  ASSERT_EQ(losses.size(), 2u);
  // The log contains the evaluation of the border, or does not.
  for (const bool logged : {true, false}) {
    fs::remove_all(folder_ + "/o/checkpoint-4");
    std::ofstream(folder_ + "/o/latest") << "checkpoint-2\n";
    if (!logged) {
      std::string kept;
      for (const nlohmann::json& line : Metrics("o")) {
        if (!line.contains("eval_loss")) kept += line.dump() + "\n";
      }
      std::ofstream(folder_ + "/o/metrics.jsonl") << kept;
    }
    const auto [code, output] = Run({"train", "--out=" + folder_ + "/o", "--resume=latest"});
    ASSERT_EQ(code, 0) << output;
    EXPECT_EQ(Steps("o"), "1 2 e2 3 4 e4");
    EXPECT_EQ(EvalLosses("o"), losses);
    EXPECT_EQ(TrainingBits("o", 4), bits);
  }
}

// A worker is killed during an evaluation that would take minutes.
TEST_F(EvaluationTest, AWorkerMayDieDuringAnEvaluation) {
  WriteModel(256);
  for (const bool at_the_end : {false, true}) {
    const std::string out = at_the_end ? "end" : "middle";
    const auto child =
        Start(Train(out, {at_the_end ? "--training.steps=2" : "--training.steps=9",
                          "--storage.kind=dram", "--training.clip=none", "--training.eval_steps=2",
                          "--training.eval_samples=3000000"}),
              /*read_stdout=*/true);
    const auto deadline = Clock::now() + kPatience;
    ASSERT_TRUE(child->WaitForLine("step: 2/", deadline).ok());
    if (at_the_end) {
      ASSERT_TRUE(child->WaitForLine("checkpoint: ", deadline).ok());
    }
    KillWorker(child->pid());
    if (at_the_end) {
      // The run has saved all results of training.
      EXPECT_TRUE(child->WaitForLine("note: no evaluation after the last step: ", deadline).ok());
      EXPECT_EQ(CodeOf(child.get()), 0);
      EXPECT_TRUE(fs::exists(folder_ + "/end/checkpoint-2/eps/manifest.json"));
    } else {
      // No other worker takes over its parts.
      EXPECT_GT(CodeOf(child.get()), 0);
      const std::string output = ReadFile(child->log_path());
      EXPECT_TRUE(absl::StrContains(output, "worker 0")) << output;
    }
  }
}

TEST_F(EvaluationTest, AnInterruptWaitsForALongEvaluation) {
  WriteModel(256);
  const auto child =
      Start(Train("o", {"--training.steps=9", "--training.eval_steps=2",
                        "--training.eval_samples=60000", "--servers.worker_timeout=200ms"}),
            /*read_stdout=*/true);
  const auto deadline = Clock::now() + kPatience;
  ASSERT_TRUE(child->WaitForLine("step: 2/", deadline).ok());
  child->Signal(SIGINT);
  ASSERT_TRUE(child->WaitForLine("interrupted: ", deadline).ok());
  EXPECT_TRUE(child->WaitForLine("checkpoint: ", deadline).ok());
  EXPECT_EQ(CodeOf(child.get()), 130);
  EXPECT_EQ(Steps("o"), "1 2 e2 3");
}

TEST_F(EvaluationTest, RefusesSettingsThatWouldEvaluateNothing) {
  std::ofstream(folder_ + "/gpt2.json")
      << R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 64,)"
      << R"( "n_layer": 1, "n_head": 1})";
  std::ofstream(folder_ + "/train.txt") << std::string(400, 'a');
  std::ofstream(folder_ + "/short.txt") << "0123456789012345";
  std::ofstream(folder_ + "/fine.txt") << std::string(33, 'b');
  std::ofstream(folder_ + "/ids.bin") << std::string(2 * 17, '\x01');
  std::ofstream(folder_ + "/odd.bin") << "123";
  const auto gpt2 = [&](Arguments more) {
    Arguments arguments = {"train", "--model=" + folder_ + "/gpt2.json",
                           "--data=" + folder_ + "/train.txt", "--training.parts=2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const std::string path = "--data.eval_path=" + folder_;
  const std::string every = "--training.eval_steps=1";
  const struct {
    Arguments arguments;
    std::vector<std::string> texts;
  } cases[] = {
      {gpt2({every}), {"training.eval_steps is 1", "data.eval_path"}},
      {gpt2({path + "/fine.txt"}), {"training.eval_steps is 0", "data.eval_path"}},
      {gpt2({every, path + "/none.txt"}), {"none.txt", "data.eval_path"}},
      {gpt2({every, path + "/odd.bin"}), {"odd.bin", "data.eval_path", "3 bytes"}},
      {gpt2({every, path + "/short.txt"}), {"16 tokens", "training.seq_len + 1 = 17"}},
      {gpt2({every, path + "/ids.bin"}), {"ids.bin", "token 0 ", "id 257"}},
      {gpt2({every, path + "/fine.txt", "--training.eval_samples=3"}),
       {"training.eval_samples is 3", "holds 2 whole samples"}},
      {Train("o", {every}), {"training.eval_samples"}},
  };
  for (const auto& c : cases) {
    const auto [code, output] = Run(c.arguments);
    EXPECT_NE(code, 0);
    for (const std::string& text : c.texts) {
      EXPECT_TRUE(absl::StrContains(output, text)) << text << " in " << output;
    }
  }
}

TEST_F(EvaluationTest, RefusesDataOfAnotherFormBeforeWriting) {
  std::string wide;  // 100 ids as little-endian uint32
  for (int i = 0; i < 100; ++i) wide.append("ab\0\0", 4);
  const std::pair<const char*, std::string> files[] = {{"a.jsonl", "{\"text\": \"a\"}\n"},
                                                       {"a.csv", "text,label\n"},
                                                       {"a.parquet", "PAR1"},
                                                       {"a.arrow", "x"},
                                                       {"a.jsonl.gz", "x"},
                                                       {"a.txt", "\x1f\x8b\x08 and more"},
                                                       {"a.bin", wide}};
  std::ofstream(folder_ + "/train.txt") << std::string(4000, 'a');
  for (const auto& [name, bytes] : files) {
    const std::string file = folder_ + "/" + name;
    std::ofstream(file, std::ios::binary) << bytes;
    const Arguments as_data = {"--data=" + file};
    const Arguments as_held_out = {"--data=" + folder_ + "/train.txt", "--data.eval_path=" + file,
                                   "--training.eval_steps=1"};
    for (const Arguments& data : {as_data, as_held_out}) {
      Arguments arguments = {"train", "--out=" + folder_ + "/out"};
      arguments.insert(arguments.end(), data.begin(), data.end());
      const auto [code, output] = Run(arguments);
      EXPECT_EQ(code, 65) << output;
      EXPECT_TRUE(absl::StrContains(output, file)) << output;
      EXPECT_TRUE(absl::StrContains(output, "eps data make")) << output;
      EXPECT_FALSE(std::filesystem::exists(folder_ + "/out")) << output;
    }
  }
}

}  // namespace
}  // namespace eps
