#ifndef EPS_STORAGE_CUTS_SCRUB_CURSOR_H_
#define EPS_STORAGE_CUTS_SCRUB_CURSOR_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/ids.h"
#include "storage/cuts/cut.h"
#include "storage/cuts/slot_table.h"

namespace eps {

// Chooses the part of the kept cuts that a scrub reads next: the chunks of the oldest cut, then its
// residuals piece by piece, then the next cut. After the youngest cut the pass ends and the next
// one begins. Thread-compatible.
class ScrubCursor {
 public:
  // A chunk of a cut, or a piece of its residuals.
  struct Place {
    CutId cut;
    Version version;
    uint32_t slot = 0;
    uint32_t index = 0;             // of the chunk
    uint64_t residuals_bytes = 0;   // of this piece; 0 if the place is a chunk
    uint64_t residuals_at = 0;      // of this piece, within the cut's residuals
    uint32_t residuals_crc32c = 0;  // of the pieces before this one
    bool ends_pass = false;
  };

  // Returns the next place and advances past it unless it is a piece of residuals, which
  // EndResiduals passes. A piece has at most `piece_bytes` bytes. nullopt if no cut is kept.
  std::optional<Place> Next(const SlotTable& table, uint64_t piece_bytes);
  // Advances past a piece of residuals that was read; `crc32c` covers it and the pieces before it.
  // Sets *ends_pass if it was the last piece of the pass. DataLoss if it was the cut's last piece
  // and `crc32c` differs from the cut's record.
  absl::Status EndResiduals(const SlotTable& table, const Place& place, uint32_t crc32c,
                            bool* ends_pass);

 private:
  // Advances to the cut after `cut`. Returns true if there is none.
  bool EndCut(const SlotTable& table, const CutId& cut);

  CutId cut_;               // the oldest cut that this pass has not finished
  uint32_t index_ = 0;      // its next chunk; the number of chunks means its residuals
  uint64_t piece_at_ = 0;   // where its next piece of residuals begins
  uint32_t piece_crc_ = 0;  // CRC32C of the residuals before that
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_SCRUB_CURSOR_H_
