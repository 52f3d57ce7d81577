#include "storage/backends/drives/job_placement.h"

#include "absl/strings/str_cat.h"

namespace eps {

absl::StatusOr<DrivePlacement> PlacementOf(const JobSpec& spec, const ChunkMap& chunks,
                                           const std::vector<ChunkId>& owned, size_t arrays,
                                           const Catalogue& catalogue, uint32_t drives) {
  const absl::StatusOr<CatalogueJob> known = catalogue.FindJob(spec.id());
  if (!known.ok() && !absl::IsNotFound(known.status())) return known.status();
  if (known.ok() && known->placement.drives != drives) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the state of this job was made for ", known->placement.drives,
        " drives, and the server has ", drives,
        " (storage.drives, storage.csd.devices): name the same drives in their previous order, or "
        "let eps checkpoint reshard STATE --out=NEW make a state folder without drives"));
  }
  // A job of another number of servers is refused once its other files are looked at.
  const bool fits = known.ok() && (drives == 0 || known->placement.drive.size() == owned.size());
  return fits ? known->placement : SpreadOverDrives(chunks, owned, arrays, drives);
}

}  // namespace eps
