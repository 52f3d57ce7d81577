#include "storage/backends/tiers/new_tier.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "storage/backends/chunk_arena.h"
#include "storage/backends/near/tier_in_files.h"
#include "storage/backends/tiers/dram_tier.h"
#include "storage/backends/tiers/mixed_tier.h"

namespace eps::durable {

absl::StatusOr<MadeTier> NewTier(const TierParts& parts, const ChunkMap& chunks,
                                 const std::vector<ChunkId>& owned, const TierPlan& plan) {
  const auto held = std::count(plan.in_memory.begin(), plan.in_memory.end(), true);
  std::unique_ptr<DramTier> memory;
  if (held > 0) {
    EPS_ASSIGN_OR_RETURN(
        std::unique_ptr<ChunkArena> arena,
        ChunkArena::New(chunks, owned, parts.compute->arrays(), parts.account, &plan.in_memory));
    memory = std::make_unique<DramTier>(std::move(arena), parts.files, parts.in_flight);
  }
  MadeTier made;
  if (static_cast<size_t>(held) == owned.size()) {
    made.tier = std::move(memory);
    return made;
  }
  EPS_ASSIGN_OR_RETURN(TierInFiles files,
                       NewTierInFiles(parts.compute, parts.files, parts.in_flight,
                                      plan.devices_or_null, plan.folders, plan.device_use));
  made.on_host_or_null = files.on_host;
  made.tier = held == 0 ? std::move(files.tier)
                        : std::make_unique<MixedTier>(plan.in_memory, std::move(memory),
                                                      std::move(files.tier));
  return made;
}

}  // namespace eps::durable
