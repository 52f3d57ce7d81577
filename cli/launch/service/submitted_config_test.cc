#include "cli/launch/service/submitted_config.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

TEST(SubmittedConfig, MaySayWhatAJobComputes) {
  const absl::StatusOr<Config> config = ReadSubmittedConfig(
      "model:\n  path: m\ndata: {path: [a, b]}\ntraining:\n  steps: 7\nlora:\n  r: 4\n"
      "checkpoint:\n  save-steps: 3\ngradient_accumulation_steps: 2\nmetrics:\neval:\n",
      "job.yaml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->training.steps, 7u);
  EXPECT_EQ(config->checkpoint.save_steps, 3u);
}

TEST(SubmittedConfig, NamesKeysOfMachinesAndFolders) {
  struct Case {
    const char* yaml;
    const char* says;
  };
  const std::vector<Case> cases = {
      {"training:\n  steps: 3\nservers:\n  threads: 2\n", "job.yaml:3: servers: "},
      {"servers: 2\n", "job.yaml:1: servers: "},
      {"\nstorage.path: /x\n", "job.yaml:2: storage.path: "},
      {"worker:\n  count: 2\n", "job.yaml:1: worker: "},
      {"checkpoint:\n  save_steps: 2\n  dir: /x\n", "job.yaml:3: checkpoint.dir: "},
      {"checkpoint.dir: /x\n", "job.yaml:1: checkpoint.dir: "},
      {"checkpoint:\n  on_saved: rm -r /\n", "job.yaml:2: checkpoint.on_saved: "},
      {"checkpoint.on-saved: rm -r /\n", "job.yaml:1: checkpoint.on_saved: "},
      {"optimizer:\n  name: plugin\n  plugin: /x.so\n", "job.yaml:3: optimizer.plugin: "},
      {"quantization:\n  plugin: /x.so\n", "job.yaml:2: quantization.plugin: "},
      {"optimizer.plugin: /x.so\n", "job.yaml:1: optimizer.plugin: "},
      {"training:\n  stepps: 3\n", "did you mean training.steps?"},
      {"training: [", "not YAML"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ReadSubmittedConfig(c.yaml, "job.yaml").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.yaml << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.yaml << status;
  }
}

TEST(SubmittedConfig, HasAtMost256KiB) {
  const std::string comment = "#" + std::string(kMaxJobConfigBytes, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(ReadSubmittedConfig(comment, "job.yaml").status()));
}

}  // namespace
}  // namespace eps
