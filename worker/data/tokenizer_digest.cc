#include "worker/data/tokenizer_digest.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "worker/data/mapped_file.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr char kWholeFile[] = "tokenizer.json";
constexpr const char* kOtherFiles[] = {"vocab.json", "merges.txt", "vocab.txt"};
constexpr char kModelEnding[] = ".model";

// Returns the names of the files that define the ids, sorted.
std::vector<std::string> FilesOf(const std::string& folder) {
  std::error_code error;
  const auto exists = [&](const char* name) {
    return fs::is_regular_file(fs::path(folder) / name, error);
  };
  if (exists(kWholeFile)) return {kWholeFile};
  std::vector<std::string> names;
  for (const char* name : kOtherFiles) {
    if (exists(name)) names.push_back(name);
  }
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (absl::EndsWith(name, kModelEnding) && exists(name.c_str())) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<std::string> TokenizerDigest(const std::string& folder) {
  std::string lines;  // as sha256sum prints them
  for (const std::string& name : FilesOf(folder)) {
    EPS_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(absl::StrCat(folder, "/", name),
                                                                 "the model's tokenizer"));
    absl::StrAppend(&lines, ToHex(Sha256Of(file.bytes())), "  ", name, "\n");
  }
  return lines.empty() ? "" : ToHex(Sha256Of(lines));
}

}  // namespace eps
