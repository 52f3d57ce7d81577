#include "storage/backends/near/tier_in_files.h"

#include <utility>

#include "base/status_macros.h"
#include "storage/backends/near/csd_tier.h"

namespace eps::durable {

absl::StatusOr<TierInFiles> NewTierInFiles(const ChunkCompute* compute, SlotFiles* files,
                                           InFlight* in_flight, DeviceDisk* devices_or_null,
                                           const Extents::Folders& folders, DeviceUse use) {
  TierInFiles made;
  if (devices_or_null == nullptr) {
    auto tier = std::make_unique<FileTier>(files, in_flight);
    made.on_host = tier.get();
    made.tier = std::move(tier);
    return made;
  }
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<CsdTier> tier,
                       CsdTier::New(compute, files, in_flight, devices_or_null, folders, use));
  made.on_host = tier->on_host();
  made.tier = std::move(tier);
  return made;
}

}  // namespace eps::durable
