#ifndef EPS_STORAGE_CUTS_JOB_FOLDERS_H_
#define EPS_STORAGE_CUTS_JOB_FOLDERS_H_

// The jobs of a server's data directory: a folder job-ID for each beside the catalogue, and how a
// job goes for good. The caller holds the directory's lock.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "storage/cuts/catalogue.h"
#include "storage/disk/disk.h"

namespace eps {

// job-<16 hexadecimal digits>.
std::string JobFolderName(JobId job);

struct JobFolder {
  JobId job;
  std::string path;
  uint64_t bytes = 0;  // of its files
};

// Those of the directory, by name; all else in it is passed over. NotFound without the directory.
absl::StatusOr<std::vector<JobFolder>> ListJobFolders(Disk* disk, const std::string& directory);

// Its files, then itself, durably. Internal names what could not be removed.
absl::Status RemoveJobFolder(Disk* disk, const JobFolder& folder);

// What the catalogue knows of the job, in one write, then its folder. A crash in between leaves a
// folder that nothing refers to: the same call removes it, and so does the next job that is made
// here. NotFound if there is neither. Errors as Catalogue::RemoveJob and RemoveJobFolder.
absl::Status RemoveJob(Catalogue* catalogue, Disk* disk, const std::string& directory, JobId job);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_JOB_FOLDERS_H_
