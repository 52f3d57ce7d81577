#include "storage/cuts/drives/drive_placement.h"

#include <algorithm>
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
  struct Load {
    uint64_t elements;  // of state
    uint32_t index;
  };
  std::map<StageId, std::vector<Load>> stages;
  for (uint32_t i = 0; i < owned.size(); ++i) {
    const Chunk& chunk = chunks.chunk(owned[i]);
    stages[chunk.uses.front()].push_back({chunk.elements * (chunk.frozen ? 1 : arrays), i});
  }
  placement.drive.resize(owned.size());
  std::vector<uint64_t> of_job(drives);  // elements by drive
  for (auto& [stage, loads] : stages) {
    std::stable_sort(loads.begin(), loads.end(),
                     [](const Load& a, const Load& b) { return a.elements > b.elements; });
    std::vector<uint64_t> of_stage(drives);
    for (const Load& load : loads) {
      uint32_t best = 0;
      for (uint32_t drive = 1; drive < drives; ++drive) {
        const auto fill = [&](uint32_t d) { return std::make_pair(of_stage[d], of_job[d]); };
        if (fill(drive) < fill(best)) best = drive;
      }
      of_stage[best] += load.elements;
      of_job[best] += load.elements;
      placement.drive[load.index] = best;
    }
  }
  return placement;
}

}  // namespace eps
