#ifndef EPS_CHECKPOINT_BACKUP_BACKUP_FILE_H_
#define EPS_CHECKPOINT_BACKUP_BACKUP_FILE_H_

// A backup in one file: a checkpoint (docs/formats/checkpoint.md) as a tar archive
// (base/files/tar.h) whose first member is the manifest. Only the small files and one megabyte of
// the archive are in memory at a time. The path "-" means stdout or stdin.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/job_state.h"

namespace eps {

// Returns whether the value of `--out` names a backup file: "-", or a name that ends in .tar.
bool NamesBackupFile(const std::string& path);

// Writes the state and returns the size of the archive. First writes a checkpoint next to `out`, or
// in TMPDIR for stdout, and removes each of its files once that is in the archive. `out` appears
// complete and synced, or not at all. AlreadyExists if `out` exists; other errors as
// SaveCheckpoint.
absl::StatusOr<uint64_t> WriteBackupFile(const JobState& state, const std::string& out);

// Reads the whole archive, checks every checksum and writes nothing. The returned job suits
// PlanStateFolder only: its reads return FailedPrecondition. NotFound if the file does not exist;
// DataLoss names the offset, or the member that is damaged, unknown or missing.
absl::StatusOr<std::unique_ptr<JobState>> CheckBackupFile(const std::string& from);

// Does the same and unpacks the archive below `folder`, which must exist. Returns the checkpoint's
// folder. The manifest is checked before anything is written, every other file as it is written;
// after an error, do not use the files. ResourceExhausted, with both figures, if the disk has too
// little room.
absl::StatusOr<std::string> UnpackBackupFile(const std::string& from, const std::string& folder);

}  // namespace eps

#endif  // EPS_CHECKPOINT_BACKUP_BACKUP_FILE_H_
