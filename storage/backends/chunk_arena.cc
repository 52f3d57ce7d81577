#include "storage/backends/chunk_arena.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps {

ChunkArena::~ChunkArena() {
  if (charged_bytes_ > 0) account_->Release(MemoryKind::kState, charged_bytes_);
}

absl::StatusOr<std::unique_ptr<ChunkArena>> ChunkArena::New(const ChunkMap& chunks,
                                                            const std::vector<ChunkId>& owned,
                                                            size_t arrays, MemoryAccount* account,
                                                            const std::vector<bool>* held_or_null) {
  std::unique_ptr<ChunkArena> arena(new ChunkArena(account));
  uint64_t elements = 0;
  uint64_t floats = 0;
  uint64_t bytes = 0;  // of the elements; the padding is less than a cache line for each array
  for (size_t i = 0; i < owned.size(); ++i) {
    const Chunk& chunk = chunks.chunk(owned[i]);
    arena->places_.push_back({floats, ChunkArrays::Stride(chunk.elements)});
    if (held_or_null != nullptr && !(*held_or_null)[i]) continue;
    const size_t own = chunk.frozen ? 1 : arrays;
    elements += chunk.elements;
    bytes += chunk.elements * sizeof(float) * own;
    floats += arena->places_.back().stride * own;
  }
  const absl::Status charged = account->TryCharge(MemoryKind::kState, bytes);
  if (!charged.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "weights and optimizer state of ", elements, " parameters, ", bytes,
        " bytes, do not fit: ", charged.message(),
        "; raise servers.memory_limit or spread the job over more servers (servers.addresses)"));
  }
  arena->charged_bytes_ = bytes;
  EPS_ASSIGN_OR_RETURN(arena->memory_, StateArena::New(floats * sizeof(float)));
  return arena;
}

}  // namespace eps
