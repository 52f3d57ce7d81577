#include "storage/cuts/job_folders.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr absl::string_view kPrefix = "job-";
constexpr absl::string_view kNew = ".new";

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string JobFolderName(JobId job) { return absl::StrFormat("%s%016x", kPrefix, job.value()); }

std::string NewFolderOf(const std::string& job_folder) { return absl::StrCat(job_folder, kNew); }

absl::StatusOr<std::vector<JobFolder>> ListJobFolders(Disk* disk, const std::string& directory) {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk->List(directory));
  std::vector<JobFolder> folders;
  for (const std::string& name : names) {
    uint64_t id = 0;
    const absl::string_view job = absl::StripSuffix(name, kNew);
    if (!absl::SimpleHexAtoi(job.substr(std::min(job.size(), kPrefix.size())), &id) ||
        job != JobFolderName(JobId(id))) {
      continue;
    }
    JobFolder folder;
    folder.job = JobId(id);
    folder.is_new = job.size() < name.size();
    folder.path = absl::StrCat(directory, "/", name);
    EPS_ASSIGN_OR_RETURN(const std::vector<std::string> files, disk->List(folder.path));
    for (const std::string& file : files) {
      const auto opened = disk->Open(absl::StrCat(folder.path, "/", file));
      if (opened.ok()) folder.bytes += (*opened)->size();  // anything but a file is not ours
    }
    folders.push_back(std::move(folder));
  }
  return folders;
}

absl::StatusOr<std::string> SetAside(Disk* disk, const std::string& folder) {
  const size_t slash = folder.rfind('/');
  const std::string above = folder.substr(0, slash);
  const std::string name = folder.substr(slash + 1);
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                       disk->List(above.empty() ? "/" : above));
  if (!Contains(names, name)) return std::string();
  const std::string lost = absl::StrCat(above, "/", kLostAndFound);
  EPS_RETURN_IF_ERROR(disk->CreateFolder(lost));
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> taken, disk->List(lost));
  std::string free = name;
  for (int number = 2; Contains(taken, free); ++number) free = absl::StrCat(name, ".", number);
  const std::string to = absl::StrCat(lost, "/", free);
  EPS_RETURN_IF_ERROR(disk->Rename(folder, to));
  EPS_LOG_WARN("storage: " << folder << " is set aside in " << to << " (eps state ls lists it)");
  return to;
}

absl::Status RemoveJobFolder(Disk* disk, const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> files = disk->List(path);
  if (absl::IsNotFound(files.status())) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(files.status());
  for (const std::string& file : *files) {
    EPS_RETURN_IF_ERROR(disk->Remove(absl::StrCat(path, "/", file)));
  }
  return disk->Remove(path);
}

absl::Status RemoveJob(Catalogue* catalogue, Disk* disk,
                       const std::vector<std::string>& directories, JobId job) {
  const absl::Status forgotten = catalogue->RemoveJob(job);
  if (!forgotten.ok() && !absl::IsNotFound(forgotten)) return forgotten;
  bool found = forgotten.ok();
  for (const std::string& directory : directories) {
    EPS_ASSIGN_OR_RETURN(const std::vector<JobFolder> folders, ListJobFolders(disk, directory));
    for (const JobFolder& folder : folders) {
      if (folder.job != job) continue;
      EPS_RETURN_IF_ERROR(RemoveJobFolder(disk, folder.path));
      found = true;
    }
  }
  return found ? absl::OkStatus() : forgotten;
}

}  // namespace eps
