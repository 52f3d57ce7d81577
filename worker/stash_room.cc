#include "worker/stash_room.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "base/machine/machine_limits.h"

namespace eps {

uint64_t StashRoom(uint64_t configured, int workers, const std::string& root) {
  if (configured > 0) return configured;
  const absl::StatusOr<uint64_t> available = AvailableMemory(root);
  if (!available.ok()) return 0;
  return *available / 2 / static_cast<uint64_t>(std::max(1, workers));
}

}  // namespace eps
