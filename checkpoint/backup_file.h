#ifndef EPS_CHECKPOINT_BACKUP_FILE_H_
#define EPS_CHECKPOINT_BACKUP_FILE_H_

// A backup as one file: a checkpoint (docs/formats/checkpoint.md) as a tar archive (base/files/tar.h),
// whose first member is the manifest. Memory holds a megabyte of it and the small files. Paths may
// be "-": stdout, or stdin.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/job_state.h"

namespace eps {

// Whether `--out` asks for one: "-", or a name that ends in .tar.
bool NamesBackupFile(const std::string& path);

// Writes the state and returns the size of the archive. The checkpoint is made beside `out` first,
// of stdout in TMPDIR, and each of its files goes when it is in the archive. `out` appears synced
// and whole, or not at all. AlreadyExists if there is something; else errors as SaveCheckpoint.
absl::StatusOr<uint64_t> WriteBackupFile(const JobState& state, const std::string& out);

// Reads all of it, checks every sum and writes nothing. The job that is returned can be planned
// with, and has no content: its reads are FailedPrecondition. NotFound without the file; DataLoss
// names the offset or the member that is damaged, unknown or missing.
absl::StatusOr<std::unique_ptr<JobState>> CheckBackupFile(const std::string& from);

// The same, and unpacks it below `folder`, which is there. Returns the checkpoint's folder. The
// manifest is checked before anything is written, each other file while it is; after an error what
// lies there may not be used. ResourceExhausted if the disk has no room, with both figures.
absl::StatusOr<std::string> UnpackBackupFile(const std::string& from, const std::string& folder);

}  // namespace eps

#endif  // EPS_CHECKPOINT_BACKUP_FILE_H_
