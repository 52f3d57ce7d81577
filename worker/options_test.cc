#include "worker/options.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Environment = std::map<std::string, std::string>;

WorkerOptions ParseWorker(const std::vector<std::string>& arguments,
                          const Environment& environment = {}) {
  std::vector<std::string> all = {"worker"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  auto options = ParseProgramOptions(all, environment);
  EXPECT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->command, ProgramOptions::Command::kWorker);
  return options->worker;
}

TEST(WorkerOptionsTest, ReadsShortFormsAndKeys) {
  const WorkerOptions options =
      ParseWorker({"--servers=a:1, b:2", "--data=x y.txt", "--data", "z,1.txt", "--worker.rank=1",
                   "--worker.count", "3", "--worker.prefetch=0", "--report=/tmp/r"});
  EXPECT_EQ(options.servers, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(options.config.data.path, (std::vector<std::string>{"x y.txt", "z,1.txt"}));
  EXPECT_EQ(options.config.worker.rank, 1);
  EXPECT_EQ(options.config.worker.count, 3);
  EXPECT_EQ(options.config.worker.prefetch, 0);
  EXPECT_EQ(options.report_path, "/tmp/r");
}

TEST(WorkerOptionsTest, LayersFlagsOverEnvironmentOverFile) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/config.yaml");
  std::ofstream(path) << "worker:\n  threads: 5\n  prefetch: 2\n  stash: device\n";
  const WorkerOptions options = ParseWorker({absl::StrCat("--config=", path), "--worker.threads=7"},
                                            {{"EPS_SERVERS", "h:9"},
                                             {"EPS_WORKER__THREADS", "6"},
                                             {"EPS_WORKER__PREFETCH", "3"},
                                             {"EPS_LOG", "debug"}});
  EXPECT_EQ(options.config.worker.threads, 7);
  EXPECT_EQ(options.config.worker.prefetch, 3);
  EXPECT_EQ(options.config.worker.stash, "device");
  EXPECT_EQ(options.servers, std::vector<std::string>{"h:9"});
}

TEST(WorkerOptionsTest, ReadsRankAndCountFromALauncher) {
  WorkerOptions options = ParseWorker({"--servers=a:1"}, {{"RANK", "2"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(options.config.worker.rank, 2);
  EXPECT_EQ(options.config.worker.count, 4);
  options = ParseWorker({"--servers=a:1", "--worker.count=8"},
                        {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"EPS_WORKER__RANK", "5"}});
  EXPECT_EQ(options.config.worker.rank, 5);
  EXPECT_EQ(options.config.worker.count, 8);
}

TEST(WorkerOptionsTest, ReadsPlaceAndServersFromALauncher) {
  Environment environment = {{"RANK", "5"},           {"WORLD_SIZE", "6"},
                             {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "host"}, {"MASTER_PORT", "29500"}};
  WorkerOptions options = ParseWorker({}, environment);
  EXPECT_EQ(options.servers, std::vector<std::string>{"host:50151"});
  EXPECT_EQ(options.config.worker.rank, 5);
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.local_count, 2);
  environment["MASTER_ADDR"] = "fe80::1";
  EXPECT_EQ(ParseWorker({}, environment).servers, std::vector<std::string>{"[fe80::1]:50151"});
  // Any setting that names servers overrides the launcher's.
  EXPECT_EQ(ParseWorker({"--servers=a:1"}, environment).servers, std::vector<std::string>{"a:1"});
  environment["EPS_SERVERS"] = "b:2";
  EXPECT_EQ(ParseWorker({}, environment).servers, std::vector<std::string>{"b:2"});
  options = ParseWorker({"--servers=a:1"});
  EXPECT_EQ(options.local_rank, 0);
  EXPECT_EQ(options.local_count, 1);
}

TEST(WorkerOptionsTest, LauncherErrorsNameTheVariable) {
  const struct {
    Environment environment;
    std::vector<std::string> texts;
  } cases[] = {
      {{{"RANK", "x"}, {"WORLD_SIZE", "2"}}, {"RANK is \"x\""}},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK is \"-1\""}},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK is 2", "WORLD_SIZE = 2"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE is \"0\""}},
      {{{"RANK", "0"}}, {"RANK is set", "WORLD_SIZE is not"}},
      {{{"WORLD_SIZE", "3"}}, {"WORLD_SIZE is set", "RANK is not"}},
      {{{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}}, {"LOCAL_RANK is 1", "LOCAL_WORLD_SIZE"}},
      {{{"LOCAL_RANK", ""}, {"LOCAL_WORLD_SIZE", "1"}}, {"LOCAL_RANK is \"\""}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "3"}},
       {"LOCAL_WORLD_SIZE is 3", "WORLD_SIZE = 2"}},
      {{{"MASTER_PORT", "99999"}}, {"MASTER_PORT"}},
      {{{"MASTER_PORT", "http"}}, {"MASTER_PORT"}},
      {{{"MASTER_ADDR", ""}}, {"MASTER_ADDR"}},
      {{{"MASTER_ADDR", "a b"}}, {"MASTER_ADDR is \"a b\""}},
      {{{"MASTER_ADDR", "http://a"}}, {"MASTER_ADDR"}},
  };
  for (const auto& c : cases) {
    const bool needs_servers = c.environment.count("MASTER_ADDR") == 0;
    const absl::Status status =
        ParseProgramOptions(needs_servers ? std::vector<std::string>{"worker", "--servers=a:1"}
                                          : std::vector<std::string>{"worker"},
                            c.environment)
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.texts[0];
    for (const std::string& text : c.texts) {
      EXPECT_TRUE(absl::StrContains(status.message(), text)) << status << " lacks " << text;
    }
  }
}

TEST(ProgramOptionsTest, CalibrateTakesAShape) {
  const auto options = ParseProgramOptions(
      {"calibrate", "--width=512", "--heads=16", "--seq-len=128", "--samples=3", "--threads=2"},
      {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->command, ProgramOptions::Command::kCalibrate);
  EXPECT_EQ(options->calibrate.width, 512u);
  EXPECT_EQ(options->calibrate.heads, 16u);
  EXPECT_EQ(options->calibrate.seq_len, 128u);
  EXPECT_EQ(options->calibrate.samples, 3u);
  EXPECT_EQ(options->calibrate.runtime.threads, 2);
}

TEST(WorkerOptionsTest, ReadsTheOptionsOfGenerate) {
  auto options = ParseProgramOptions({"generate", "--model=m", "--prompt-ids=1,22,3", "--tokens=9",
                                      "--seed=4", "--temperature=0.5", "--top-k=3"},
                                     {});
  ASSERT_TRUE(options.ok()) << options.status();
  const GenerateOptions& g = options->generate;
  EXPECT_EQ(options->command, ProgramOptions::Command::kGenerate);
  EXPECT_EQ(g.model_dir, "m");
  EXPECT_EQ(g.prompt_ids, (std::vector<int32_t>{1, 22, 3}));
  EXPECT_EQ(g.tokens, 9u);
  EXPECT_EQ(g.sampling.seed, 4u);
  EXPECT_EQ(g.sampling.temperature, 0.5);
  EXPECT_EQ(g.sampling.top_k, 3u);
}

TEST(WorkerOptionsTest, ErrorsNameTheArgument) {
  const struct {
    std::vector<std::string> arguments;
    std::string text;
  } cases[] = {
      {{}, "eps-worker needs worker, generate, calibrate"},
      {{"work"}, "work"},
      {{"worker"}, "--servers"},
      {{"worker", "--servers=2"}, "servers.addresses"},
      {{"worker", "--servers=a:1", "--worker.thread=2"}, "worker.threads"},
      {{"worker", "--servers=a:1", "--worker.threads"}, "--worker.threads"},
      {{"worker", "--servers=a:1", "--worker.rank=1"}, "worker.rank"},
      {{"worker", "--servers=a:1", "file.txt"}, "file.txt"},
      {{"worker", "--servers=a:1", "--config=/nowhere.yaml"}, "/nowhere.yaml"},
      {{"generate", "--prompt=a"}, "--model"},
      {{"generate", "--model=m", "--prompt=a", "--prompt-ids=1"}, "--prompt-ids"},
      {{"generate", "--model=m", "--prompt-ids=1,,2"}, "--prompt-ids"},
      {{"generate", "--model=m", "--prompt-ids=-1"}, "--prompt-ids"},
      {{"generate", "--model=m", "--temperature=-1"}, "--temperature"},
      {{"generate", "--model=m", "--tokens=many"}, "--tokens"},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParseProgramOptions(c.arguments, {}).status();
    EXPECT_FALSE(status.ok()) << c.text;
    EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << status << " lacks " << c.text;
  }
}

}  // namespace
}  // namespace eps
