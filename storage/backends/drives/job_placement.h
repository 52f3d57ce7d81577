#ifndef EPS_STORAGE_BACKENDS_DRIVES_JOB_PLACEMENT_H_
#define EPS_STORAGE_BACKENDS_DRIVES_JOB_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/drives/drive_placement.h"

namespace eps {

// Returns the placement that the catalogue has of a known job, or a new one for another job, on as
// many drives as the server has; 0 if it names none. FailedPrecondition, with both numbers, if a
// known job is on another number of drives.
absl::StatusOr<DrivePlacement> PlacementOf(const JobSpec& spec, const ChunkMap& chunks,
                                           const std::vector<ChunkId>& owned, size_t arrays,
                                           const Catalogue& catalogue, uint32_t drives);

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_DRIVES_JOB_PLACEMENT_H_
