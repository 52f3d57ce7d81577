#include "verify/run_folder.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/config/model_folder.h"
#include "base/exit_code.h"
#include "base/files/safetensors_folder.h"
#include "base/job/initial_values.h"
#include "base/job/models/model_family.h"
#include "base/job/optimizers.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kWeights[] = "weights";
constexpr char kHowToRun[] =
    "; to make a run verifiable, train it from its first step with --out=FOLDER and "
    "--checkpoint.save_steps=1";

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return absl::NotFoundError(absl::StrCat(path, " is missing"));
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) return IoError(absl::StrCat("cannot read ", path));
  return content;
}

std::string CheckpointFolder(const std::string& run, uint64_t step) {
  return absl::StrCat(run, "/checkpoint-", step);
}

absl::Status Missing(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kNotFound) return status;
  return absl::NotFoundError(absl::StrCat(status.message(), kHowToRun));
}

// Reads a figure of a record. JSON has no NaN; records write null for it.
bool ReadNumber(const json& line, const char* key, double* value) {
  const auto it = line.find(key);
  if (it == line.end() || !(it->is_number() || it->is_null())) return false;
  *value = it->is_null() ? std::numeric_limits<double>::quiet_NaN() : it->get<double>();
  return true;
}

absl::StatusOr<std::map<uint64_t, StepFigures>> ReadFigures(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::map<uint64_t, StepFigures> all;
  int number = 0;
  for (absl::string_view piece : absl::StrSplit(text, '\n')) {
    ++number;
    if (piece.empty()) continue;
    const json line = json::parse(piece.begin(), piece.end(), nullptr, /*allow_exceptions=*/false);
    // An evaluation, not a training step.
    if (line.is_object() && line.contains("eval_loss")) continue;
    StepFigures figures;
    const auto whole = [&](const char* key) {
      return line.contains(key) && line[key].is_number_unsigned();
    };
    const bool complete = line.is_object() && whole("step") && whole("tokens") &&
                          ReadNumber(line, "loss", &figures.loss) &&
                          ReadNumber(line, "grad_norm", &figures.grad_norm) &&
                          ReadNumber(line, "lr", &figures.lr);
    if (!complete) {
      return absl::DataLossError(absl::StrCat(
          path, ":", number, ": not a record with step, loss, grad_norm, lr and tokens"));
    }
    figures.tokens = line["tokens"].get<uint64_t>();
    figures.skipped = line.contains("skipped") && line["skipped"] == true;
    const auto step = line["step"].get<uint64_t>();
    if (!all.emplace(step, figures).second) {
      return absl::DataLossError(
          absl::StrCat(path, ":", number, ": a second record of step ", step));
    }
  }
  return all;
}

}  // namespace

std::vector<std::string> StateArrayNames(const JobSpec& spec) {
  std::vector<std::string> names = {kWeights};
  for (const std::string& field : StateFields(spec.optimizer)) names.push_back(field);
  return names;
}

absl::StatusOr<RunFolder> RunFolder::Open(const std::string& path) {
  RunFolder run;
  run.path_ = path;
  const std::string eps = CheckpointFolder(path, 1) + "/eps/";
  absl::StatusOr<std::string> text = ReadFile(eps + "job_spec.txt");
  if (!text.ok()) return Missing(text.status());
  absl::StatusOr<JobSpec> spec = JobSpec::Parse(*text);
  if (!spec.ok()) {
    return absl::DataLossError(absl::StrCat(eps, "job_spec.txt: ", spec.status().message()));
  }
  run.spec_ = *std::move(spec);
  run.spec_text_ = *std::move(text);
  const absl::StatusOr<std::string> yaml = ReadFile(eps + "config.yaml");
  if (yaml.ok()) {
    const absl::Status merged = run.config_.MergeYaml(*yaml, eps + "config.yaml");
    if (!merged.ok()) return absl::DataLossError(merged.message());
  }
  auto figures = ReadFigures(path + "/metrics.jsonl");
  if (!figures.ok()) return Missing(figures.status());
  run.figures_ = *std::move(figures);
  return run;
}

absl::StatusOr<RecordedState> RunFolder::OpenState(uint64_t step) const {
  const std::string folder = CheckpointFolder(path_, step);
  const absl::StatusOr<std::string> text = ReadFile(folder + "/eps/job_spec.txt");
  if (!text.ok()) return Missing(text.status());
  const std::string difference = FirstDifference(*text, spec_text_);
  if (!difference.empty()) {
    return absl::DataLossError(
        absl::StrCat(folder, " belongs to another job than checkpoint-1: ", difference));
  }
  RecordedState state;
  for (const std::string& name : StateArrayNames(spec_)) {
    const std::string file =
        name == kWeights ? "model.safetensors" : absl::StrCat("eps/", name, ".safetensors");
    auto array = RecordedArray::Open(absl::StrCat(folder, "/", file), spec_, name == kWeights);
    if (!array.ok()) return Missing(array.status());
    state.push_back(*std::move(array));
  }
  return state;
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> RunFolder::OpenResiduals(uint64_t step,
                                                                            uint32_t part) const {
  auto reader = SafetensorsReader::Open(
      absl::StrFormat("%s/eps/residual-%05d.safetensors", CheckpointFolder(path_, step), part));
  if (absl::IsNotFound(reader.status())) return std::unique_ptr<SafetensorsReader>();
  return reader;
}

absl::StatusOr<std::vector<std::string>> RunFolder::ComputeProfiles(uint64_t step) const {
  const absl::StatusOr<std::string> text =
      ReadFile(CheckpointFolder(path_, step) + "/eps/compute_profiles.txt");
  if (absl::IsNotFound(text.status())) return std::vector<std::string>();
  EPS_RETURN_IF_ERROR(text.status());
  return std::vector<std::string>(absl::StrSplit(*text, '\n', absl::SkipEmpty()));
}

absl::StatusOr<StepFigures> RunFolder::Figures(uint64_t step) const {
  const auto it = figures_.find(step);
  if (it != figures_.end()) return it->second;
  return absl::DataLossError(absl::StrCat(path_, "/metrics.jsonl has no record of step ", step));
}

absl::StatusOr<TensorValues> ReadWeights(const std::string& path, const JobSpec& spec) {
  EPS_ASSIGN_OR_RETURN(const auto folder, SafetensorsFolder::Open(path));
  const ModelFamily& family = FamilyOf(spec.model.type);
  TensorValues weights;
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    const TensorSpec& tensor = spec.tensors[t];
    weights.emplace_back(tensor.elements());
    float* values = weights.back().data();
    for (const FileTensor& part : family.InFiles(spec.model, tensor, t)) {
      auto found = folder->Find(part.name);
      if (!found.ok()) found = folder->Find(absl::StripPrefix(part.name, family.optional_prefix()));
      if (found.ok() && found->entry->shape != part.shape) {
        return absl::DataLossError(absl::StrCat(path, ": tensor ", part.name,
                                                " does not have the shape that the job gives it"));
      }
      if (found.ok()) {
        EPS_RETURN_IF_ERROR(found->Read(0, part.elements(), values));
      } else if (part.is_new) {
        FillInitialValues(spec, TensorId(static_cast<uint32_t>(t)), 0,
                          absl::MakeSpan(weights.back()));
      } else {
        return absl::DataLossError(absl::StrCat(path, " has no tensor ", part.name));
      }
      values += part.elements();
    }
  }
  return weights;
}

std::string InitialWeightsFile(const Config& config) {
  if (config.model.path.empty()) return "";
  std::error_code error;
  const fs::path folder = FolderOfModel(config.model.path);
  for (const char* name : {kSafetensorsFile, kSafetensorsIndexFile}) {
    if (fs::exists(folder / name, error)) return (folder / name).string();
  }
  return "";
}

}  // namespace eps
