#ifndef EPS_CHECKPOINT_GUARD_CHECKPOINT_ROOM_H_
#define EPS_CHECKPOINT_GUARD_CHECKPOINT_ROOM_H_

// The room that a checkpoint takes on its disk. Thread-safe.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"

namespace eps {

// Returns the bytes of one checkpoint of the job: its tensors, its residuals, and an allowance for
// the small files. InvalidArgument for an unknown codec.
absl::StatusOr<uint64_t> CheckpointBytes(const JobSpec& spec, const ChunkMap& chunks);

// ResourceExhausted, with both figures, unless one more checkpoint fits into the file system of
// `root` (checkpoint.dir), which need not exist. Other errors are those of CheckpointBytes and
// FreeBytes (base/machine/disk_room.h).
absl::Status CheckRoom(const std::string& root, const JobSpec& spec, const ChunkMap& chunks);

}  // namespace eps

#endif  // EPS_CHECKPOINT_GUARD_CHECKPOINT_ROOM_H_
