#include "storage/cuts/slot_table.h"

#include <iterator>
#include <utility>

#include "base/check.h"

namespace eps {

void SlotTable::Adopt(const CatalogueCut& record) {
  EPS_CHECK(record.slot.size() == content_.size());
  KeptCut cut;
  cut.record = record;
  cut.captured.assign(content_.size(), true);
  cut.durable = true;
  for (uint32_t i = 0; i < chunks(); ++i) ++needed_[i][record.slot[i] ? 1 : 0];
  if (record.residuals_bytes > 0) ++residuals_needed_[record.residuals_slot];
  kept_.push_back(std::move(cut));
}

const SlotTable::KeptCut* SlotTable::FindDurable(const CutId& id) const {
  for (const KeptCut& cut : kept_) {
    if (cut.durable && cut.record.border.id == id) return &cut;
  }
  return nullptr;
}

const SlotTable::KeptCut* SlotTable::YoungestBelow(const CutId& id) const {
  const KeptCut* youngest = nullptr;
  for (const KeptCut& cut : kept_) {
    if (!cut.durable || !(cut.record.border.id < id)) continue;
    if (youngest == nullptr || youngest->record.border.id < cut.record.border.id) youngest = &cut;
  }
  return youngest;
}

std::list<SlotTable::KeptCut>::iterator SlotTable::Erase(std::list<KeptCut>::iterator cut) {
  for (uint32_t i = 0; i < chunks(); ++i) {
    if (cut->captured[i]) --needed_[i][cut->record.slot[i] ? 1 : 0];
  }
  if (cut->record.residuals_bytes > 0) --residuals_needed_[cut->record.residuals_slot];
  return kept_.erase(cut);
}

void SlotTable::Drop(const KeptCut* cut) {
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    if (&*it == cut) {
      Erase(it);
      return;
    }
  }
  EPS_CHECK_MSG(false, "a cut is dropped that is not kept");
}

int SlotTable::DropBelow(const CutId& oldest_kept) {
  int dropped = 0;
  for (auto it = kept_.begin(); it != kept_.end();) {
    const bool drop = it->durable && it->record.border.id < oldest_kept;
    dropped += drop;
    it = drop ? Erase(it) : std::next(it);
  }
  return dropped;
}

void SlotTable::DropAbove(const CutId& base) {
  for (auto it = kept_.begin(); it != kept_.end();) {
    it = base < it->record.border.id ? Erase(it) : std::next(it);
  }
}

}  // namespace eps
