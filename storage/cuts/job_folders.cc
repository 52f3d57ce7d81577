#include "storage/cuts/job_folders.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr absl::string_view kPrefix = "job-";

}  // namespace

std::string JobFolderName(JobId job) { return absl::StrFormat("%s%016x", kPrefix, job.value()); }

absl::StatusOr<std::vector<JobFolder>> ListJobFolders(Disk* disk, const std::string& directory) {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk->List(directory));
  std::vector<JobFolder> folders;
  for (const std::string& name : names) {
    uint64_t id = 0;
    if (!absl::SimpleHexAtoi(name.substr(std::min(name.size(), kPrefix.size())), &id) ||
        name != JobFolderName(JobId(id))) {
      continue;
    }
    JobFolder folder;
    folder.job = JobId(id);
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

absl::Status RemoveJobFolder(Disk* disk, const JobFolder& folder) {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> files, disk->List(folder.path));
  for (const std::string& file : files) {
    EPS_RETURN_IF_ERROR(disk->Remove(absl::StrCat(folder.path, "/", file)));
  }
  return disk->Remove(folder.path);
}

absl::Status RemoveJob(Catalogue* catalogue, Disk* disk, const std::string& directory, JobId job) {
  const absl::Status forgotten = catalogue->RemoveJob(job);
  if (!forgotten.ok() && !absl::IsNotFound(forgotten)) return forgotten;
  EPS_ASSIGN_OR_RETURN(const std::vector<JobFolder> folders, ListJobFolders(disk, directory));
  for (const JobFolder& folder : folders) {
    if (folder.job == job) return RemoveJobFolder(disk, folder);
  }
  return forgotten;
}

}  // namespace eps
