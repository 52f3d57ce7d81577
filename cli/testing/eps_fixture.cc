#include "cli/testing/eps_fixture.h"

#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

}  // namespace

std::string ReadFile(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

void WriteFile(const std::string& path, const std::string& content) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

EpsTest::EpsTest() {
  folder_ = absl::StrCat(testing::TempDir(), "/eps-",
                         testing::UnitTest::GetInstance()->current_test_info()->name());
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  WriteFile(folder_ + "/model/config.json",
            R"({"model_type": "eps-synthetic", "n_layer": 4, "n_embd": 64, "tied": true})");
}
EpsTest::~EpsTest() { fs::remove_all(folder_); }

std::unique_ptr<ChildProcess> EpsTest::Start(const Arguments& arguments, bool read_stdout,
                                             const Arguments& environment) {
  ChildOptions options;
  options.name = "eps";
  options.argv = {fs::absolute("cli/eps").string()};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.environment = environment;
  options.environment.push_back("PATH=/usr/bin:/bin");
  options.environment.push_back("TMPDIR=" + folder_);
  options.log_path = absl::StrCat(folder_, "/output-", ++runs_);
  options.read_stdout = read_stdout;
  auto child = ChildProcess::Start(std::move(options));
  EXPECT_TRUE(child.ok()) << child.status();
  return *std::move(child);
}

int EpsTest::CodeOf(ChildProcess* child) {
  EXPECT_TRUE(child->WaitExit(Clock::now() + kPatience)) << "it hangs";
  if (child->Running()) return -1;
  const int status = child->wait_status();
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

Result EpsTest::Run(const Arguments& arguments, const Arguments& environment) {
  const auto child = Start(arguments, /*read_stdout=*/false, environment);
  Result result;
  result.code = CodeOf(child.get());
  result.out = ReadFile(child->log_path());
  return result;
}

std::string EpsTest::Digest(const std::string& checkpoint) {
  const Result result = Run({"checkpoint", "digest", checkpoint});
  EXPECT_EQ(result.code, 0) << result.out;
  return result.out;
}

Arguments EpsTest::Train(const std::string& out, const Arguments& more) const {
  Arguments arguments = {"train",
                         "--model=" + folder_ + "/model",
                         "--out=" + folder_ + "/" + out,
                         "--training.mode=eager",
                         "--training.clip=lagged",
                         "--training.max_grad_norm=0.03"};  // always clips
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Arguments EpsTest::TrainGpt2(const std::string& out, const Arguments& more) const {
  WriteFile(folder_ + "/gpt2/config.json",
            R"({"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32,
                "vocab_size": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})");
  std::string text;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&text, "line ", i, " of a text\n");
  WriteFile(folder_ + "/text.txt", text);
  Arguments arguments = Train(out, more);
  arguments[1] = "--model=" + folder_ + "/gpt2";
  arguments.push_back("--data=" + folder_ + "/text.txt");
  return arguments;
}

}  // namespace eps
