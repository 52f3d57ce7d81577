#ifndef EPS_STORAGE_BACKENDS_NEAR_TIER_IN_FILES_H_
#define EPS_STORAGE_BACKENDS_NEAR_TIER_IN_FILES_H_

#include <memory>

#include "absl/status/statusor.h"
#include "optimizer/chunk_compute.h"
#include "storage/backends/file_tier.h"
#include "storage/backends/in_flight.h"
#include "storage/backends/near/device_use.h"
#include "storage/backends/slot_files.h"
#include "storage/csd/device_disk.h"
#include "storage/cuts/extents/extents.h"
#include "storage/tier.h"

namespace eps::durable {

// A tier that keeps the state in the slot files.
struct TierInFiles {
  std::unique_ptr<Tier> tier;
  FileTier* on_host = nullptr;  // `tier`, or the part of it that works on the host
};

// Returns a tier that updates on the host or, if there are devices, inside of them: `folders` and
// `use` are those of CsdTier. The arguments must outlive it. ResourceExhausted with the key to
// change if a device has too little memory.
absl::StatusOr<TierInFiles> NewTierInFiles(const ChunkCompute* compute, SlotFiles* files,
                                           InFlight* in_flight, DeviceDisk* devices_or_null,
                                           const Extents::Folders& folders, DeviceUse use);

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_NEAR_TIER_IN_FILES_H_
