#include "cli/launch/service/data_roots.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/model_folder.h"
#include "base/status_macros.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// Resolves the links in the part of `path` that exists.
std::string Resolved(const fs::path& path) {
  std::error_code error;
  fs::path resolved = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) resolved = fs::absolute(path, error).lexically_normal();
  return resolved.string();
}

}  // namespace

absl::StatusOr<DataRoots> DataRoots::Open(const std::vector<std::string>& roots) {
  std::vector<std::string> resolved;
  std::error_code error;
  for (const std::string& root :
       roots.empty() ? std::vector<std::string>{fs::current_path(error).string()} : roots) {
    if (!fs::is_directory(root, error)) {
      return absl::NotFoundError(absl::StrCat("--data-root: ", root, " is not a folder"));
    }
    resolved.push_back(Resolved(root));
  }
  return DataRoots(std::move(resolved));
}

bool DataRoots::Holds(const std::string& resolved) const {
  const fs::path path = resolved;
  return std::any_of(roots_.begin(), roots_.end(), [&](const std::string& text) {
    const fs::path root = text;
    return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
  });
}

absl::Status DataRoots::Refuse(const std::string& key, const std::string& path,
                               const std::string& target) const {
  return absl::PermissionDeniedError(
      absl::StrCat(key, path, path == target ? "" : absl::StrCat(", which is ", target, ","),
                   " is not below a folder that this driver's jobs may read (--data-root): ",
                   absl::StrJoin(roots_, ", ")));
}

absl::Status DataRoots::CheckLinks(const std::string& key, const std::string& folder,
                                   bool deep) const {
  std::set<std::string> seen = {folder};
  std::vector<std::string> folders = {folder};
  while (!folders.empty()) {
    const std::string next = folders.back();
    folders.pop_back();
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(next, error)) {
      const std::string target =
          entry.is_symlink(error) ? Resolved(entry.path()) : entry.path().string();
      if (!Holds(target)) return Refuse(key, entry.path().string(), target);
      if (deep && fs::is_directory(target, error) && seen.insert(target).second) {
        folders.push_back(target);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status DataRoots::CheckPath(const std::string& key, const std::string& path) const {
  std::error_code error;
  const std::string resolved = Resolved(path);
  if (!Holds(resolved)) return Refuse(key, path, resolved);
  if (!fs::is_directory(resolved, error)) return absl::OkStatus();
  return CheckLinks(key, resolved, /*deep=*/true);
}

absl::Status DataRoots::Check(const Config& config) const {
  for (const std::string& path : config.data.path) {
    EPS_RETURN_IF_ERROR(CheckPath("data.path: ", path));
  }
  for (const std::string& path : config.data.eval_path) {
    EPS_RETURN_IF_ERROR(CheckPath("data.eval_path: ", path));
  }
  const std::string& model = config.model.path;
  if (!model.empty()) {
    EPS_ASSIGN_OR_RETURN(const ModelPlace place, FindModel(model));
    EPS_RETURN_IF_ERROR(CheckPath("model.path: ", place.path));
    // The folder of a description may hold weights beside it.
    EPS_RETURN_IF_ERROR(CheckLinks("model.path: ", Resolved(FolderOfModel(model)), /*deep=*/false));
  }
  const std::string& resume = config.checkpoint.resume;
  if (resume != "none" && resume != "latest") {
    EPS_RETURN_IF_ERROR(CheckPath("checkpoint.resume: ", resume));
  }
  // A description of machines may also be the name of an example.
  std::error_code error;
  const std::string& hardware = config.metrics.hardware;
  if (fs::exists(hardware, error)) EPS_RETURN_IF_ERROR(CheckPath("metrics.hardware: ", hardware));
  return absl::OkStatus();
}

}  // namespace eps
