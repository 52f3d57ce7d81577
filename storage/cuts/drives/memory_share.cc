#include "storage/cuts/drives/memory_share.h"

#include <algorithm>
#include <map>

#include "base/job/layout/chunk_map.h"

namespace eps {

std::vector<bool> ChunksInMemory(const ChunkMap& chunks, absl::Span<const ChunkId> owned,
                                 size_t arrays, uint64_t bytes) {
  const auto size_of = [&](uint32_t index) {
    const Chunk& chunk = chunks.chunk(owned[index]);
    return chunk.elements * (chunk.frozen ? 1 : arrays) * sizeof(float);
  };
  std::map<StageId, std::vector<uint32_t>> stages;
  uint64_t all = 0;
  for (uint32_t i = 0; i < owned.size(); ++i) {
    stages[chunks.chunk(owned[i]).uses.front()].push_back(i);
    all += size_of(i);
  }
  std::vector<bool> in_memory(owned.size(), bytes >= all);
  if (bytes >= all || bytes == 0) return in_memory;
  const double share = static_cast<double>(bytes) / static_cast<double>(all);
  uint64_t passed = 0;  // bytes of the stages so far
  uint64_t held = 0;    // of these in memory
  for (auto& [stage, indices] : stages) {
    std::stable_sort(indices.begin(), indices.end(),
                     [&](uint32_t a, uint32_t b) { return size_of(a) > size_of(b); });
    for (const uint32_t index : indices) passed += size_of(index);
    const uint64_t target =
        std::min(bytes, static_cast<uint64_t>(share * static_cast<double>(passed)));
    for (const uint32_t index : indices) {
      if (held + size_of(index) > target) continue;
      in_memory[index] = true;
      held += size_of(index);
    }
  }
  return in_memory;
}

}  // namespace eps
