#ifndef EPS_CLI_COMMANDS_CHECKPOINT_COMMAND_H_
#define EPS_CLI_COMMANDS_CHECKPOINT_COMMAND_H_

// `eps checkpoint {ls,digest,verify,export,save,reshard,rm}`: works with checkpoints, and with
// durable state, without servers or workers.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps {

// The arguments behind `eps checkpoint`. InvalidArgument for arguments that do not fit, NotFound
// for a folder that is not there, DataLoss for one that is damaged; export as ExportCheckpoint,
// save and reshard as in cli/commands/state_command.h, rm as RemoveCheckpoint.
absl::Status RunCheckpointCommand(const std::vector<std::string>& arguments);

// The table of `ls`: step, size, when it was written (UTC) and whether it is complete; by number.
// Of a state folder StateFolder::Table.
absl::StatusOr<std::string> CheckpointTable(const std::string& root);

// The lines of `digest`: "weights sha256:…" and, of a checkpoint, "state sha256:…", and of one that
// has residuals "residuals sha256:…" (docs/formats/checkpoint.md says over what). A folder of
// weights alone has only the first.
absl::StatusOr<std::string> CheckpointDigest(const std::string& folder);

// Checks a checkpoint to the last byte: sizes, SHA-256 and CRC32C of all files of the manifest,
// the job spec and its digest, the tensors' names, dtypes and shapes. `report` gets a line per
// file, damaged or not. DataLoss names the first file that is wrong.
absl::Status VerifyCheckpoint(const std::string& folder, std::string* report);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_CHECKPOINT_COMMAND_H_
