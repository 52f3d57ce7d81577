#ifndef EPS_STORAGE_BACKENDS_TIERS_DRAM_TIER_H_
#define EPS_STORAGE_BACKENDS_TIERS_DRAM_TIER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/executor.h"
#include "storage/backends/chunk_arena.h"
#include "storage/backends/in_flight.h"
#include "storage/backends/slot_files.h"
#include "storage/tier.h"

namespace eps::durable {

// Keeps the state in memory; the slot files hold the copies that cuts made.
class DramTier final : public Tier {
 public:
  // `arena` holds chunks by their indices in the files' layout. Both pointers must outlive the
  // tier.
  DramTier(std::unique_ptr<ChunkArena> arena, SlotFiles* files, InFlight* in_flight);

  bool in_slots(uint32_t) const override { return false; }
  uint64_t state_bytes() const override { return arena_->charged_bytes(); }
  void Run(ChunkOp* op, RunDone done) override;
  void Capture(const Copy& copy, std::function<void()> copied, CopyDone done) override;
  void Sync(uint32_t slot, SyncDone done) override;
  void Check(uint32_t slot, uint32_t index, Extents::Part part, CheckDone done) override;
  void Adopt(uint32_t index, uint32_t slot, CheckDone done) override;

 private:
  uint64_t bytes(uint32_t index) const {
    return files_->layout().area(index).stride_bytes * files_->layout().area(index).arrays;
  }
  void WriteCopy(const Copy& copy, uint8_t* buffer, const CopyDone& done);

  const std::unique_ptr<ChunkArena> arena_;
  SlotFiles* const files_;
  InFlight* const in_flight_;
  std::vector<Sequence> sequences_;  // by index: the tasks that touch the chunk's arrays
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_TIERS_DRAM_TIER_H_
