#include "storage/cuts/drives/drive_placement.h"

#include <map>
#include <utility>

#include "base/check.h"
#include "base/job/layout/chunk_map.h"

namespace eps {

DrivePlacement SpreadOverDrives(const ChunkMap& chunks, absl::Span<const ChunkId> owned,
                                size_t arrays, uint32_t drives) {
  EPS_CHECK(drives <= kMaxDrives);
  DrivePlacement placement;
  placement.drives = drives;
  if (drives == 0) return placement;
  std::map<StageId, std::vector<uint64_t>> of_stage;  // elements of state by drive
  std::vector<uint64_t> of_job(drives);
  for (const ChunkId id : owned) {
    const Chunk& chunk = chunks.chunk(id);
    std::vector<uint64_t>& filled = of_stage[chunk.uses.front()];
    filled.resize(drives);
    uint32_t best = 0;
    for (uint32_t drive = 1; drive < drives; ++drive) {
      const auto fill = [&](uint32_t d) { return std::make_pair(filled[d], of_job[d]); };
      if (fill(drive) < fill(best)) best = drive;
    }
    const uint64_t elements = chunk.elements * (chunk.frozen ? 1 : arrays);
    filled[best] += elements;
    of_job[best] += elements;
    placement.drive.push_back(best);
  }
  return placement;
}

}  // namespace eps
