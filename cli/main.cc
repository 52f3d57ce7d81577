// `eps`: the front of the project. Free of LibTorch; commands that compute are other programs,
// which it becomes (worker, generate, verify) or starts (train).

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/measure/bench_depth.h"
#include "cli/measure/calibrate.h"
#include "cli/commands/checkpoint_command.h"
#include "cli/commands/codec_command.h"
#include "base/config/command_line.h"
#include "cli/commands/doctor.h"
#include "cli/commands/import_deepspeed.h"
#include "cli/commands/plan_command.h"
#include "cli/launch/run_config.h"
#include "cli/launch/serve.h"
#include "cli/launch/siblings.h"
#include "cli/commands/simulate_command.h"
#include "cli/commands/state_command.h"
#include "cli/commands/status_command.h"
#include "cli/commands/train.h"
#include "cli/commands/verify_command.h"
#include "base/exit_code.h"
#include "base/status_macros.h"

namespace eps {
namespace {

absl::Status RunWithConfig(const CommandLine& line) {
  EPS_ASSIGN_OR_RETURN(const RunConfig run, ResolveConfig(line, ProcessEnvironment()));
  switch (line.command) {
    case Command::kTrain:
      return RunTrain(run);
    case Command::kServe:
      return RunServe(run.config);
    case Command::kStatus:
      return RunStatus(run.config, line.json);
    case Command::kDoctor:
      return RunDoctor(run.config);
    default:
      break;
  }
  std::fputs(run.config.ToYaml().c_str(), stdout);
  return absl::OkStatus();
}

absl::Status RunCommand(const std::vector<std::string>& arguments) {
  if (arguments.size() >= 2 && arguments[0] == "bench" && arguments[1] == "depth") {
    return RunBenchDepth({arguments.begin() + 2, arguments.end()});
  }
  if (arguments.size() >= 2 && arguments[0] == "bench" && arguments[1] == "calibrate") {
    return RunBenchCalibrate({arguments.begin() + 2, arguments.end()});
  }
  EPS_ASSIGN_OR_RETURN(const CommandLine line, ParseCommandLine(arguments));
  std::vector<std::string> passed_on = line.passed_on;
  switch (line.command) {
    case Command::kHelp:
      std::fputs(line.text.c_str(), stdout);
      return absl::OkStatus();
    case Command::kConfigReference:
      std::fputs(ConfigReference().c_str(), stdout);
      return absl::OkStatus();
    case Command::kConfigImportDeepSpeed:
      return RunImportDeepSpeed(passed_on.at(0));
    case Command::kWorker:
      passed_on.insert(passed_on.begin(), "worker");
      return BecomeSibling("eps-worker", passed_on);
    case Command::kGenerate:
      passed_on.insert(passed_on.begin(), "generate");
      return BecomeSibling("eps-worker", passed_on);
    case Command::kVerify:
      return RunVerifyCommand(passed_on);
    case Command::kCheckpoint:
      return RunCheckpointCommand(passed_on);
    case Command::kState:
      return RunStateCommand(passed_on);
    case Command::kBackup:
      return RunBackupCommand(passed_on);
    case Command::kRestore:
      return RunRestoreCommand(passed_on);
    case Command::kPlan:
      return RunPlanCommand(passed_on);
    case Command::kSimulate:
      return RunSimulateCommand(passed_on);
    case Command::kCodec:
      return RunCodecCommand(passed_on);
    default:
      return RunWithConfig(line);
  }
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  const absl::Status status = eps::RunCommand(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return 0;
  std::fflush(stdout);
  // A command that has already said what happened ends with an empty text.
  if (!status.message().empty()) {
    std::fprintf(stderr, "eps: %s\n", std::string(status.message()).c_str());
  }
  return static_cast<int>(eps::ExitCodeOf(status));
}
