#ifndef EPS_CHECKPOINT_GUARD_CHECKPOINT_PLACE_H_
#define EPS_CHECKPOINT_GUARD_CHECKPOINT_PLACE_H_

// The names that a checkpoint's folder has in the folder of checkpoints until it has its own. At
// every moment a checkpoint that was complete can be found, also after a kill or a power cut.
//
//   .checkpoint-N.tmp   a checkpoint that is being written or removed
//   .checkpoint-N.old   a complete one that is being replaced, while checkpoint-N is missing

#include <string>

#include "absl/status/status.h"

namespace eps {

// Returns the hidden names of the checkpoint `name` in `root`.
std::string TemporaryName(const std::string& root, const std::string& name);
std::string ReplacedName(const std::string& root, const std::string& name);

// Returns the name of the checkpoint at `path` in `root`: the last part of the path, or NAME for
// ReplacedName(root, NAME) while nothing else has that name.
std::string NameOf(const std::string& root, const std::string& path);

// Gives the complete and synced checkpoint at TemporaryName its name, durably. Removes an older
// checkpoint of that name, but only after the new one is durable in `root`. Errors are those of
// base/files/files.h.
absl::Status PlaceCheckpoint(const std::string& root, const std::string& name);

// Removes what interrupted writes left in `root`, and gives an older checkpoint its name back if
// its replacement was interrupted. Call it while nothing else writes there.
absl::Status CleanCheckpoints(const std::string& root);

}  // namespace eps

#endif  // EPS_CHECKPOINT_GUARD_CHECKPOINT_PLACE_H_
