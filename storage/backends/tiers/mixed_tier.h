#ifndef EPS_STORAGE_BACKENDS_TIERS_MIXED_TIER_H_
#define EPS_STORAGE_BACKENDS_TIERS_MIXED_TIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "storage/backends/tiers/dram_tier.h"
#include "storage/tier.h"

namespace eps::durable {

// Keeps some chunks in memory and all others in the slot files, each in a tier of its own. The
// files have room for all of them: a cut copies there those that are in memory.
class MixedTier final : public Tier {
 public:
  // `in_memory` says for each index which of the two has the chunk.
  MixedTier(std::vector<bool> in_memory, std::unique_ptr<DramTier> memory,
            std::unique_ptr<Tier> files)
      : in_memory_(std::move(in_memory)), memory_(std::move(memory)), files_(std::move(files)) {}

  bool in_slots(uint32_t index) const override { return !in_memory_[index]; }
  uint64_t state_bytes() const override { return memory_->state_bytes(); }
  void Run(ChunkOp* op, RunDone done) override { Of(op->index)->Run(op, std::move(done)); }
  void Capture(const Copy& copy, std::function<void()> copied, CopyDone done) override {
    memory_->Capture(copy, std::move(copied), std::move(done));
  }
  void Sync(uint32_t slot, SyncDone done) override { files_->Sync(slot, std::move(done)); }
  void Check(uint32_t slot, uint32_t index, Extents::Part part, CheckDone done) override {
    files_->Check(slot, index, part, std::move(done));
  }
  void Adopt(uint32_t index, uint32_t slot, CheckDone done) override {
    Of(index)->Adopt(index, slot, std::move(done));
  }

 private:
  Tier* Of(uint32_t index) {
    if (in_memory_[index]) return memory_.get();
    return files_.get();
  }

  const std::vector<bool> in_memory_;  // by index
  const std::unique_ptr<DramTier> memory_;
  const std::unique_ptr<Tier> files_;
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_TIERS_MIXED_TIER_H_
