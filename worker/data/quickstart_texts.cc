#include "worker/data/quickstart_texts.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {
namespace {

constexpr char kQuickstartFolder[] = "/usr/share/common-licenses";

}  // namespace

absl::StatusOr<std::vector<std::string>> QuickstartTextFiles() {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> files;
  fs::recursive_directory_iterator it(kQuickstartFolder, error);
  const fs::recursive_directory_iterator end;
  while (!error && it != end) {
    // Ignores links: most of them repeat a file under a shorter name.
    if (it->symlink_status(error).type() == fs::file_type::regular) {
      files.push_back(it->path().string());
    }
    if (!error) it.increment(error);
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat("cannot list ", kQuickstartFolder, ": ",
                                            error.message(), "; name text files in data.path"));
  }
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no files in ", kQuickstartFolder, "; name text files in data.path"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace eps
