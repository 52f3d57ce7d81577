#include "base/job/layout/server_count.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace eps {

absl::Status CheckServerCount(const JobSpec& spec, const ChunkMap& chunks, uint32_t servers) {
  const auto all = chunks.chunks();
  const auto trained =
      std::count_if(all.begin(), all.end(), [](const Chunk& c) { return !c.frozen; });
  const bool some_frozen = static_cast<size_t>(trained) < all.size();
  if (spec.training.mode == Mode::kSealed || !some_frozen ||
      servers <= static_cast<uint64_t>(trained)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("servers.addresses: with training.mode=eager each of ", servers,
                   " servers needs a chunk that is trained, and the others of the ", all.size(),
                   " chunks than ", trained,
                   " are frozen (optimizer.groups); use fewer servers, smaller chunks "
                   "(training.chunk_elements), "
                   "or training.mode=sealed"));
}

}  // namespace eps
