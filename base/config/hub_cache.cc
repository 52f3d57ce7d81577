#include "base/config/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/files/files.h"
#include "base/files/safetensors_folder.h"
#include "base/status_macros.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxPart = 96;
constexpr char kMain[] = "main";

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Replaces ~ at the start by the home of this process.
std::string WithHome(const std::string& path) {
  return path == "~" || absl::StartsWith(path, "~/")
             ? absl::StrCat(Variable("HOME"), path.substr(1))
             : path;
}

bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.'; }

// Returns whether `text` is the name of an organisation or of a model.
bool IsPart(absl::string_view text) {
  const auto is_edge = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  return !text.empty() && text.size() <= kMaxPart &&
         std::all_of(text.begin(), text.end(), IsNameChar) && is_edge(text.front()) &&
         is_edge(text.back()) && !absl::StrContains(text, "--") && !absl::StrContains(text, "..");
}

// Returns whether `text` is a branch, tag or commit that cannot name a file elsewhere.
bool IsRevision(absl::string_view text) {
  return !text.empty() && text.front() != '/' && !absl::StrContains(text, "..") &&
         std::all_of(text.begin(), text.end(), [](char c) { return IsNameChar(c) || c == '/'; });
}

std::pair<std::string, std::string> NameAndRevision(absl::string_view text) {
  return absl::StrSplit(text, absl::MaxSplits('@', 1));
}

std::string DownloadCommand(const std::string& name, const std::string& revision) {
  return absl::StrCat("hf download ", name,
                      revision == kMain ? "" : absl::StrCat(" --revision ", revision));
}

// Returns the first file that the snapshot should hold and does not; empty if it is whole.
absl::StatusOr<std::string> MissingFile(const fs::path& snapshot) {
  std::error_code error;
  std::set<std::string> missing;
  for (const fs::directory_entry& entry : fs::directory_iterator(snapshot, error)) {
    const bool is_there = fs::exists(entry.path(), error);  // the target of a link
    if (!is_there) missing.insert(entry.path().filename().string());
  }
  if (!missing.empty()) return *missing.begin();
  if (!fs::exists(snapshot / "config.json", error)) return "config.json";
  if (fs::exists(snapshot / kSafetensorsFile, error)) return "";
  const fs::path index = snapshot / kSafetensorsIndexFile;
  if (!fs::exists(index, error)) return kSafetensorsFile;
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index.string()));
  EPS_ASSIGN_OR_RETURN(const auto shards, ParseSafetensorsIndex(text, index.string()));
  for (const auto& [tensor, shard] : shards) {
    if (!fs::exists(snapshot / shard, error)) missing.insert(shard);
  }
  return missing.empty() ? "" : *missing.begin();
}

}  // namespace

std::string HubCacheFolder() {
  for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    const std::string folder = Variable(name);
    if (!folder.empty()) return WithHome(folder);
  }
  std::string home = Variable("HF_HOME");
  if (home.empty() && !Variable("XDG_CACHE_HOME").empty()) {
    home = Variable("XDG_CACHE_HOME") + "/huggingface";
  }
  if (home.empty() && !Variable("HOME").empty()) home = "~/.cache/huggingface";
  return home.empty() ? "" : WithHome(home) + "/hub";
}

bool IsHubName(absl::string_view text) {
  const std::vector<absl::string_view> halves = absl::StrSplit(text, absl::MaxSplits('@', 1));
  if (halves.size() == 2 && !IsRevision(halves[1])) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(halves[0], '/');
  return parts.size() <= 2 && std::all_of(parts.begin(), parts.end(), IsPart) &&
         !absl::EndsWith(text, ".json");
}

absl::StatusOr<HubModel> FindInHubCache(absl::string_view text) {
  auto [name, revision] = NameAndRevision(text);
  if (revision.empty()) revision = kMain;
  const std::string cache = HubCacheFolder();
  const std::string command = DownloadCommand(name, revision);
  const fs::path root =
      fs::path(cache) / absl::StrCat("models--", absl::StrReplaceAll(name, {{"/", "--"}}));
  std::error_code error;
  const absl::StatusOr<std::string> ref = ReadTextFile((root / "refs" / revision).string());
  const std::string commit = ref.ok() ? std::string(absl::StripAsciiWhitespace(*ref)) : revision;
  const fs::path snapshot = root / "snapshots" / commit;
  if (cache.empty() || !IsRevision(commit) || !fs::is_directory(snapshot, error)) {
    return absl::NotFoundError(
        absl::StrCat("model.path: cannot open ", text,
                     ": it is no file or folder, and the cache of the ", "Hugging Face hub (",
                     cache.empty() ? "HF_HUB_CACHE" : cache, ") does not hold a model of this name",
                     revision == kMain ? "" : " and revision", "; to download it: ", command));
  }
  EPS_ASSIGN_OR_RETURN(const std::string missing, MissingFile(snapshot));
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "model.path: ", (snapshot / missing).string(), " is missing: the cache holds ", name,
        " in part; to download the rest: ", command,
        missing == kSafetensorsFile
            ? "; if the hub has no such file, save the model with save_pretrained of transformers"
            : ""));
  }
  return HubModel{absl::StrCat(name, "@", commit), snapshot.string()};
}

}  // namespace eps
