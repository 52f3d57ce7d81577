#ifndef EPS_STORAGE_CUTS_JOB_FOLDERS_H_
#define EPS_STORAGE_CUTS_JOB_FOLDERS_H_

// Lists and removes the jobs of a server's data directory. Each job has a folder job-ID beside the
// catalogue. Hold the directory's lock during all calls.

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

// The folder of one job's extents.
struct JobFolder {
  JobId job;
  std::string path;
  uint64_t bytes = 0;  // of its files
};

// Returns the job folders of the directory, sorted by name, and ignores everything else in it.
// NotFound if the directory does not exist.
absl::StatusOr<std::vector<JobFolder>> ListJobFolders(Disk* disk, const std::string& directory);

// Removes the folder's files, then the folder, durably. Internal names what could not be removed.
absl::Status RemoveJobFolder(Disk* disk, const JobFolder& folder);

// Removes the job's records in one write, then its folder. A crash in between leaves an orphaned
// folder, which a repeated call or the creation of the next job removes. NotFound if there are
// neither records nor a folder. Other errors are those of Catalogue::RemoveJob and RemoveJobFolder.
absl::Status RemoveJob(Catalogue* catalogue, Disk* disk, const std::string& directory, JobId job);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_JOB_FOLDERS_H_
