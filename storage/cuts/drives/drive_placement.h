#ifndef EPS_STORAGE_CUTS_DRIVES_DRIVE_PLACEMENT_H_
#define EPS_STORAGE_CUTS_DRIVES_DRIVE_PLACEMENT_H_

// Which of a server's drives (storage.drives) holds each chunk. The catalogue records it when the
// job's files are made; nobody computes it again for these files.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"

namespace eps {

class ChunkMap;

// The most drives of a server.
inline constexpr uint32_t kMaxDrives = 64;

// The drive of each chunk of a shard.
struct DrivePlacement {
  uint32_t drives = 0;          // 0: the server names none, and the files are beside its catalogue
  std::vector<uint32_t> drive;  // by the chunk's index within the shard; empty without drives

  uint32_t of(uint32_t index) const { return drive.empty() ? 0 : drive[index]; }
};

// Spreads the owned chunks (ascending) over at most kMaxDrives drives, stage by stage and the
// largest first: each goes to the drive that has the fewest bytes of the first stage that uses it
// and, of several, the fewest bytes in all. So all drives work during every stage, and fill
// equally. `arrays` are those of a chunk that is not frozen.
DrivePlacement SpreadOverDrives(const ChunkMap& chunks, absl::Span<const ChunkId> owned,
                                size_t arrays, uint32_t drives);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_DRIVES_DRIVE_PLACEMENT_H_
