// Runs the real program with real servers and workers, mostly on a model that needs no LibTorch.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/testing/eps_fixture.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Returns the processes whose parent is `parent`.
std::set<pid_t> ChildrenOf(pid_t parent) {
  std::set<pid_t> children;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string stat = ReadFile(entry.path().string() + "/stat");
    const size_t name_end = stat.rfind(')');  // a name may contain parentheses
    if (name_end == std::string::npos) continue;
    const std::vector<std::string> fields = absl::StrSplit(stat.substr(name_end + 1), ' ');
    if (fields.size() > 2 && fields[2] == absl::StrCat(parent)) children.insert(pid);
  }
  return children;
}

std::string CommandOf(pid_t pid) {
  std::string command = ReadFile(absl::StrCat("/proc/", pid, "/cmdline"));
  for (char& c : command) c = c == '\0' ? ' ' : c;
  return command;
}

// Returns true if none of `pids` runs any more.
bool AllGone(const std::set<pid_t>& pids) {
  const auto deadline = Clock::now() + kPatience;
  while (true) {
    bool gone = true;
    for (const pid_t pid : pids) gone = gone && CommandOf(pid).empty();  // also empty for a zombie
    if (gone) return true;
    if (Clock::now() > deadline) return false;
  }
}

TEST_F(EpsTest, FlagsOverrideVariablesFileAndDefaults) {
  WriteFile(folder_ + "/c.yaml", "training:\n  steps: 1\n  seed: 1\n  seq_len: 7\n");
  const Result result =
      Run({"config", "print", "--config", folder_ + "/c.yaml", "--training.steps=3"},
          {"EPS_TRAINING__STEPS=2", "EPS_TRAINING__SEED=2", "EPS_SERVERS=a:1"});
  EXPECT_EQ(result.code, 0) << result.out;
  for (const char* line : {"  steps: 3\n", "  seed: 2\n", "  seq_len: 7\n", "  micro_batches: 1\n",
                           "  addresses: \"a:1\"\n"}) {
    EXPECT_TRUE(absl::StrContains(result.out, line)) << line << result.out;
  }
  WriteFile(folder_ + "/again.yaml", result.out);
  EXPECT_EQ(Run({"config", "print", "--config", folder_ + "/again.yaml"}).out, result.out)
      << "the printed configuration does not read back equal";
}

TEST_F(EpsTest, TrainsThroughProcessesAndShowsEachStep) {
  const Result result = Run(Train(
      "o", {"--training.steps=6", "--servers=2", "--workers=2", "--checkpoint.save_steps=4"}));
  ASSERT_EQ(result.code, 0) << result.out;
  const std::regex progress(
      R"(step: (\d+)/6 loss: \d+\.\d{4} grad_norm: \S+ lr: \d\.\d\de-?\d+ tps: [\d,]+ eta: \d+s)");
  int steps = 0;
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    std::smatch match;
    const std::string text(line);
    if (!absl::StartsWith(line, "step: ")) continue;
    ASSERT_TRUE(std::regex_match(text, match, progress)) << line;
    EXPECT_EQ(match[1], absl::StrCat(++steps));
  }
  EXPECT_EQ(steps, 6);
  for (const char* begin : {"model: synthetic, 12,544 parameters", "servers: 2,", "workers: 2,",
                            "wire per step:", "batch: ", "job: ", "done: 6 steps"}) {
    EXPECT_TRUE(absl::StrContains(result.out, absl::StrCat("\n", begin))) << begin << result.out;
  }
  std::ifstream metrics(folder_ + "/o/metrics.jsonl");
  steps = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto record = nlohmann::json::parse(line);
    EXPECT_EQ(record["step"], ++steps);
    for (const char* key : {"loss", "grad_norm", "lr", "tokens", "step_seconds",
                            "tokens_per_second", "term", "version"}) {
      EXPECT_TRUE(record.contains(key)) << key;
    }
  }
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(ReadFile(folder_ + "/o/latest"), "checkpoint-6\n");
  EXPECT_TRUE(fs::exists(folder_ + "/o/checkpoint-4/eps/manifest.json"));
  EXPECT_FALSE(fs::exists(folder_ + "/o/checkpoint-5"));
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/o/checkpoint-6/eps/config.yaml"), "parts: 2"));
  const std::string profiles = ReadFile(folder_ + "/o/checkpoint-6/eps/compute_profiles.txt");
  EXPECT_TRUE(absl::StartsWith(profiles, "libtorch ")) << profiles;
  EXPECT_TRUE(absl::StrContains(profiles, " cpu ")) << profiles;
  EXPECT_EQ(std::count(profiles.begin(), profiles.end(), '\n'), 1) << profiles;
}

TEST_F(EpsTest, ResumesOnOtherServersBitForBit) {
  const Result whole = Run(Train("whole", {"--training.steps=8", "--servers=1", "--workers=2"}));
  ASSERT_EQ(whole.code, 0) << whole.out;
  const Result first = Run(Train(
      "parts", {"--training.steps=8", "--servers=2", "--workers=2", "--checkpoint.save_steps=3"}));
  ASSERT_EQ(first.code, 0) << first.out;
  WriteFile(folder_ + "/parts/latest", "checkpoint-3\n");
  // The checkpoint holds the configuration, so no other setting is needed.
  const Result second =
      Run({"train", "--out=" + folder_ + "/parts", "--resume=latest", "--servers=3"});
  ASSERT_EQ(second.code, 0) << second.out;
  EXPECT_FALSE(absl::StrContains(second.out, "not the same job")) << second.out;
  for (const char* file :
       {"model.safetensors", "eps/exp_avg.safetensors", "eps/exp_avg_sq.safetensors"}) {
    EXPECT_TRUE(ReadFile(folder_ + "/whole/checkpoint-8/" + file) ==
                ReadFile(folder_ + "/parts/checkpoint-8/" + file))
        << file;
  }
  const auto losses = [&](const std::string& run) {
    std::vector<double> all;
    std::ifstream metrics(folder_ + "/" + run + "/metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      all.push_back(nlohmann::json::parse(line)["loss"].get<double>());
    }
    return all;
  };
  EXPECT_EQ(losses("whole").size(), 8u);
  EXPECT_EQ(losses("whole"), losses("parts"));
}

TEST_F(EpsTest, ResumesBitForBitOnAnyCluster) {
  // The checkpoint determines the parts, so the number of workers may change.
  const Arguments job = {"--training.steps=6", "--training.parts=2"};
  const auto train = [&](const std::string& out, Arguments more) {
    more.insert(more.end(), job.begin(), job.end());
    const Result result = Run(Train(out, more));
    ASSERT_EQ(result.code, 0) << result.out;
  };
  train("whole", {"--servers=2", "--workers=1"});
  const std::string expected = Digest(folder_ + "/whole/checkpoint-6");
  ASSERT_TRUE(absl::StrContains(expected, "state sha256:")) << expected;
  struct Case {
    std::string before_servers, before_workers, after_servers, after_workers;
  };
  for (const Case& c : {Case{"1", "2", "2", "1"}, Case{"2", "1", "1", "2"}}) {
    const std::string out = absl::StrCat("o", c.before_servers, c.before_workers);
    train(out, {"--servers=" + c.before_servers, "--workers=" + c.before_workers,
                "--checkpoint.save_steps=3"});
    EXPECT_EQ(Digest(folder_ + "/" + out + "/checkpoint-6"), expected);
    EXPECT_NE(Digest(folder_ + "/" + out + "/checkpoint-3"), expected);
    fs::remove_all(folder_ + "/" + out + "/checkpoint-6");
    WriteFile(folder_ + "/" + out + "/latest", "checkpoint-3\n");
    const Result resumed = Run({"train", "--out=" + folder_ + "/" + out, "--resume=latest",
                                "--servers=" + c.after_servers, "--workers=" + c.after_workers});
    ASSERT_EQ(resumed.code, 0) << resumed.out;
    EXPECT_TRUE(absl::StrContains(resumed.out, "resume: ")) << resumed.out;
    EXPECT_TRUE(absl::StrContains(resumed.out, "done: 3 steps")) << resumed.out;
    EXPECT_EQ(Digest(folder_ + "/" + out + "/checkpoint-6"), expected) << out;
  }
}

TEST_F(EpsTest, VerifyAndDigestPrintTheSameSums) {
  Arguments arguments = TrainGpt2("o", {"--training.steps=2", "--servers=2"});
  arguments[0] = "verify";
  const Result verified = Run(arguments);
  ASSERT_EQ(verified.code, 0) << verified.out;
  const std::string digest = Digest(folder_ + "/o/checkpoint-2");
  const std::vector<std::string> lines = absl::StrSplit(digest, '\n');
  ASSERT_EQ(lines.size(), 3u) << digest;
  EXPECT_TRUE(absl::StrContains(verified.out, absl::StrCat(lines[0], " ", lines[1], "\n")))
      << digest << verified.out;
}

TEST_F(EpsTest, KeepsLimitAndResumesFromLatest) {
  const Arguments arguments =
      Train("o", {"--resume=latest", "--storage.kind=dram", "--training.steps=10",
                  "--checkpoint.save_steps=1", "--checkpoint.save_total_limit=2"});
  fs::create_directories(folder_ + "/o/checkpoint-0");  // not written by this run
  const Result first = Run(arguments);
  ASSERT_EQ(first.code, 0) << first.out;
  EXPECT_TRUE(absl::StrContains(first.out, "no checkpoint in ")) << first.out;
  EXPECT_EQ(ReadFile(folder_ + "/o/latest"), "checkpoint-10\n");
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_ + "/o")) {
    left.insert(entry.path().filename().string());
  }
  EXPECT_EQ(left, (std::set<std::string>{"checkpoint-0", "checkpoint-9", "checkpoint-10", "latest",
                                         "logs", "metrics.jsonl", "report.html", "tensorboard",
                                         "trainer_state.json", ".lock"}));
  Arguments more = arguments;
  more.push_back("--training.steps=11");
  const Result second = Run(more);
  ASSERT_EQ(second.code, 0) << second.out;
  EXPECT_TRUE(absl::StrContains(second.out, "checkpoint-10, step 10")) << second.out;
  EXPECT_FALSE(fs::exists(folder_ + "/o/checkpoint-9"));
  EXPECT_TRUE(fs::exists(folder_ + "/o/checkpoint-11"));
}

TEST_F(EpsTest, RefusesToResumeFromADamagedCheckpoint) {
  ASSERT_EQ(Run(Train("o", {"--training.steps=4", "--checkpoint.save_steps=2"})).code, 0);
  const std::string latest = folder_ + "/o/checkpoint-4";
  const Result good = Run({"checkpoint", "verify", latest});
  EXPECT_EQ(good.code, 0) << good.out;
  EXPECT_TRUE(absl::StrContains(good.out, "ok: step 4, ")) << good.out;
  std::string weights = ReadFile(latest + "/model.safetensors");
  weights[weights.size() - 5] = static_cast<char>(weights[weights.size() - 5] ^ 1);
  WriteFile(latest + "/model.safetensors", weights);
  const Result bad = Run({"checkpoint", "verify", latest});
  EXPECT_EQ(bad.code, 65) << bad.out;
  EXPECT_TRUE(absl::StrContains(bad.out, "1 of ")) << bad.out;
  const Result resumed = Run(Train("o", {"--training.steps=6", "--resume=latest"}));
  EXPECT_EQ(resumed.code, 65) << resumed.out;
  EXPECT_TRUE(absl::StrContains(resumed.out, "model.safetensors: SHA-256 ")) << resumed.out;
  const std::string advice = "--resume=" + folder_ + "/o/checkpoint-2";
  EXPECT_TRUE(absl::StrContains(resumed.out, advice)) << resumed.out;
  EXPECT_FALSE(absl::StrContains(resumed.out, "to continue")) << resumed.out;
  EXPECT_EQ(Run(Train("o", {"--training.steps=6", advice})).code, 0);
  const Result table = Run({"checkpoint", "ls", folder_ + "/o"});
  EXPECT_EQ(table.code, 0);
  EXPECT_TRUE(absl::StrContains(table.out, "complete, latest")) << table.out;
}

TEST_F(EpsTest, ExactClippingIsIndependentOfServers) {
  for (const char* servers : {"1", "3"}) {
    const Result result =
        Run(Train(servers, {"--training.mode=auto", "--training.clip=exact", "--training.steps=4",
                            absl::StrCat("--servers=", servers)}));
    ASSERT_EQ(result.code, 0) << result.out;
    EXPECT_TRUE(absl::StrContains(result.out, "mode sealed, clip exact")) << result.out;
  }
  EXPECT_TRUE(ReadFile(folder_ + "/1/checkpoint-4/model.safetensors") ==
              ReadFile(folder_ + "/3/checkpoint-4/model.safetensors"));
}

TEST_F(EpsTest, AnInterruptLeavesACheckpointOnly) {
  const auto eps = Start(Train("o", {"--training.steps=1000000", "--servers=2", "--workers=2",
                                     "--metrics.log_every_steps=1"}),
                         /*read_stdout=*/true);
  ASSERT_TRUE(eps->WaitForLine("step: 5/", Clock::now() + kPatience).ok());
  const std::set<pid_t> children = ChildrenOf(eps->pid());
  EXPECT_EQ(children.size(), 4u);
  eps->Signal(SIGINT);
  const auto checkpoint = eps->WaitForLine("checkpoint: ", Clock::now() + kPatience);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(CodeOf(eps.get()), 130) << ReadFile(eps->log_path());
  EXPECT_TRUE(AllGone(children));
  EXPECT_TRUE(fs::exists(*checkpoint + "/eps/manifest.json"));
  const std::string latest = ReadFile(folder_ + "/o/latest");
  EXPECT_TRUE(absl::EndsWith(*checkpoint + "\n", "/" + latest)) << latest;
}

TEST_F(EpsTest, ASecondInterruptEndsAtOnce) {
  const auto eps = Start(Train("o", {"--training.steps=5", "--workers=0"}), /*read_stdout=*/true);
  ASSERT_TRUE(eps->WaitForLine("job: ", Clock::now() + kPatience).ok());
  const std::set<pid_t> children = ChildrenOf(eps->pid());
  EXPECT_EQ(children.size(), 1u);
  eps->Signal(SIGTERM);
  ASSERT_TRUE(eps->WaitForLine("interrupted: ", Clock::now() + kPatience).ok());
  EXPECT_TRUE(eps->Running()) << "it should wait, since no worker finishes the step";
  eps->Signal(SIGINT);
  EXPECT_EQ(CodeOf(eps.get()), 130);
  EXPECT_TRUE(AllGone(children));
}

TEST_F(EpsTest, ADeadChildFailsTheRun) {
  struct Victim {
    std::string argument;  // identifies its process
    std::string name;
  };
  for (const Victim& victim :
       {Victim{"--worker.rank=1 ", "worker 1"}, Victim{" serve ", "server "}}) {
    const auto eps =
        Start(Train("o", {"--overwrite", "--storage.kind=dram", "--training.steps=1000000",
                          "--servers=2", "--workers=2", "--checkpoint.save_steps=2"}),
              /*read_stdout=*/true);
    ASSERT_TRUE(eps->WaitForLine("checkpoint: ", Clock::now() + kPatience).ok());
    const std::set<pid_t> children = ChildrenOf(eps->pid());
    ASSERT_EQ(children.size(), 4u);
    for (const pid_t child : children) {
      if (!absl::StrContains(CommandOf(child), victim.argument)) continue;
      kill(child, SIGKILL);
      break;
    }
    EXPECT_EQ(CodeOf(eps.get()), 69);
    const std::string log = ReadFile(eps->log_path());
    EXPECT_TRUE(absl::StrContains(log, "eps: " + victim.name)) << log;
    EXPECT_TRUE(absl::StrContains(log, "was ended by signal 9")) << log;
    EXPECT_TRUE(absl::StrContains(log, "--resume=latest")) << log;
    EXPECT_TRUE(AllGone(children));
  }
}

TEST_F(EpsTest, KillingTheSupervisorLeavesNoOrphan) {
  const auto eps = Start(Train("o", {"--training.steps=1000000", "--servers=2", "--workers=1"}),
                         /*read_stdout=*/true);
  ASSERT_TRUE(eps->WaitForLine("step: 2/", Clock::now() + kPatience).ok());
  const std::set<pid_t> children = ChildrenOf(eps->pid());
  EXPECT_EQ(children.size(), 3u);
  eps->Signal(SIGKILL);
  EXPECT_EQ(CodeOf(eps.get()), 1000 + SIGKILL);
  EXPECT_TRUE(AllGone(children));
}

TEST_F(EpsTest, AttachesToRunningServersAndShowsStatus) {
  const auto server = Start({"serve"}, /*read_stdout=*/true);
  const auto address = server->WaitForLine("eps serve: listening on ", Clock::now() + kPatience);
  ASSERT_TRUE(address.ok()) << address.status();
  const std::string servers = "--servers=" + *address;
  const Result train = Run(Train("o", {"--training.steps=3", servers}));
  EXPECT_EQ(train.code, 0) << train.out;
  const Result status = Run({"status", servers});
  EXPECT_EQ(status.code, 0);
  EXPECT_TRUE(absl::StrContains(status.out, "done, job ")) << status.out;
  EXPECT_TRUE(absl::StrContains(status.out, "12,544 parameters")) << status.out;
  EXPECT_TRUE(absl::StrContains(status.out, "waits: none")) << status.out;
  const auto json = nlohmann::json::parse(Run({"status", "--json", servers}).out);
  EXPECT_EQ(json["state"], "done");
  EXPECT_EQ(json["parameters"], 12'544);
  EXPECT_GT(json["memory"]["state"]["live_bytes"], 0);
  // A second run finds the same job complete on the servers and trains nothing.
  const Result again = Run(Train("o", {"--overwrite", "--training.steps=3", servers}));
  EXPECT_EQ(again.code, 0) << again.out;
  EXPECT_TRUE(absl::StrContains(again.out, "already run this job")) << again.out;
  EXPECT_TRUE(absl::StrContains(again.out, "step: 1/3 ")) << again.out;
  EXPECT_TRUE(absl::StrContains(again.out, "done: 3 steps")) << again.out;
  server->Signal(SIGTERM);
  EXPECT_EQ(CodeOf(server.get()), 0);
}

TEST_F(EpsTest, TrainsAModelThatGenerateContinues) {
  Arguments arguments = TrainGpt2("o", {"--training.steps=3"});
  const Result train = Run(arguments);
  ASSERT_EQ(train.code, 0) << train.out;
  EXPECT_TRUE(absl::StrContains(train.out, "eps generate --model=")) << train.out;
  const Result generated =
      Run({"generate", "--model=" + folder_ + "/o/checkpoint-3", "--prompt=line", "--tokens=5"});
  EXPECT_EQ(generated.code, 0) << generated.out;
  EXPECT_TRUE(absl::StartsWith(generated.out, "line")) << generated.out;
  // Training begins with the weights beside config.json.
  arguments[1] = "--model=" + folder_ + "/o/checkpoint-3";
  arguments[2] = "--out=" + folder_ + "/tuned";
  const Result tuned = Run(arguments);
  EXPECT_EQ(tuned.code, 0) << tuned.out;
  EXPECT_TRUE(absl::StrContains(tuned.out, "weights: from ")) << tuned.out;
  // Weights in several files give the same bits.
  const Result exported = Run({"checkpoint", "export", folder_ + "/o/checkpoint-3",
                               "--out=" + folder_ + "/shards", "--max-shard-size=20KB"});
  EXPECT_EQ(exported.code, 0) << exported.out;
  arguments[1] = "--model=" + folder_ + "/shards";
  arguments[2] = "--out=" + folder_ + "/tuned-from-shards";
  const Result from_shards = Run(arguments);
  EXPECT_EQ(from_shards.code, 0) << from_shards.out;
  EXPECT_TRUE(absl::StrContains(from_shards.out, "model.safetensors.index.json")) << exported.out;
  EXPECT_EQ(Digest(folder_ + "/tuned-from-shards/checkpoint-3"),
            Digest(folder_ + "/tuned/checkpoint-3"));
}

TEST_F(EpsTest, DoctorApprovesThisMachine) {
  const Result result = Run({"doctor", "--out=" + folder_});
  EXPECT_EQ(result.code, 0) << result.out;
  for (const char* what : {"versions: ", "cpu: ", "memory: ", "disk: ", "loopback: ", "listen: ",
                           "open files: ", "io_uring: ", "worker: ", "gpu: ", "verify: "}) {
    EXPECT_TRUE(absl::StrContains(result.out, what)) << what << result.out;
  }
  EXPECT_FALSE(absl::StrContains(result.out, "fail  ")) << result.out;
}

}  // namespace
}  // namespace eps
