#ifndef EPS_STORAGE_BACKENDS_CHUNK_ARENA_H_
#define EPS_STORAGE_BACKENDS_CHUNK_ARENA_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "optimizer/chunk_compute.h"
#include "storage/disk/state_arena.h"

namespace eps {

// The prefaulted memory of a shard's whole state. Owns the memory and charges it to the account as
// kState. Takes no locks: the owner serializes access to each chunk's arrays.
class ChunkArena {
 public:
  // Reserves `arrays` arrays for each of the `owned` chunks, and one for a frozen chunk. Chunks
  // for which `held_or_null` has false get none.
  // ResourceExhausted names the bytes wanted, the bytes in use, the limit, and the key to change.
  // `account` must outlive the arena.
  static absl::StatusOr<std::unique_ptr<ChunkArena>> New(
      const ChunkMap& chunks, const std::vector<ChunkId>& owned, size_t arrays,
      MemoryAccount* account, const std::vector<bool>* held_or_null = nullptr);
  ~ChunkArena();
  ChunkArena(const ChunkArena&) = delete;
  ChunkArena& operator=(const ChunkArena&) = delete;

  uint64_t charged_bytes() const { return charged_bytes_; }
  // Returns the arrays of owned[index], which is held.
  ChunkArrays arrays(uint32_t index) const {
    return ChunkArrays{memory_->floats() + places_[index].offset, places_[index].stride};
  }

 private:
  // The location of one chunk's arrays.
  struct Place {
    uint64_t offset = 0;  // in floats, from the start of the memory
    uint64_t stride = 0;
  };

  explicit ChunkArena(MemoryAccount* account) : account_(account) {}

  MemoryAccount* const account_;
  uint64_t charged_bytes_ = 0;
  std::vector<Place> places_;
  std::unique_ptr<StateArena> memory_;
};

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_CHUNK_ARENA_H_
