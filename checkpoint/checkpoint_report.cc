#include "checkpoint/checkpoint_report.h"

#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "base/config/model_folder.h"
#include "base/files/files.h"
#include "base/job/layout/model_layout.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/initial_weights.h"
#include "checkpoint/state_folder.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t{1} << 20;  // elements that are held at once

absl::Status CheckIsFolder(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("checkpoint: no folder ", path));
}

uint64_t BytesBelow(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) bytes += it->file_size(ignored);
  }
  return bytes;
}

// Returns the time of writing of the manifest, which is written last, or of the folder without one.
std::string WrittenAt(const std::string& folder) {
  struct stat info;
  if (stat(absl::StrCat(folder, "/", kManifestFile).c_str(), &info) != 0 &&
      stat(folder.c_str(), &info) != 0) {
    return "?";
  }
  struct tm utc;
  char text[32];
  if (gmtime_r(&info.st_mtime, &utc) == nullptr ||
      strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &utc) == 0) {
    return "?";
  }
  return text;
}

// Hashes the elements of one tensor as little-endian FP32.
using ReadPiece = std::function<absl::Status(uint64_t first, size_t count, float* out)>;
absl::Status AddElements(uint64_t elements, const ReadPiece& read, Sha256* sha256) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are hashed as they lie");
  std::vector<float> values(std::min<uint64_t>(kPiece, elements));
  for (uint64_t first = 0; first < elements; first += kPiece) {
    const size_t count = std::min<uint64_t>(kPiece, elements - first);
    EPS_RETURN_IF_ERROR(read(first, count, values.data()));
    sha256->Update({reinterpret_cast<const char*>(values.data()), count * sizeof(float)});
  }
  return absl::OkStatus();
}

// Hashes all tensors of a job, or those that are not frozen, one after the other.
using ReadTensor = std::function<absl::Status(TensorId, uint64_t first, size_t count, float* out)>;
absl::Status AddTensors(const JobSpec& spec, bool with_frozen, const ReadTensor& read,
                        Sha256* sha256) {
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    if (!with_frozen && spec.IsFrozen(TensorId(t))) continue;
    const auto piece = [&](uint64_t first, size_t count, float* out) {
      return read(TensorId(t), first, count, out);
    };
    EPS_RETURN_IF_ERROR(AddElements(spec.tensors[t].elements(), piece, sha256));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> WeightsDigest(const JobSpec& spec, const ReadTensor& read) {
  Sha256 sha256;
  EPS_RETURN_IF_ERROR(AddTensors(spec, /*with_frozen=*/true, read, &sha256));
  return absl::StrCat("weights sha256:", ToHex(sha256.Finish()), "\n");
}

// Returns the line of the residuals, hashed part by part; empty if the checkpoint has none.
absl::StatusOr<std::string> ResidualsDigest(const CheckpointReader& checkpoint) {
  const ResidualFiles* const residuals = checkpoint.residuals_or_null();
  if (residuals == nullptr) return std::string();
  Sha256 sha256;
  for (uint32_t part = 0; part < residuals->parts(); ++part) {
    for (size_t t = 0; t < residuals->tensors().size(); ++t) {
      const TensorId tensor = residuals->tensors()[t].tensor;
      const auto piece = [&](uint64_t first, size_t count, float* out) {
        return residuals->Read(part, t, first, count, out);
      };
      EPS_RETURN_IF_ERROR(
          AddElements(checkpoint.spec().tensors[tensor.value()].elements(), piece, &sha256));
    }
  }
  return absl::StrCat("residuals sha256:", ToHex(sha256.Finish()), "\n");
}

// Digests a folder that transformers wrote. Its description of the model determines the tensors and
// their order.
absl::StatusOr<std::string> PlainDigest(const std::string& folder) {
  JobSpec spec;
  EPS_ASSIGN_OR_RETURN(spec.model, ReadModelFolder(folder));
  EPS_RETURN_IF_ERROR(BuildLayout(/*weight_decay=*/0, &spec));
  EPS_ASSIGN_OR_RETURN(const auto weights, WeightsReader::Open(folder, spec));
  for (const std::string& note : weights->notes()) std::fprintf(stderr, "note: %s\n", note.c_str());
  return WeightsDigest(spec, [&](TensorId tensor, uint64_t first, size_t count, float* out) {
    return weights->Read(tensor, first, count, out);
  });
}

// Returns the files of the folder that the manifest does not list, by path.
std::set<std::string> Unlisted(const std::string& folder, const CheckpointManifest& manifest) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) continue;
    const std::string name = it->path().lexically_relative(folder).string();
    if (name != kManifestFile && manifest.files.count(name) == 0) names.insert(name);
  }
  return names;
}

}  // namespace

absl::StatusOr<std::string> CheckpointTable(const std::string& root) {
  EPS_RETURN_IF_ERROR(CheckIsFolder(root));
  if (IsStateFolder(root)) {
    EPS_ASSIGN_OR_RETURN(const auto state, StateFolder::Open(root));
    return state->Table();
  }
  const absl::StatusOr<std::string> text = ReadTextFile(absl::StrCat(root, "/", kLatestFile));
  const std::string latest =
      text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : std::string();
  const std::string best = BestCheckpointName(root);
  bool latest_seen = latest.empty();
  std::string table =
      absl::StrFormat("%12s  %12s  %-19s  %s\n", "step", "size", "written (UTC)", "state");
  const std::vector<CheckpointFolder> folders = ListCheckpoints(root);
  for (const CheckpointFolder& folder : folders) {
    std::string state = folder.complete.ok()
                            ? "complete"
                            : absl::StrCat("not complete: ", folder.complete.message());
    if (folder.name == latest) absl::StrAppend(&state, ", latest");
    if (folder.name == best) absl::StrAppend(&state, ", best");
    latest_seen = latest_seen || folder.name == latest;
    absl::StrAppendFormat(&table, "%12d  %12s  %-19s  %s\n", folder.step,
                          FormatBytes(static_cast<double>(BytesBelow(folder.path))),
                          WrittenAt(folder.path), state);
  }
  if (folders.empty()) absl::StrAppend(&table, "no checkpoints in ", root, "\n");
  if (!latest_seen) {
    absl::StrAppend(&table, "note: ", root, "/", kLatestFile, " names ", latest,
                    ", which is not there\n");
  }
  return table;
}

absl::StatusOr<std::string> CheckpointDigest(const std::string& folder) {
  EPS_RETURN_IF_ERROR(CheckIsFolder(folder));
  std::error_code error;
  if (!fs::exists(absl::StrCat(folder, "/", kManifestFile), error)) return PlainDigest(folder);
  EPS_ASSIGN_OR_RETURN(const auto checkpoint, CheckpointReader::Open(folder));
  const auto field = [&](size_t f) {
    return [&, f](TensorId tensor, uint64_t first, size_t count, float* out) {
      return checkpoint->Read(f, tensor, first, count, out);
    };
  };
  EPS_ASSIGN_OR_RETURN(const std::string weights, WeightsDigest(checkpoint->spec(), field(0)));
  Sha256 state;
  for (size_t f = 1; f < checkpoint->fields(); ++f) {
    EPS_RETURN_IF_ERROR(AddTensors(checkpoint->spec(), /*with_frozen=*/false, field(f), &state));
  }
  EPS_ASSIGN_OR_RETURN(const std::string residuals, ResidualsDigest(*checkpoint));
  return absl::StrCat(weights, "state sha256:", ToHex(state.Finish()), "\n", residuals);
}

absl::Status VerifyCheckpoint(const std::string& folder, std::string* report) {
  EPS_RETURN_IF_ERROR(CheckIsFolder(folder));
  absl::StatusOr<CheckpointManifest> manifest = ReadManifest(folder);
  if (absl::IsNotFound(manifest.status())) {
    return absl::DataLossError(
        absl::StrCat(folder, " has no ", kManifestFile, ": not a complete checkpoint"));
  }
  EPS_RETURN_IF_ERROR(manifest.status());
  absl::Status first;
  size_t damaged = 0;
  uint64_t bytes = 0;
  for (const auto& [name, sums] : manifest->files) {
    const absl::Status status = CheckFile(folder, name, sums, /*sums=*/true);
    bytes += sums.bytes;
    absl::StrAppendFormat(report, "%-40s  %10s  %s\n", name,
                          FormatBytes(static_cast<double>(sums.bytes)),
                          status.ok() ? "ok" : std::string(status.message()));
    if (status.ok()) continue;
    if (++damaged == 1) first = status;
  }
  for (const std::string& name : Unlisted(folder, *manifest)) {
    absl::StrAppend(report, "note: ", name, " is not in the manifest\n");
  }
  if (damaged > 0) {
    return absl::Status(first.code(),
                        absl::StrCat("checkpoint verify: ", damaged, " of ", manifest->files.size(),
                                     " files are damaged: ", first.message()));
  }
  const auto checkpoint = CheckpointReader::Open(folder, /*check_sums=*/false);
  if (absl::IsNotFound(checkpoint.status())) {  // a tensor, for no file of the manifest is missing
    return absl::DataLossError(checkpoint.status().message());
  }
  EPS_RETURN_IF_ERROR(checkpoint.status());
  absl::StrAppend(report, "ok: step ", manifest->step, ", ", manifest->files.size(), " files, ",
                  FormatBytes(static_cast<double>(bytes)), ", ",
                  FormatCount((*checkpoint)->spec().total_elements()), " parameters, ",
                  manifest->optimizer, "\n");
  return absl::OkStatus();
}

}  // namespace eps
