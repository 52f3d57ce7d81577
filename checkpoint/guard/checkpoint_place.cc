#include "checkpoint/guard/checkpoint_place.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/folder.h"
#include "base/status_macros.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kHidden = ".checkpoint-";
constexpr absl::string_view kTemporary = ".tmp";
constexpr absl::string_view kReplaced = ".old";

// Removes a folder that nobody needs any more. The next CleanCheckpoints removes what is left of
// it after an error.
void RemoveAll(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// For file systems that cannot exchange two names. `replaced` holds the older checkpoint until the
// new one is durable.
absl::Status ReplaceInTwoSteps(const std::string& root, const std::string& fresh,
                               const std::string& folder, const std::string& replaced) {
  EPS_RETURN_IF_ERROR(RenamePath(folder, replaced));
  EPS_RETURN_IF_ERROR(SyncPath(root));
  EPS_RETURN_IF_ERROR(RenamePath(fresh, folder));
  EPS_RETURN_IF_ERROR(SyncPath(root));
  RemoveAll(replaced);
  return absl::OkStatus();
}

}  // namespace

std::string TemporaryName(const std::string& root, const std::string& name) {
  return absl::StrCat(root, "/.", name, kTemporary);
}

std::string ReplacedName(const std::string& root, const std::string& name) {
  return absl::StrCat(root, "/.", name, kReplaced);
}

std::string NameOf(const std::string& root, const std::string& path) {
  const std::string last = path.substr(path.rfind('/') + 1);
  if (!absl::StartsWith(last, kHidden) || !absl::EndsWith(last, kReplaced)) return last;
  const std::string name(absl::StripSuffix(absl::StripPrefix(last, "."), kReplaced));
  std::error_code error;
  return fs::exists(absl::StrCat(root, "/", name), error) ? last : name;
}

absl::Status PlaceCheckpoint(const std::string& root, const std::string& name) {
  const std::string fresh = TemporaryName(root, name);
  const std::string folder = absl::StrCat(root, "/", name);
  std::error_code error;
  if (!fs::exists(folder, error)) {
    EPS_RETURN_IF_ERROR(RenamePath(fresh, folder));
    return SyncPath(root);
  }
  // An exchange keeps a checkpoint under the name at every moment.
  if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    EPS_RETURN_IF_ERROR(SyncPath(root));
    RemoveAll(fresh);  // the older one
    return absl::OkStatus();
  }
  if (errno == EINVAL || errno == ENOSYS) {
    return ReplaceInTwoSteps(root, fresh, folder, ReplacedName(root, name));
  }
  return IoError(absl::StrCat("cannot exchange ", folder, ": ", std::strerror(errno)));
}

absl::Status CleanCheckpoints(const std::string& root) {
  std::vector<std::string> temporary;
  std::vector<std::string> replaced;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, kHidden)) continue;
    if (absl::EndsWith(name, kTemporary)) temporary.push_back(name);
    if (absl::EndsWith(name, kReplaced)) replaced.push_back(name);
  }
  if (temporary.empty() && replaced.empty()) return absl::OkStatus();
  for (const std::string& name : replaced) {
    const std::string path = absl::StrCat(root, "/", name);
    const std::string folder =
        absl::StrCat(root, "/", absl::StripSuffix(absl::StripPrefix(name, "."), kReplaced));
    if (!fs::exists(folder, error)) EPS_RETURN_IF_ERROR(RenamePath(path, folder));
  }
  // The renames of a process that was killed may not be durable: what they replaced stays until
  // they are.
  EPS_RETURN_IF_ERROR(SyncPath(root));
  for (const auto* const names : {&temporary, &replaced}) {
    for (const std::string& name : *names) RemoveAll(absl::StrCat(root, "/", name));
  }
  return absl::OkStatus();
}

}  // namespace eps
