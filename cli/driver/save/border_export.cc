#include "cli/driver/save/border_export.h"

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps {

absl::StatusOr<Border> ExportBorder(uint64_t step, ControlClient* client,
                                    CheckpointWriter* writer) {
  // At 20 MB/s even a slow disk is not taken for a dead server.
  const std::chrono::seconds timeout(120 + writer->bytes() / 20'000'000);
  Border border;
  for (uint32_t s = 0; s < client->servers().size(); ++s) {
    EPS_RETURN_IF_ERROR(client->Export(
        ShardId(s), step, timeout,
        [&](ChunkId chunk, const Border& at, const ChunkState& state) -> absl::Status {
          if (s == 0) border = at;  // only the lead has the norm
          if (at.step != step || at.version != border.version || at.term != border.term) {
            return absl::InternalError(
                absl::StrCat("server ", client->servers()[s], " is at step ", at.step, " version ",
                             at.version, ", expected step ", step, " version ", border.version));
          }
          return writer->WriteChunk(chunk, state);
        },
        [&](const ResidualPlace& place, const std::string& encoded) {
          return writer->WriteResidual(place, encoded);
        }));
  }
  return border;
}

}  // namespace eps
