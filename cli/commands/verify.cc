// `eps verify`: trains, or takes a run, and compares it with a plain training loop.

#include <spawn.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config/command_line.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "cli/commands/train.h"
#include "cli/launch/child_process.h"
#include "cli/launch/run_config.h"
#include "cli/launch/siblings.h"

extern char** environ;

namespace eps {
namespace {

constexpr char kDefaultSteps[] = "5";

constexpr ConfigCommand kVerify = {"eps verify", "train, then compare with a plain training loop",
                                   /*trains=*/true};

// Returns whether there is nothing to train.
bool IsOnlyComparison(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h" || argument == "--plant=list" ||
        argument == "--run" || absl::StartsWith(argument, "--run=")) {
      return true;
    }
  }
  return false;
}

// Runs a program with this process's streams and returns its exit code.
absl::StatusOr<int> RunToEnd(const std::vector<std::string>& argv) {
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawn(&pid, argv[0].c_str(), nullptr, nullptr, pointers.data(), environ) != 0) {
    return absl::NotFoundError(absl::StrCat("verify: cannot start ", argv[0]));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::kInternal);
}

}  // namespace

absl::Status RunVerify(const std::vector<std::string>& arguments) {
  if (IsOnlyComparison(arguments)) return BecomeSibling("eps-verify", arguments);
  EPS_ASSIGN_OR_RETURN(const std::string program, FindSibling("eps-verify"));
  std::vector<std::string> compare = {program};
  std::string plant;
  std::string device;
  bool stage_programs = false;
  bool relaxed = false;
  CLI::App app{kVerify.help, kVerify.name};
  app.add_option("--plant", plant, "make a mistake on purpose; --plant=list lists them");
  app.add_option("--device", device, "cuda: compute the comparison with stage programs there");
  app.add_flag("--stage-programs", stage_programs,
               "compute the comparison with the worker's stage programs");
  app.add_flag("--relaxed", relaxed, "compare within bounds, each step from the run's own state");
  EPS_ASSIGN_OR_RETURN(CommandLine line, ParseCommandLine(kVerify, &app, arguments));
  if (!plant.empty()) compare.push_back(absl::StrCat("--plant=", plant));
  if (!device.empty()) compare.push_back(absl::StrCat("--device=", device));
  if (stage_programs) compare.push_back("--stage-programs");
  if (relaxed) compare.push_back("--relaxed");
  // First, so that the user's settings override it.
  line.settings.insert(line.settings.begin(), {"training.steps", kDefaultSteps});
  bool has_folder = false;
  for (const auto& [key, value] : line.settings) has_folder |= key == "checkpoint.dir";
  std::string folder;
  if (!has_folder) {
    EPS_ASSIGN_OR_RETURN(folder, MakeTemporaryFolder("verify"));
    line.settings.emplace_back("checkpoint.dir", folder);
  }
  line.settings.emplace_back("checkpoint.save_steps", "1");
  line.settings.emplace_back("checkpoint.save_total_limit", "0");
  EPS_ASSIGN_OR_RETURN(const RunConfig run, ResolveConfig(line, ProcessEnvironment()));
  EPS_RETURN_IF_ERROR(RunTrain(run));
  std::fflush(stdout);
  compare.push_back(absl::StrCat("--run=", run.config.checkpoint.dir));
  EPS_ASSIGN_OR_RETURN(const int code, RunToEnd(compare));
  if (code != 0) {
    if (!folder.empty()) std::fprintf(stderr, "eps: the run is kept in %s\n", folder.c_str());
    return StatusOfExitCode(code, "");
  }
  std::error_code ignored;  // a leftover temporary folder does no harm
  if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  return absl::OkStatus();
}

}  // namespace eps
