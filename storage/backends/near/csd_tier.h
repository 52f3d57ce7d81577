#ifndef EPS_STORAGE_BACKENDS_NEAR_CSD_TIER_H_
#define EPS_STORAGE_BACKENDS_NEAR_CSD_TIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "optimizer/chunk_compute.h"
#include "storage/backends/file_tier.h"
#include "storage/backends/in_flight.h"
#include "storage/backends/near/device_reads.h"
#include "storage/backends/near/device_use.h"
#include "storage/backends/near/memory_sets.h"
#include "storage/backends/slot_files.h"
#include "storage/csd/device_disk.h"
#include "storage/tier.h"

namespace eps::durable {

// Keeps the state in slot files that lie in storage devices, and updates a chunk inside its device
// (Smart-Infinity, section 4.1): the gradient goes down, new weights come up, encoded in the device
// or in FP32, and the optimizer state never crosses the host link. With a device without codecs,
// gradients go down in FP32, too. Devices measure and check
// chunks, too. A FileTier on the host does everything else, and all that concerns chunks on drives
// without a device. The bits are those of every other tier.
class CsdTier final : public Tier {
 public:
  // Allocates `use.sets` sets of buffers in the memory of each device: as many chunks of a device
  // are updated at the same time. `folders` are those of the slots, one per drive, of which at most
  // one lies in each device of `disk`.
  // All arguments must outlive the tier. ResourceExhausted with the key to change if a device has
  // too little memory, InvalidArgument if it cannot measure a chunk of so many segments.
  static absl::StatusOr<std::unique_ptr<CsdTier>> New(const ChunkCompute* compute, SlotFiles* files,
                                                      InFlight* in_flight, DeviceDisk* disk,
                                                      const Extents::Folders& folders,
                                                      DeviceUse use);

  FileTier* on_host() { return &on_host_; }

  bool in_slots(uint32_t) const override { return true; }
  uint64_t state_bytes() const override { return 0; }
  void Run(ChunkOp* op, RunDone done) override;
  void Capture(const Copy& copy, std::function<void()> copied, CopyDone done) override {
    on_host_.Capture(copy, std::move(copied), std::move(done));
  }
  void Sync(uint32_t slot, SyncDone done) override { on_host_.Sync(slot, std::move(done)); }
  // The host checks footers: reading them costs less than asking a device.
  void Check(uint32_t slot, uint32_t index, Extents::Part part, CheckDone done) override;
  void Adopt(uint32_t index, uint32_t slot, CheckDone done) override {
    Check(slot, index, Extents::Part::kAll, std::move(done));
  }

 private:
  struct Running;
  struct Buffer;
  using Update = std::shared_ptr<Running>;

  CsdTier(const ChunkCompute* compute, SlotFiles* files, InFlight* in_flight, DeviceDisk* disk,
          DeviceUse use)
      : compute_(compute),
        files_(files),
        in_flight_(in_flight),
        disk_(disk),
        on_host_(files, in_flight),
        reads_(compute, files, in_flight, disk, use.encodes_weights),
        use_(use) {}

  // Returns the sets of the chunk's device; null if the chunk lies in none.
  MemorySets* SetsOf(uint32_t index) const {
    return sets_[files_->layout().area(index).drive].get();
  }
  // Allocates what the tier needs in one device, with sets of that size.
  absl::Status Prepare(Device* device, uint32_t drive, const std::string& folder, uint64_t bytes);

  // Those of a chunk in a set, except for the room for its gradient, which is the last.
  std::vector<Buffer> BuffersOf(const ExtentLayout::Area& area) const;

  // The phases of one update, in call order. A measurement ends after Compute.
  void FindPlaces(const Update& run);
  void TakeSet(const Update& run, Place set, const MemorySets::Gates& before);
  void Load(const Update& run);
  // Calls `then` once the chunk before has left that buffer.
  void WhenFree(const Update& run, size_t buffer, std::function<void()> then);
  void LoadGradient(const Update& run, const AsyncFile::Done& loaded);
  void SendGradient(const Update& run, uint8_t* buffer, const AsyncFile::Done& loaded);
  void Compute(const Update& run, const absl::Status& loaded);
  void EndMeasurement(const Update& run, const absl::StatusOr<std::string>& answer);
  void Store(const Update& run, const absl::StatusOr<std::string>& answer);
  // Completes `each` for each buffer, and `all_or_null`, if there is one, too.
  void StoreBuffers(const Update& run, size_t begin, size_t end, const AsyncFile::Done& each,
                    const AsyncFile::Done& all_or_null);
  void BringUp(const Update& run, const AsyncFile::Done& ended);
  void End(const Update& run, const absl::Status& status);
  void Fail(const Update& run, const absl::Status& status);
  void Finish(const Update& run, ChunkResult result);

  const ChunkCompute* const compute_;
  SlotFiles* const files_;
  InFlight* const in_flight_;
  DeviceDisk* const disk_;
  FileTier on_host_;
  DeviceReads reads_;
  const DeviceUse use_;
  std::vector<std::unique_ptr<MemorySets>> sets_;  // by drive; null without a device
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_NEAR_CSD_TIER_H_
