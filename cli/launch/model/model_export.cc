#include "cli/launch/model/model_export.h"

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/model_folder.h"
#include "base/files/files.h"
#include "base/folder.h"
#include "base/job/legality.h"
#include "base/job/models/model_program.h"
#include "base/job/names.h"
#include "base/status_macros.h"
#include "cli/launch/output_folder.h"
#include "cli/launch/tools/python_run.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// Returns whether the model of `path` is exported and has adapters.
bool HasAdapters(const std::string& path) {
  const absl::StatusOr<ModelSpec> model = ReadModelFolder(path);
  return model.ok() && model->program != nullptr && model->program->lora.r > 0;
}

// Replaces `out` by the exported model.
absl::Status Export(const std::string& folder, const Config& config, const std::string& out,
                    const std::string& logs) {
  EPS_RETURN_IF_ERROR(CreateFolder(logs));
  const std::string unfinished = out + ".tmp";
  std::error_code error;
  fs::remove_all(unfinished, error);
  PythonCall call;
  call.name = absl::StrCat("model.path: eps model export ", folder);
  call.module = "eps_models.export";
  call.arguments = {folder, absl::StrCat("--out=", unfinished)};
  call.log_path = logs + "/model-export.log";
  const Precision precision = config.training.precision;
  if (precision != Precision::kFp32) {
    call.arguments.push_back(absl::StrCat("--dtype=", NameOf(ElementTypeOf(precision))));
  }
  const LoraConfig& lora = config.lora;
  if (lora.r > 0) {
    for (std::string flag :
         {absl::StrCat("--lora-r=", lora.r), absl::StrCat("--lora-alpha=", lora.alpha),
          absl::StrCat("--lora-dropout=", lora.dropout),
          absl::StrCat("--lora-targets=", absl::StrJoin(lora.targets, ","))}) {
      call.arguments.push_back(std::move(flag));
    }
  }
  EPS_RETURN_IF_ERROR(RunPythonTool(call));
  fs::remove_all(out, error);  // the model of an earlier run
  return RenamePath(unfinished, out);
}

}  // namespace

bool NeedsExport(const Config& config) {
  if (config.checkpoint.dir.empty() || config.model.path.empty()) return false;
  if (config.lora.r > 0) return !HasAdapters(config.model.path);
  return IsUnknownModel(config.model.path);
}

absl::Status ExportModelOfRun(Config* config) {
  EPS_ASSIGN_OR_RETURN(const ModelPlace place, FindModel(config->model.path));
  std::error_code error;
  const fs::path run = fs::absolute(config->checkpoint.dir, error);
  const std::string out = (run / "model").string();
  if (ContinuesRun(config->checkpoint) && HoldsExportedModel(out)) {
    if (!fs::equivalent(out + "/config.json", place.path + "/config.json", error)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "model.path: the run in ", run.string(), " trains the model in ", out, ", and ",
          config->model.path, " is another one; omit --model to continue the run"));
    }
  } else {
    std::printf("model: exporting %s to %s\n", place.name.c_str(), out.c_str());
    std::fflush(stdout);
    EPS_RETURN_IF_ERROR(Export(place.path, *config, out, (run / "logs").string()));
  }
  config->model.path = out;
  return absl::OkStatus();
}

}  // namespace eps
