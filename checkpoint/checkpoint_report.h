#ifndef EPS_CHECKPOINT_CHECKPOINT_REPORT_H_
#define EPS_CHECKPOINT_CHECKPOINT_REPORT_H_

// What `eps checkpoint ls | digest | verify` print about checkpoints. No server is needed.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps {

// Returns the table of `ls`, ordered by step: step, size, time of writing (UTC) and whether the
// checkpoint is complete. For a state folder returns StateFolder::Table. NotFound if `root` does
// not exist.
absl::StatusOr<std::string> CheckpointTable(const std::string& root);

// Returns the lines of `digest`: "weights sha256:…"; for a checkpoint also "state sha256:…"; if it
// has residuals also "residuals sha256:…". docs/formats/checkpoint.md says what each covers.
absl::StatusOr<std::string> CheckpointDigest(const std::string& folder);

// Checks a checkpoint to the last byte: sizes, SHA-256 and CRC32C of all files in the manifest, the
// job spec and its digest, the tensors' names, dtypes and shapes. Appends a line per file to
// `report`, damaged or not. DataLoss names the first damaged file.
absl::Status VerifyCheckpoint(const std::string& folder, std::string* report);

}  // namespace eps

#endif  // EPS_CHECKPOINT_CHECKPOINT_REPORT_H_
