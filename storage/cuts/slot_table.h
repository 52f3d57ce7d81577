#ifndef EPS_STORAGE_CUTS_SLOT_TABLE_H_
#define EPS_STORAGE_CUTS_SLOT_TABLE_H_

// Records which of its two slots holds each chunk, and which slots the kept cuts still need. One
// rule keeps every cut intact: never write to a slot that a kept cut needs. A write goes to the
// slot that holds the chunk or to the other one, or waits until a cut is recycled.

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "storage/cuts/catalogue.h"
#include "storage/cuts/cut.h"
#include "storage/cuts/extents/extents.h"

namespace eps {

// The slots of a shard's chunks and of its cuts' residuals. Thread-compatible.
class SlotTable {
 public:
  // The slot that holds a chunk, and its footer there.
  struct Content {
    uint32_t slot = 0;
    ExtentFooter footer;
  };
  // A cut that is in progress, or that is durable and not recycled.
  struct KeptCut {
    CatalogueCut record;
    std::vector<bool> captured;  // chunks whose slot is in the record
    bool durable = false;
  };

  explicit SlotTable(uint32_t chunks) : content_(chunks), needed_(chunks) {}

  uint32_t chunks() const { return static_cast<uint32_t>(content_.size()); }

  // Returns the slot and footer of the chunk's last write or restore; nullopt before the first.
  const std::optional<Content>& content(uint32_t index) const { return content_[index]; }
  void SetContent(uint32_t index, const Content& content) { content_[index] = content; }
  void ForgetContent() { content_.assign(content_.size(), std::nullopt); }

  // Returns the slot for the chunk's next write; nullopt if cuts need both slots.
  std::optional<uint32_t> Target(uint32_t index) const {
    const uint32_t first = content_[index].has_value() ? content_[index]->slot : 0;
    return FirstFree(needed_[index], first);
  }
  // Returns the slot for a cut's residuals; nullopt if cuts need both.
  std::optional<uint32_t> ResidualTarget() const { return FirstFree(residuals_needed_, 0); }

  // Begins a cut without chunks. The pointer is valid until the cut is dropped.
  KeptCut* Begin(const CutBorder& border) {
    kept_.emplace_back();
    kept_.back().record.border = border;
    kept_.back().record.slot.resize(content_.size());
    kept_.back().captured.resize(content_.size());
    return &kept_.back();
  }
  // Adds the chunk's content to the cut. REQUIRES that the chunk has content.
  void Capture(KeptCut* cut, uint32_t index) {
    cut->record.slot[index] = content_[index]->slot == 1;
    cut->captured[index] = true;
    ++needed_[index][content_[index]->slot];
  }
  void TakeResiduals(KeptCut* cut, uint32_t slot, uint64_t bytes) {
    cut->record.residuals_slot = slot;
    cut->record.residuals_bytes = bytes;
    ++residuals_needed_[slot];
  }
  // Adds a durable cut from the catalogue. REQUIRES an entry in `record.slot` for each chunk.
  void Adopt(const CatalogueCut& record);

  // Returns the oldest durable cut that is not older than `from`, or null.
  const KeptCut* OldestFrom(const CutId& from) const {
    for (const KeptCut& cut : kept_) {
      if (cut.durable && !(cut.record.border.id < from)) return &cut;
    }
    return nullptr;
  }
  // Returns the durable cut with that id, or null.
  const KeptCut* FindDurable(const CutId& id) const;
  // Returns the youngest durable cut that is older than `id`, or null.
  const KeptCut* YoungestBelow(const CutId& id) const;
  // Forgets a cut, which frees the slots that only it needs.
  void Drop(const KeptCut* cut);
  // Drops the durable cuts that are older than `oldest_kept`. Returns their number.
  int DropBelow(const CutId& oldest_kept);
  // Drops all cuts that are younger than `base`.
  void DropAbove(const CutId& base);
  void DropAll() {
    while (!kept_.empty()) Erase(kept_.begin());
  }

 private:
  using Needed = std::array<uint32_t, 2>;  // the number of kept cuts that need each slot

  static std::optional<uint32_t> FirstFree(const Needed& needed, uint32_t first) {
    if (needed[first] == 0) return first;
    if (needed[1 - first] == 0) return 1 - first;
    return std::nullopt;
  }
  std::list<KeptCut>::iterator Erase(std::list<KeptCut>::iterator cut);

  std::vector<std::optional<Content>> content_;
  std::vector<Needed> needed_;
  Needed residuals_needed_{};
  std::list<KeptCut> kept_;  // in the order of Begin and Adopt
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_SLOT_TABLE_H_
