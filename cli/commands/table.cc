#include "cli/commands/table.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/config/command_line.h"
#include "base/machine/python_tools.h"
#include "base/status_macros.h"
#include "cli/commands/train.h"
#include "cli/commands/updater.h"
#include "cli/launch/run_config.h"
#include "cli/launch/serve.h"
#include "cli/launch/siblings.h"

namespace eps {

using Arguments = std::vector<std::string>;

// Each function is defined in the file of its command.
absl::Status RunBackup(const Arguments& arguments);  // state.cc
absl::Status RunBench(const Arguments& arguments);
absl::Status RunCerts(const Arguments& arguments);  // certs/certs.cc
absl::Status RunCheckpoint(const Arguments& arguments);
absl::Status RunCodec(const Arguments& arguments);
absl::Status RunConfigCommand(const Arguments& arguments);
absl::Status RunDashboard(const Arguments& arguments);  // watch/dashboard.cc
absl::Status RunDoctor(const RunConfig& run, bool json);
absl::Status RunDriver(const Arguments& arguments);
absl::Status RunJob(const Arguments& arguments);
absl::Status RunModel(const Arguments& arguments);
absl::Status RunPlan(const Arguments& arguments);
absl::Status RunRestore(const Arguments& arguments);  // state.cc
absl::Status RunSimulate(const Arguments& arguments);
absl::Status RunState(const Arguments& arguments);
absl::Status RunStatus(const RunConfig& run, bool json);
absl::Status RunSubmit(const Arguments& arguments);
absl::Status RunTop(const Arguments& arguments);    // watch/top.cc
absl::Status RunTrace(const Arguments& arguments);  // trace/trace.cc
absl::Status RunVerify(const Arguments& arguments);

namespace {

// Returns a command that takes a configuration. `run` receives the resolved configuration and
// whether --json was given.
Command Configured(const ConfigCommand& command,
                   std::function<absl::Status(const RunConfig& run, bool json)> run) {
  const auto parse = [command, run](const Arguments& arguments) -> absl::Status {
    EPS_ASSIGN_OR_RETURN(const CommandLine line, ParseCommandLine(command, arguments));
    if (!line.help.empty()) {
      std::fputs(line.help.c_str(), stdout);
      return absl::OkStatus();
    }
    EPS_ASSIGN_OR_RETURN(const RunConfig config, ResolveConfig(line, ProcessEnvironment()));
    return run(config, line.json);
  };
  return {std::string(absl::StripPrefix(command.name, "eps ")), command.help, parse};
}

// Returns a command that replaces this process with eps-worker.
Command OfWorker(const std::string& name, const std::string& help) {
  const auto become = [name](const Arguments& arguments) {
    Arguments with_name = {name};
    with_name.insert(with_name.end(), arguments.begin(), arguments.end());
    return BecomeSibling("eps-worker", with_name);
  };
  return {name, help, become};
}

// Returns a command that replaces this process with a Python program of the room python/.
Command OfPython(const std::string& name, const std::string& help, const std::string& module) {
  const auto become = [module](const Arguments& arguments) -> absl::Status {
    EPS_ASSIGN_OR_RETURN(const PythonTools tools, FindPythonTools(PythonPlaces::Current()));
    return BecomePythonTool(tools, module, arguments);
  };
  return {name, help, become};
}

}  // namespace

const std::vector<Command>& Commands() {
  static const auto* const commands = new std::vector<Command>{
      Configured(kTrainCommand, [](const RunConfig& run, bool) { return RunTrain(run); }),
      Configured({"eps serve", "run one parameter server"},
                 [](const RunConfig& run, bool) { return RunServe(run.config); }),
      OfPython("data", "make, show, verify, split: data files of token ids (eps data --help)",
               "eps_models.data"),
      {"plan", "predict the memory and speed of a run (eps plan --help)", RunPlan},
      {"simulate", "simulate failures and stragglers (eps simulate --help)", RunSimulate},
      {"submit", "put a job on the board of running servers (eps submit --help)", RunSubmit},
      {"job", "ls, show, watch, pause, resume, cancel, rm: jobs on the board (eps job --help)",
       RunJob},
      {"driver", "run the jobs of the board one after the other (eps driver --help)", RunDriver},
      {"certs", "init, issue, cluster: certificates for TLS (eps certs --help)", RunCerts},
      OfWorker("worker", "run one worker (its own options: eps worker --help)"),
      OfWorker("generate", "continue a text (its own options: eps generate --help)"),
      {"verify", "compare with a plain training loop (eps verify --help)", RunVerify},
      {"checkpoint", "ls, digest, verify, export, save, reshard, rm (eps checkpoint --help)",
       RunCheckpoint},
      {"state", "ls, verify, rm: durable state of jobs (eps state --help)", RunState},
      {"backup", "write durable state to a folder, file or stdout (eps backup --help)", RunBackup},
      {"restore", "create durable state from a backup (eps restore --help)", RunRestore},
      {"model", "export, check: a model of PyTorch as a program (eps model --help)", RunModel},
      {"codec", "list, roundtrip, new, show, check: codecs, and one of your own (eps codec --help)",
       RunCodec},
      {"updater", "new, show, check: an optimizer of your own (eps updater --help)", RunUpdater},
      Configured({"eps status", "show what the servers of --servers hold and wait for",
                  /*trains=*/false, /*has_json=*/true},
                 RunStatus),
      {"top", "show running servers in the terminal, live (eps top --help)", RunTop},
      {"trace", "write what a running job does to a file (eps trace --help)", RunTrace},
      {"dashboard", "serve a page that shows running servers (eps dashboard --help)", RunDashboard},
      Configured({"eps doctor", "check that this machine can run EPS"}, RunDoctor),
      OfPython("wandb", "write a run's metrics for Weights & Biases (eps wandb --help)",
               "eps_metrics.wandb_run"),
      {"config", "print, reference, import-deepspeed (eps config --help)", RunConfigCommand},
      {"bench", "depth, calibrate, gpu: measure this machine (eps bench depth --help)", RunBench},
  };
  return *commands;
}

}  // namespace eps
