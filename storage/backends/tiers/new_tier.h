#ifndef EPS_STORAGE_BACKENDS_TIERS_NEW_TIER_H_
#define EPS_STORAGE_BACKENDS_TIERS_NEW_TIER_H_

// Makes the tier of a durable backend: in memory, in slot files on drives or in storage devices, or
// in memory as far as it goes and in files for the rest.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "optimizer/chunk_compute.h"
#include "storage/backends/file_tier.h"
#include "storage/backends/in_flight.h"
#include "storage/backends/near/device_use.h"
#include "storage/backends/slot_files.h"
#include "storage/csd/device_disk.h"
#include "storage/tier.h"

namespace eps::durable {

// The parts of a backend that its tier works with; they must outlive the tier.
struct TierParts {
  const ChunkCompute* compute = nullptr;
  SlotFiles* files = nullptr;
  InFlight* in_flight = nullptr;
  MemoryAccount* account = nullptr;
};

// Where the chunks of a shard are. Plain value.
struct TierPlan {
  std::vector<bool> in_memory;            // by the chunk's index within the shard
  std::vector<std::string> folders;       // of the slots, one per drive
  DeviceDisk* devices_or_null = nullptr;  // that update what lies in them; borrowed
  DeviceUse device_use;
};

// A tier, and the part of it that works on files on the host.
struct MadeTier {
  std::unique_ptr<Tier> tier;
  FileTier* on_host_or_null = nullptr;  // null if all chunks are in memory
};

// ResourceExhausted with the figures and the key to change if memory, or that of a device, does not
// suffice. `owned` are the chunks of the shard in the order of the files' layout.
absl::StatusOr<MadeTier> NewTier(const TierParts& parts, const ChunkMap& chunks,
                                 const std::vector<ChunkId>& owned, const TierPlan& plan);

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_TIERS_NEW_TIER_H_
