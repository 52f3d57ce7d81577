#ifndef EPS_CLI_COMMANDS_STATE_H_
#define EPS_CLI_COMMANDS_STATE_H_

// Operations on a job's state: `eps checkpoint save | reshard`, `eps backup` and `eps restore`
// (docs/durability.md). Apart from SaveRunning, they work while no server runs. Each prints what it
// did, on stderr if a backup goes to stdout.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/config/config.h"

namespace eps {

// The arguments of these commands.
struct StateArguments {
  // A state folder; for a restore a checkpoint, a folder of checkpoints, or a backup file.
  std::string from;
  std::string out;       // a folder for checkpoints (save, backup), or a new state folder
  std::string job;       // 16 hexadecimal digits; empty chooses the only job
  uint32_t servers = 0;  // for the new state folder; 0 keeps the number
  bool dry_run = false;
  // Of SaveRunning: addresses of servers, and the most seconds until the end of the open step.
  std::string addresses;
  uint32_t patience = 600;
  SecurityConfig security;
};

// Errors are those of StateFolder, SaveCheckpoint, WriteStateFolder and
// checkpoint/backup/backup_file.h.
absl::Status SaveState(const StateArguments& arguments);
// Errors are those of LockFolder and SaveRunningJob.
absl::Status SaveRunning(const StateArguments& arguments);
absl::Status ReshardState(const StateArguments& arguments);
absl::Status RestoreState(const StateArguments& arguments);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_STATE_H_
