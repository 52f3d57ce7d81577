#include "base/config/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config/hub_cache.h"
#include "base/files/files.h"
#include "base/job/models/model_family.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxFileBytes = uintmax_t{64} << 20;

// Beside the weights of models on the Hub.
constexpr const char* kModelFiles[] = {
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
};

// The families whose description is not config.json, but a file that somebody exported.
bool IsExported(const ModelFamily& family) {
  return absl::string_view(family.file()) != ModelFamily::kConfigJson;
}

absl::StatusOr<std::string> ReadDescription(const std::string& path) {
  absl::StatusOr<std::string> text = ReadTextFile(path);
  if (text.ok()) return text;
  return absl::Status(text.status().code(), absl::StrCat("model.path: ", text.status().message()));
}

absl::StatusOr<ModelSpec> Read(const ModelFamily& family, const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadDescription(path));
  return family.Parse(text, path);
}

std::string WithFloat32(const std::string& text) {
  auto config = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return text;
  for (const char* const key : {"dtype", "torch_dtype"}) {
    if (config.contains(key)) config[key] = "float32";
  }
  return config.dump(2, ' ', /*ensure_ascii=*/false,
                     nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace

absl::StatusOr<ModelPlace> FindModel(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error) && IsHubName(path)) {
    EPS_ASSIGN_OR_RETURN(const HubModel model, FindInHubCache(path));
    return ModelPlace{model.folder, model.name};
  }
  const std::string absolute = fs::absolute(path, error).string();
  return ModelPlace{absolute, absolute};
}

absl::StatusOr<ModelSpec> ReadModelFolder(const std::string& path) {
  std::error_code error;
  EPS_ASSIGN_OR_RETURN(const ModelPlace place, FindModel(path));
  const fs::path given = place.path;
  const bool is_folder = fs::is_directory(given, error);
  for (const ModelFamily* const family : Families()) {
    if (!IsExported(*family)) continue;
    const fs::path in_folder = given / family->file();
    if (is_folder && fs::exists(in_folder, error)) return Read(*family, in_folder.string());
    if (!is_folder && absl::EndsWith(given.string(), absl::StrCat("/", family->file()))) {
      return Read(*family, given.string());
    }
  }
  const std::string file = (is_folder ? given / ModelFamily::kConfigJson : given).string();
  EPS_ASSIGN_OR_RETURN(const std::string json, ReadDescription(file));
  return ParseModel(json, file);
}

bool IsUnknownModel(const std::string& path) {
  std::error_code error;
  const absl::StatusOr<ModelPlace> place = FindModel(path);
  if (!place.ok() || !fs::is_directory(place->path, error)) return false;
  const absl::StatusOr<std::string> text =
      ReadTextFile((fs::path(place->path) / ModelFamily::kConfigJson).string());
  if (!text.ok() || HoldsExportedModel(place->path)) return false;
  const auto config = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object() || !config.contains("model_type")) return false;
  const nlohmann::json& type = config["model_type"];
  return type.is_string() &&
         std::none_of(Families().begin(), Families().end(), [&](const ModelFamily* family) {
           return !IsExported(*family) && type == family->hf_type();
         });
}

bool HoldsExportedModel(const std::string& folder) {
  std::error_code error;
  return std::any_of(Families().begin(), Families().end(), [&](const ModelFamily* family) {
    return IsExported(*family) && fs::exists(fs::path(folder) / family->file(), error);
  });
}

std::string FolderOfModel(const std::string& path) {
  std::error_code error;
  const absl::StatusOr<ModelPlace> place = FindModel(path);
  const fs::path given = place.ok() ? fs::path(place->path) : fs::absolute(path, error);
  if (fs::is_directory(given, error)) return given.string();
  for (const ModelFamily* const family : Families()) {
    const std::string suffix = absl::StrCat("/", family->file());
    if (IsExported(*family) && absl::EndsWith(given.string(), suffix)) {
      return given.string().substr(0, given.string().size() - suffix.size());
    }
  }
  return given.parent_path().string();
}

std::map<std::string, std::string> FilesOfModel(const std::string& folder) {
  std::map<std::string, std::string> files;
  if (folder.empty()) return files;
  for (const char* const name : kModelFiles) {
    std::error_code error;
    const fs::path path = fs::path(folder) / name;
    if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kMaxFileBytes) continue;
    absl::StatusOr<std::string> content = ReadTextFile(path.string());
    if (!content.ok()) continue;
    const bool is_config = absl::string_view(name) == ModelFamily::kConfigJson;
    files[name] = is_config ? WithFloat32(*content) : *std::move(content);
  }
  return files;
}

}  // namespace eps
