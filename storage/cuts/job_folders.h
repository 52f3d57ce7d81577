#ifndef EPS_STORAGE_CUTS_JOB_FOLDERS_H_
#define EPS_STORAGE_CUTS_JOB_FOLDERS_H_

// The folders of a server's data directory, beside its catalogue, and of its drives. Hold their
// locks during all calls.
//
//   job-ID       the files of a job
//   job-ID.new   a job that is being created: it holds no state and may be removed at any time
//   lost+found   what no catalogue names; only eps state rm removes anything from it

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "storage/cuts/catalogue.h"
#include "storage/disk/disk.h"

namespace eps {

// Returns "job-" and the id in 16 hexadecimal digits.
std::string JobFolderName(JobId job);

inline constexpr char kLostAndFound[] = "lost+found";

// Returns the path of a job's folder until all its files are complete: job-ID.new.
std::string NewFolderOf(const std::string& job_folder);

// The folder of one job's extents.
struct JobFolder {
  JobId job;
  std::string path;
  uint64_t bytes = 0;   // of its files
  bool is_new = false;  // whether its creation was interrupted
};

// Returns the job folders of a directory or drive, sorted by name, and ignores everything else in
// it. NotFound if the directory does not exist.
absl::StatusOr<std::vector<JobFolder>> ListJobFolders(Disk* disk, const std::string& directory);

// Moves a folder that no job uses to lost+found beside it, durably and under a name that is free
// there, and logs both paths. Returns the new path; empty if there is no such folder.
absl::StatusOr<std::string> SetAside(Disk* disk, const std::string& folder);

// Removes the folder's files, then the folder, durably. OK if there is no such folder. Internal
// names what could not be removed.
absl::Status RemoveJobFolder(Disk* disk, const std::string& path);

// Removes the job's records in one write, then its folders in all directories. A crash in between
// leaves orphaned folders, which a repeated call removes. NotFound if there are neither records nor
// a folder. Other errors are those of Catalogue::RemoveJob and RemoveJobFolder.
absl::Status RemoveJob(Catalogue* catalogue, Disk* disk,
                       const std::vector<std::string>& directories, JobId job);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_JOB_FOLDERS_H_
