#include "storage/cuts/scrub_cursor.h"

#include <algorithm>

#include "storage/cuts/extents/residual_stream.h"

namespace eps {

std::optional<ScrubCursor::Place> ScrubCursor::Next(const SlotTable& table, uint64_t piece_bytes) {
  const SlotTable::KeptCut* cut = table.OldestFrom(cut_);
  if (cut == nullptr) cut = table.OldestFrom(CutId());
  if (cut == nullptr || table.chunks() == 0) return std::nullopt;
  const CatalogueCut& record = cut->record;
  const CutId id = record.border.id;
  if (id != cut_) {
    cut_ = id;
    index_ = 0;
  }
  Place place;
  place.cut = id;
  place.version = record.border.version;
  if (index_ == table.chunks()) {
    place.slot = record.residuals_slot;
    place.residuals_at = piece_at_;
    place.residuals_crc32c = piece_crc_;
    place.residuals_bytes = std::min(record.residuals_bytes - piece_at_, piece_bytes);
    return place;
  }
  place.index = index_++;
  place.slot = record.slot[place.index] ? 1 : 0;
  if (index_ == table.chunks()) {
    piece_at_ = 0;
    piece_crc_ = 0;
    if (record.residuals_bytes == 0) place.ends_pass = EndCut(table, id);
  }
  return place;
}

bool ScrubCursor::EndCut(const SlotTable& table, const CutId& cut) {
  cut_ = CutId{cut.step, cut.term.Next()};
  index_ = 0;
  return table.OldestFrom(cut_) == nullptr;
}

absl::Status ScrubCursor::EndResiduals(const SlotTable& table, const Place& place, uint32_t crc32c,
                                       bool* ends_pass) {
  const SlotTable::KeptCut* const cut = table.FindDurable(place.cut);
  const bool is_next =
      cut_ == place.cut && index_ == table.chunks() && piece_at_ == place.residuals_at;
  if (cut == nullptr || !is_next) return absl::OkStatus();
  piece_at_ += place.residuals_bytes;
  piece_crc_ = crc32c;
  if (piece_at_ < cut->record.residuals_bytes) return absl::OkStatus();
  *ends_pass = EndCut(table, place.cut);
  return CheckResidualsCrc32c(cut->record.residuals_crc32c, crc32c);
}

}  // namespace eps
