#include "checkpoint/checkpoint_folders.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "base/folder.h"
#include "base/status_macros.h"
#include "checkpoint/guard/checkpoint_place.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr char kFormat[] = "eps-checkpoint";
constexpr int kFormatVersion = 1;
constexpr absl::string_view kPrefix = "checkpoint-";

// Accepts only the canonical name of a step: no sign, no leading zeros, nothing after the digits.
bool ParseName(absl::string_view name, uint64_t* step) {
  return absl::StartsWith(name, kPrefix) && absl::SimpleAtoi(name.substr(kPrefix.size()), step) &&
         name == absl::StrCat(kPrefix, *step);
}

bool HasNumber(const ordered_json& object, const char* key) {
  return object.contains(key) && object[key].is_number_unsigned();
}

bool HasText(const ordered_json& object, const char* key) {
  return object.contains(key) && object[key].is_string();
}

bool IsFileName(const std::string& name) {
  return !name.empty() && !absl::StartsWith(name, "/") && !absl::StrContains(name, "..") &&
         !absl::StrContains(name, '\0');
}

bool ParseFile(const ordered_json& json, FileSums* sums) {
  if (!json.is_object() || !HasNumber(json, "bytes") || !HasText(json, "crc32c") ||
      !HasText(json, "sha256")) {
    return false;
  }
  sums->bytes = json["bytes"].get<uint64_t>();
  sums->sha256 = json["sha256"].get<std::string>();
  return absl::SimpleHexAtoi(json["crc32c"].get<std::string>(), &sums->crc32c);
}

constexpr char kOwnSum[] = "crc32c";

// Returns the checksum of a manifest, computed without the checksum itself.
std::string SumOf(const ordered_json& json) {
  return absl::StrFormat("%08x", Crc32c(json.dump(2)));
}

// Returns the name in `root`/`file`, latest or best; empty if there is no such file.
absl::StatusOr<std::string> NameIn(const std::string& root, const char* file) {
  const std::string pointer = absl::StrCat(root, "/", file);
  const absl::StatusOr<std::string> text = ReadTextFile(pointer);
  if (absl::IsNotFound(text.status())) return std::string();
  EPS_RETURN_IF_ERROR(text.status());
  const std::string name(absl::StripAsciiWhitespace(*text));
  uint64_t step = 0;
  if (ParseName(name, &step)) return name;
  return absl::DataLossError(absl::StrCat(pointer, ": expected the name of a checkpoint folder (",
                                          kPrefix, "<step>), found \"", name.substr(0, 100), "\""));
}

absl::Status HideAndRemove(const std::string& root, const std::string& name) {
  const std::string hidden = TemporaryName(root, name);
  std::error_code error;
  fs::remove_all(hidden, error);
  // Rename first, so that the checkpoint disappears atomically before its first file is removed.
  EPS_RETURN_IF_ERROR(RenamePath(absl::StrCat(root, "/", name), hidden));
  EPS_RETURN_IF_ERROR(SyncPath(root));
  fs::remove_all(hidden, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot remove ", hidden, ": ", error.message()));
}

// The path of a checkpoint's folder, split into its parent and its name.
struct Located {
  std::string root;
  std::string name;
  bool is_latest = false;
  bool is_best = false;
};

absl::StatusOr<Located> Locate(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // behind a slash at the end
  const fs::file_type type = fs::symlink_status(path, error).type();
  if (type == fs::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat("no folder ", folder));
  }
  Located located;
  located.root = path.parent_path().string();
  located.name = path.filename().string();
  uint64_t step = 0;
  if (type != fs::file_type::directory || !ParseName(located.name, &step)) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, " is no checkpoint: expected a folder that is named ", kPrefix, "<step>"));
  }
  const absl::StatusOr<CheckpointManifest> manifest = ReadManifest(path.string());
  if (!manifest.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is no complete checkpoint: ", manifest.status().message()));
  }
  if (manifest->step != step) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, " is no checkpoint of that name: its manifest says step ", manifest->step));
  }
  EPS_ASSIGN_OR_RETURN(const std::string latest, NameIn(located.root, kLatestFile));
  located.is_latest = latest == located.name;
  located.is_best = BestCheckpointName(located.root) == located.name;
  return located;
}

absl::StatusOr<Located> LocateRemovable(const std::string& folder, RemoveLatest latest) {
  EPS_ASSIGN_OR_RETURN(Located located, Locate(folder));
  if (latest == RemoveLatest::kRepoint || (!located.is_latest && !located.is_best)) return located;
  return absl::FailedPreconditionError(absl::StrCat(
      folder, " is the one that ", located.root, "/", located.is_latest ? kLatestFile : kBestFile,
      " names, ", located.is_latest ? "which --resume=latest takes" : "the best by its evaluation",
      "; --force removes it all the same"));
}

absl::Status RemovePointer(const std::string& pointer) {
  std::error_code error;
  fs::remove(pointer, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot remove ", pointer, ": ", error.message()));
}

}  // namespace

std::string BestCheckpointName(const std::string& root) {
  const absl::StatusOr<std::string> name = NameIn(root, kBestFile);
  return name.ok() ? *name : "";
}

absl::Status SetBestCheckpoint(const std::string& root, const std::string& name) {
  const std::string pointer = absl::StrCat(root, "/", kBestFile);
  return name.empty() ? RemovePointer(pointer) : ReplaceFile(pointer, name + "\n");
}

absl::Status CheckRemovable(const std::string& folder, RemoveLatest latest) {
  return LocateRemovable(folder, latest).status();
}

absl::Status RemoveCheckpoint(const std::string& folder, RemoveLatest latest) {
  EPS_ASSIGN_OR_RETURN(const Located located, LocateRemovable(folder, latest));
  if (located.is_best) EPS_RETURN_IF_ERROR(SetBestCheckpoint(located.root, ""));
  if (!located.is_latest) return HideAndRemove(located.root, located.name);
  const std::string pointer = absl::StrCat(located.root, "/", kLatestFile);
  const std::vector<CheckpointFolder> folders = ListCheckpoints(located.root);
  const auto next = std::find_if(folders.rbegin(), folders.rend(), [&](const CheckpointFolder& f) {
    return f.complete.ok() && f.name != located.name;
  });
  // First, so that `latest` names a complete checkpoint at every moment.
  if (next != folders.rend()) {
    EPS_RETURN_IF_ERROR(ReplaceFile(pointer, next->name + "\n"));
  } else {
    EPS_RETURN_IF_ERROR(RemovePointer(pointer));
  }
  return HideAndRemove(located.root, located.name);
}

std::string ManifestText(const CheckpointManifest& manifest) {
  ordered_json json;
  json["format"] = kFormat;
  json["format_version"] = kFormatVersion;
  json["step"] = manifest.step;
  json["version"] = manifest.version;
  json["update"] = manifest.update;
  json["term"] = manifest.term;
  json["lagged_norm"] = manifest.lagged_norm;
  if (manifest.loss_scale.has_value()) {
    json["loss_scale"] = {{"log2", manifest.loss_scale->log2},
                          {"good_steps", manifest.loss_scale->good_steps},
                          {"hysteresis_left", manifest.loss_scale->hysteresis_left}};
  }
  json["spec_digest"] = manifest.spec_digest;
  json["numerics_version"] = manifest.numerics_version;
  json["optimizer"] = manifest.optimizer;
  if (manifest.servers > 0) json["servers"] = manifest.servers;
  if (manifest.driver.exists()) json["driver"] = ToText(manifest.driver);
  ordered_json& files = json["files"] = ordered_json::object();
  for (const auto& [name, sums] : manifest.files) {
    files[name] = {{"bytes", sums.bytes},
                   {"crc32c", absl::StrFormat("%08x", sums.crc32c)},
                   {"sha256", sums.sha256}};
  }
  json[kOwnSum] = SumOf(json);
  return json.dump(2) + "\n";
}

absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ParseManifest(text, path);
}

absl::StatusOr<CheckpointManifest> ParseManifest(const std::string& text, const std::string& path) {
  ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool well_formed =
      json.is_object() && HasText(json, "format") && json["format"] == kFormat &&
      HasNumber(json, "format_version") && HasNumber(json, "step") && HasNumber(json, "version") &&
      HasNumber(json, "update") && HasNumber(json, "term") && json.contains("lagged_norm") &&
      json["lagged_norm"].is_number() && json.contains("files") && json["files"].is_object();
  if (!well_formed) {
    return absl::DataLossError(absl::StrCat(path, ": not the manifest of a checkpoint"));
  }
  if (json["format_version"] != kFormatVersion) {
    return absl::DataLossError(absl::StrCat(path, ": format_version ",
                                            json["format_version"].get<uint64_t>(),
                                            ", this program reads ", kFormatVersion));
  }
  // Earlier releases wrote no checksum.
  const bool has_own_sum = HasText(json, kOwnSum);
  if (has_own_sum) {
    const std::string expected = json[kOwnSum].get<std::string>();
    json.erase(kOwnSum);
    if (const std::string found = SumOf(json); found != expected) {
      return absl::DataLossError(
          absl::StrCat(path, ": CRC32C ", expected, " expected, ", found, " found"));
    }
  }
  CheckpointManifest manifest;
  manifest.has_own_sum = has_own_sum;
  manifest.step = json["step"].get<uint64_t>();
  manifest.version = json["version"].get<uint64_t>();
  manifest.update = json["update"].get<uint64_t>();
  manifest.term = json["term"].get<uint64_t>();
  manifest.lagged_norm = json["lagged_norm"].get<double>();
  if (json.contains("loss_scale")) {
    const ordered_json& scale = json["loss_scale"];
    if (!scale.is_object() || !HasNumber(scale, "log2") || !HasNumber(scale, "good_steps") ||
        !HasNumber(scale, "hysteresis_left") || scale["log2"] > kMaxLossScaleLog2) {
      return absl::DataLossError(absl::StrCat(path, ": malformed loss_scale"));
    }
    manifest.loss_scale =
        LossScale{scale["log2"].get<int32_t>(), scale["good_steps"].get<uint32_t>(),
                  scale["hysteresis_left"].get<uint32_t>()};
  }
  if (HasText(json, "spec_digest")) manifest.spec_digest = json["spec_digest"].get<std::string>();
  if (HasText(json, "optimizer")) manifest.optimizer = json["optimizer"].get<std::string>();
  if (HasNumber(json, "numerics_version")) {
    manifest.numerics_version = json["numerics_version"].get<int>();
  }
  if (HasNumber(json, "servers")) manifest.servers = json["servers"].get<uint32_t>();
  if (HasText(json, "driver")) {
    const auto driver = ParseDriverLease(json["driver"].get<std::string>());
    if (!driver.ok()) return absl::DataLossError(absl::StrCat(path, ": malformed driver"));
    manifest.driver = *driver;
  }
  for (const auto& [name, file] : json["files"].items()) {
    if (!IsFileName(name) || !ParseFile(file, &manifest.files[name])) {
      return absl::DataLossError(absl::StrCat(path, ": malformed entry of a file"));
    }
  }
  return manifest;
}

absl::Status CheckSums(const std::string& path, const FileSums& found, const FileSums& expected) {
  if (found.bytes != expected.bytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", found.bytes, " bytes, the manifest has ", expected.bytes));
  }
  if (found.sha256 != expected.sha256) {
    return absl::DataLossError(
        absl::StrCat(path, ": SHA-256 ", found.sha256, ", the manifest has ", expected.sha256));
  }
  if (found.crc32c == expected.crc32c) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("%s: CRC32C %08x, the manifest has %08x", path,
                                             found.crc32c, expected.crc32c));
}

absl::Status CheckFile(const std::string& folder, const std::string& name, const FileSums& expected,
                       bool sums) {
  const std::string path = absl::StrCat(folder, "/", name);
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) {
    return absl::DataLossError(absl::StrCat(path, " is missing"));
  }
  if (error) return absl::DataLossError(absl::StrCat(path, ": ", error.message()));
  if (bytes != expected.bytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", bytes, " bytes, the manifest has ", expected.bytes));
  }
  if (!sums) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const FileSums found, SumFile(path));
  return CheckSums(path, found, expected);
}

absl::Status CheckFiles(const std::string& folder, const CheckpointManifest& manifest, bool sums) {
  for (const auto& [name, expected] : manifest.files) {
    EPS_RETURN_IF_ERROR(CheckFile(folder, name, expected, sums));
  }
  return absl::OkStatus();
}

std::vector<CheckpointFolder> ListCheckpoints(const std::string& root) {
  std::vector<CheckpointFolder> folders;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error)) {
    CheckpointFolder folder;
    folder.path = absl::StrCat(root, "/", entry.path().filename().string());
    folder.name = NameOf(root, folder.path);
    std::error_code ignored;
    const bool is_folder = entry.symlink_status(ignored).type() == fs::file_type::directory;
    if (!is_folder || !ParseName(folder.name, &folder.step)) continue;
    const absl::StatusOr<CheckpointManifest> manifest = ReadManifest(folder.path);
    folder.complete =
        manifest.ok() ? CheckFiles(folder.path, *manifest, /*sums=*/false) : manifest.status();
    folders.push_back(std::move(folder));
  }
  std::sort(folders.begin(), folders.end(),
            [](const CheckpointFolder& a, const CheckpointFolder& b) { return a.step < b.step; });
  return folders;
}

absl::StatusOr<std::string> ResumeFolder(const CheckpointConfig& checkpoint) {
  if (checkpoint.resume == "none" || checkpoint.resume.empty()) return std::string();
  const std::string& folder = checkpoint.resume;
  if (folder == "latest") {
    if (checkpoint.dir.empty()) {
      return absl::InvalidArgumentError(
          "checkpoint.resume: latest needs checkpoint.dir (--out), where the checkpoints are");
    }
    absl::StatusOr<std::string> latest = LatestCheckpoint(checkpoint.dir);
    if (latest.ok()) return latest;
    return absl::Status(latest.status().code(),
                        absl::StrCat("checkpoint.resume: latest: ", latest.status().message()));
  }
  std::error_code error;
  if (!fs::is_regular_file(absl::StrCat(folder, "/", kManifestFile), error)) {
    return absl::NotFoundError(absl::StrCat(
        "checkpoint.resume: ", folder, " has no eps/manifest.json: not a complete checkpoint"));
  }
  return folder;
}

std::string ResumeAdvice(const std::string& root, const std::string& damaged) {
  const std::vector<CheckpointFolder> folders = ListCheckpoints(root);
  const auto last =
      std::find_if(folders.rbegin(), folders.rend(), [&](const CheckpointFolder& folder) {
        return folder.complete.ok() && folder.name != damaged;
      });
  if (last == folders.rend()) {
    return absl::StrCat("; no other complete checkpoint is left in ", root, ": remove ", root, "/",
                        kLatestFile, " and the damaged folder to start anew");
  }
  return absl::StrCat("; the last other complete checkpoint is ", last->name,
                      ": --resume=", last->path,
                      " takes it (eps checkpoint verify checks its bytes)");
}

absl::Status PointLatest(const std::string& root, const std::string& name,
                         const CheckpointManifest& manifest) {
  const absl::StatusOr<std::string> there = NameIn(root, kLatestFile);
  if (there.ok() && !there->empty() && *there != name && manifest.driver.exists()) {
    const auto other = ReadManifest(absl::StrCat(root, "/", *there));
    const bool later =
        other.ok() && (manifest.driver.IsBefore(other->driver) ||
                       (manifest.driver == other->driver && manifest.step < other->step));
    if (later) return absl::OkStatus();
  }
  return ReplaceFile(absl::StrCat(root, "/", kLatestFile), name + "\n");
}

absl::StatusOr<std::string> LatestCheckpoint(const std::string& root) {
  absl::StatusOr<std::string> name = NameIn(root, kLatestFile);
  if (!name.ok()) {
    return absl::Status(name.status().code(),
                        absl::StrCat(name.status().message(), ResumeAdvice(root, "")));
  }
  const std::vector<CheckpointFolder> folders = ListCheckpoints(root);
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    if (name->empty() && folder->complete.ok()) return folder->path;
    if (*name != folder->name) continue;
    if (folder->complete.ok()) return folder->path;
    return absl::DataLossError(absl::StrCat(root, "/", kLatestFile, " names ", *name,
                                            ", which is not complete: ", folder->complete.message(),
                                            ResumeAdvice(root, *name)));
  }
  if (name->empty()) return std::string();
  return absl::DataLossError(absl::StrCat(root, "/", kLatestFile, " names ", *name,
                                          ", which is not there", ResumeAdvice(root, *name)));
}

absl::StatusOr<std::vector<std::string>> RemoveOldCheckpoints(const std::string& root,
                                                              uint64_t limit) {
  std::vector<std::string> removed;
  if (limit == 0) return removed;
  EPS_ASSIGN_OR_RETURN(const std::string latest, NameIn(root, kLatestFile));
  const std::string best = BestCheckpointName(root);
  std::vector<CheckpointFolder> folders = ListCheckpoints(root);
  folders.erase(std::remove_if(folders.begin(), folders.end(),
                               [](const CheckpointFolder& f) { return !f.complete.ok(); }),
                folders.end());
  size_t left = folders.size();
  for (const CheckpointFolder& folder : folders) {
    if (left <= limit) break;
    if (folder.name == latest || folder.name == best) continue;
    EPS_RETURN_IF_ERROR(HideAndRemove(root, folder.name));
    removed.push_back(folder.name);
    --left;
  }
  return removed;
}

}  // namespace eps
