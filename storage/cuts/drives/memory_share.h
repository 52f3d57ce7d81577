#ifndef EPS_STORAGE_CUTS_DRIVES_MEMORY_SHARE_H_
#define EPS_STORAGE_CUTS_DRIVES_MEMORY_SHARE_H_

// Which chunks of a shard lie in memory, if a part of its state does (storage.dram). The slot files
// have room for every chunk either way, so no record says it: each process decides for itself.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"

namespace eps {

class ChunkMap;

// Returns for each of the owned chunks (ascending) whether it is in memory. Each stage has the same
// share of its bytes there, but for a chunk, so that memory and drives work during every stage; the
// largest chunks of a stage come first. The chunks in memory have at most `bytes`, with `arrays`
// arrays for a chunk that is not frozen.
std::vector<bool> ChunksInMemory(const ChunkMap& chunks, absl::Span<const ChunkId> owned,
                                 size_t arrays, uint64_t bytes);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_DRIVES_MEMORY_SHARE_H_
