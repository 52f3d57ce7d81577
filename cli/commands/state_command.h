#ifndef EPS_CLI_COMMANDS_STATE_COMMAND_H_
#define EPS_CLI_COMMANDS_STATE_COMMAND_H_

// What can be done with durable state while no server runs: `eps checkpoint save | reshard`,
// `eps state ls | rm`, `eps backup` and `eps restore` (docs/durability.md). Each prints what it
// did; on stderr, if a backup goes to stdout.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace eps {

struct StateArguments {
  // A state folder; of a restore a checkpoint, a folder of them, or a backup as one file.
  std::string from;
  std::string out;       // a folder for checkpoints (save, backup), or a new state folder
  std::string job;       // 16 hexadecimal digits; empty: the only one
  uint32_t servers = 0;  // of the new state folder; 0: as many as before
  bool dry_run = false;
};

// Errors as StateFolder, SaveCheckpoint, WriteStateFolder and checkpoint/backup_file.h have them.
absl::Status SaveState(const StateArguments& arguments);
absl::Status ReshardState(const StateArguments& arguments);
absl::Status RestoreState(const StateArguments& arguments);

// The arguments behind `eps state`, `eps backup` and `eps restore`. InvalidArgument if they do not
// fit.
absl::Status RunStateCommand(const std::vector<std::string>& arguments);
absl::Status RunBackupCommand(const std::vector<std::string>& arguments);
absl::Status RunRestoreCommand(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_STATE_COMMAND_H_
