// `eps-worker`: the project's program that computes with LibTorch.

#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "worker/exec/torch_runtime.h"
#include "worker/interrupt.h"
#include "worker/measure/step_speed.h"
#include "worker/options.h"
#include "worker/run_generate.h"
#include "worker/run_worker.h"
#include "worker/stage_speed.h"

extern char** environ;

namespace eps {
namespace {

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* const equals = std::strchr(*entry, '=');
    if (equals == nullptr) continue;
    variables.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), equals + 1);
  }
  return variables;
}

// Restarts the program with passive waiting. LibTorch's threads wait for each other by spinning,
// which is five times slower as soon as another process (a server on the same machine) needs a
// core. The library that owns the threads reads OMP_WAIT_POLICY when it is loaded, before main.
void WaitPassively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0 || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  path[length] = '\0';
  execv(path, argv);  // returns only on failure; then the threads spin
}

absl::Status Run(const std::vector<std::string>& arguments) {
  EPS_ASSIGN_OR_RETURN(const ProgramOptions options, ParseProgramOptions(arguments, Environment()));
  switch (options.command) {
    case ProgramOptions::Command::kHelp:
      std::fputs(options.help.c_str(), stdout);
      return absl::OkStatus();
    case ProgramOptions::Command::kVersion: {
      EPS_ASSIGN_OR_RETURN(const std::string profile, TorchComputeProfile(RuntimeOptions()));
      std::printf("eps-worker (%s)\ncuda: %s\n", profile.c_str(), TorchCuda().c_str());
      return absl::OkStatus();
    }
    case ProgramOptions::Command::kWorker: {
      HandleInterrupts();
      const absl::Status status = RunWorker(options.worker, Interrupted);
      return absl::IsCancelled(status) ? WithExitCode(status, InterruptExitCode()) : status;
    }
    case ProgramOptions::Command::kGenerate: {
      EPS_ASSIGN_OR_RETURN(const std::string text, RunGenerate(options.generate));
      std::printf("%s\n", text.c_str());
      return absl::OkStatus();
    }
    case ProgramOptions::Command::kCalibrate: {
      EPS_ASSIGN_OR_RETURN(const StageSpeed speed, MeasureStageSpeed(options.calibrate));
      std::printf("%s\n", StageSpeedToJson(speed).c_str());
      return absl::OkStatus();
    }
    case ProgramOptions::Command::kStep: {
      EPS_ASSIGN_OR_RETURN(const StepSpeed speed, MeasureStepSpeed(options.step));
      std::printf("%s\n", StepSpeedToJson(speed).c_str());
      return absl::OkStatus();
    }
  }
  return absl::InternalError("unknown command");
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  eps::WaitPassively(argv);
  const absl::Status status = eps::Run(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return 0;
  std::fflush(stdout);
  // As the user typed it: `eps worker` and `eps generate` become this program.
  const std::string command =
      argc > 1 && argv[1][0] != '-' ? absl::StrCat(" ", argv[1]) : "-worker";
  std::fprintf(stderr, "eps%s: %s\n", command.c_str(), std::string(status.message()).c_str());
  return static_cast<int>(eps::ExitCodeOf(status));
}
