#ifndef EPS_STORAGE_BACKENDS_FILE_TIER_H_
#define EPS_STORAGE_BACKENDS_FILE_TIER_H_

#include <cstdint>
#include <memory>
#include <set>

#include "storage/backends/gradients/gradient_area.h"
#include "storage/backends/in_flight.h"
#include "storage/backends/slot_files.h"
#include "storage/disk/disk.h"
#include "storage/tier.h"

namespace eps::durable {

// Keeps the state in the slot files. An operation reads the chunk into a staging buffer, computes
// there, and writes the buffer to its target slot, so the tier needs no other memory. A state that
// arrives whole is written from where it is, while its checksums are computed. A reduced gradient
// passes through the end of a staging buffer on its way to the gradient area and back.
class FileTier final : public Tier {
 public:
  // Both must outlive the tier.
  FileTier(SlotFiles* files, InFlight* in_flight) : files_(files), in_flight_(in_flight) {}

  // Call once, before any operation, if reduced gradients are to be stored. `gradients` must
  // outlive the tier; staging buffers have room for its largest place.
  void StoreGradients(GradientArea* gradients) { gradients_ = gradients; }
  // The same, for a drive whose reduced gradients are to be stored in FP32.
  void StoreDecoded(uint32_t drive) { decoding_drives_.insert(drive); }

  bool in_slots(uint32_t) const override { return true; }
  uint64_t state_bytes() const override { return 0; }
  void Run(ChunkOp* op, RunDone done) override;
  void Capture(const Copy& copy, std::function<void()> copied, CopyDone done) override;
  void Sync(uint32_t slot, SyncDone done) override;
  void Check(uint32_t slot, uint32_t index, Extents::Part part, CheckDone done) override;
  void Adopt(uint32_t index, uint32_t slot, CheckDone done) override;

 private:
  struct Running;
  class Room;

  // The phases of one operation, in call order.
  void Load(const std::shared_ptr<Running>& run, uint8_t* buffer);
  void CheckLoaded(const std::shared_ptr<Running>& run, absl::Status status);
  void Compute(const std::shared_ptr<Running>& run);
  void WriteInPlace(const std::shared_ptr<Running>& run, uint64_t in_place);
  void WriteRest(const std::shared_ptr<Running>& run, uint64_t in_place,
                 const AsyncFile::Done& done);
  void WriteGradient(const std::shared_ptr<Running>& run, ChunkResult result);
  void Finish(const std::shared_ptr<Running>& run, ChunkResult result);
  absl::Span<uint8_t> GradientIn(uint8_t* buffer) const;

  SlotFiles* const files_;
  InFlight* const in_flight_;
  GradientArea* gradients_ = nullptr;  // null if reduced gradients stay in memory
  std::set<uint32_t> decoding_drives_;
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_FILE_TIER_H_
