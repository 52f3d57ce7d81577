#include "cli/launch/tools/wandb_export.h"

#include "absl/strings/str_cat.h"
#include "base/folder.h"
#include "base/status_macros.h"
#include "cli/launch/child_process.h"
#include "cli/launch/tools/python_run.h"

namespace eps {
namespace {

absl::Status CallTool(const std::string& folder, const std::string& argument) {
  EPS_RETURN_IF_ERROR(CreateFolder(folder + "/logs"));
  PythonCall call;
  call.name = "metrics.wandb: eps wandb";
  call.module = "eps_metrics.wandb_run";
  call.arguments = {argument};
  call.log_path = folder + "/logs/wandb.log";
  return RunPythonTool(call);
}

}  // namespace

absl::Status CheckWandb(const Config& config) {
  if (!config.metrics.wandb) return absl::OkStatus();
  const std::string& folder = config.checkpoint.dir;
  if (folder.empty()) {
    return absl::InvalidArgumentError(
        "metrics.wandb: the run has no folder for it; set checkpoint.dir (--out)");
  }
  return CallTool(folder, "--check");
}

absl::StatusOr<std::string> WriteWandbRun(const std::string& folder) {
  EPS_RETURN_IF_ERROR(CallTool(folder, folder));
  return absl::StrCat(LastLines(folder + "/logs/wandb.log", 1), "\n");
}

}  // namespace eps
