#include "checkpoint/guard/found_state.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "storage/backends/durable_storage.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/common_cut.h"
#include "storage/cuts/job_folders.h"
#include "storage/disk/disk.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// The part of the job in one server's folder.
struct Found {
  std::string folder;
  bool in_use = false;
  std::string no_catalogue;  // the error, if there are job folders without one
  std::optional<CatalogueJob> job;
  std::vector<CatalogueCut> cuts;
};

bool HasJobFolders(const std::string& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "job-") && !absl::EndsWith(name, ".new")) return true;
  }
  return false;
}

absl::StatusOr<Found> LookInto(const std::string& folder, JobId job) {
  Found found;
  found.folder = folder;
  const absl::StatusOr<std::unique_ptr<DurableStorage>> storage =
      DurableStorage::OpenForReading(folder);
  if (absl::IsNotFound(storage.status())) {
    if (HasJobFolders(folder)) {
      found.no_catalogue =
          absl::StrCat(folder, "/catalogue is missing, and there are jobs beside it");
    }
    return found;
  }
  found.in_use = absl::IsFailedPrecondition(storage.status());
  if (found.in_use) return found;
  EPS_RETURN_IF_ERROR(storage.status());
  const Catalogue& catalogue = (*storage)->catalogue();
  absl::StatusOr<CatalogueJob> known = catalogue.FindJob(job);
  if (absl::IsNotFound(known.status())) return found;
  EPS_RETURN_IF_ERROR(known.status());
  found.job = *std::move(known);
  EPS_ASSIGN_OR_RETURN(found.cuts, catalogue.Cuts(job));
  return found;
}

}  // namespace

absl::StatusOr<FoundState> FindState(const std::string& state, uint32_t servers, JobId job) {
  FoundState result;
  std::vector<Found> all;
  for (uint32_t server = 0; server < servers; ++server) {
    EPS_ASSIGN_OR_RETURN(Found found, LookInto(absl::StrCat(state, "/server-", server), job));
    result.known |= found.in_use || found.job.has_value();
    if (result.missing.empty()) result.missing = found.no_catalogue;
    all.push_back(std::move(found));
  }
  const Found* holder = nullptr;  // has a cut of this job on as many servers
  for (const Found& found : all) {
    const bool holds = !found.cuts.empty() && found.job->shards == servers;
    if (holds && holder == nullptr) holder = &found;
  }
  for (const Found& found : all) {
    if (holder == nullptr || !result.missing.empty()) break;
    if (found.in_use || found.job.has_value()) continue;
    result.missing =
        absl::StrCat("the job is missing in ", found.folder, ", while ", holder->folder,
                     " has the cut of ", CutName(holder->cuts.back().border.id));
  }
  return result;
}

absl::Status SetStateAside(const std::string& state) {
  const std::unique_ptr<Disk> disk = NewRealDisk(DiskOptions());
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk->List(state));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, "server-")) continue;
    EPS_RETURN_IF_ERROR(SetAside(disk.get(), absl::StrCat(state, "/", name)).status());
  }
  return absl::OkStatus();
}

}  // namespace eps
