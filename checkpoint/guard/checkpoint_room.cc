#include "checkpoint/guard/checkpoint_room.h"

#include "absl/strings/str_cat.h"
#include "base/machine/disk_room.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_residuals.h"

namespace eps {
namespace {

// Headers of the tensor files, configuration, tokenizer, history and manifest.
constexpr uint64_t kSmallFiles = uint64_t{1} << 20;

}  // namespace

absl::StatusOr<uint64_t> CheckpointBytes(const JobSpec& spec, const ChunkMap& chunks) {
  EPS_ASSIGN_OR_RETURN(const uint64_t residuals, ResidualFilesBytes(spec, chunks));
  uint64_t bytes = residuals + kSmallFiles;
  for (const Chunk& chunk : chunks.chunks()) bytes += StateBytes(spec, chunk);
  return bytes;
}

absl::Status CheckRoom(const std::string& root, const JobSpec& spec, const ChunkMap& chunks) {
  EPS_ASSIGN_OR_RETURN(const uint64_t wanted, CheckpointBytes(spec, chunks));
  EPS_ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(root));
  if (wanted <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a checkpoint takes ", wanted, " bytes, and ",
                                                   root, " (checkpoint.dir) has ", free,
                                                   " free: ", wanted - free, " are missing"));
}

}  // namespace eps
