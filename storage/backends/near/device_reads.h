#ifndef EPS_STORAGE_BACKENDS_NEAR_DEVICE_READS_H_
#define EPS_STORAGE_BACKENDS_NEAR_DEVICE_READS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/executor.h"
#include "optimizer/chunk_compute.h"
#include "optimizer/update_request.h"
#include "storage/backends/in_flight.h"
#include "storage/backends/near/memory_sets.h"
#include "storage/backends/slot_files.h"
#include "storage/csd/device_disk.h"
#include "storage/csd/kernels/kernel_records.h"
#include "storage/tier.h"

namespace eps::durable {

// Kernels run over all of a device's memory.
inline constexpr Place kAllMemory = {Place::Where::kDram, 0};

// A chunk in a set of its device's memory. Plain value.
struct ChunkInSet {
  const ExtentLayout::Area* area = nullptr;
  MemorySets* sets = nullptr;
  Place set;
  csd::ChunkInMemory chunk;
  // Where FP32 weights come from, if not from the set.
  std::optional<Place> weights_back;

  Device* device() const { return sets->device(); }
};

// Reads chunks inside their devices: a check brings nothing to the host, and weights come up
// encoded. Thread-safe. Completions run on the executor, without locks held.
class DeviceReads {
 public:
  // Also passes on the seconds that the device or the host spent encoding.
  using EncodedDone = std::function<void(absl::StatusOr<std::vector<Bytes>>, double seconds)>;

  // `encode` tells whether devices that have codecs encode weights; otherwise they come up in FP32.
  // All arguments must outlive the reads.
  DeviceReads(const ChunkCompute* compute, SlotFiles* files, InFlight* in_flight, DeviceDisk* disk,
              bool encode)
      : compute_(compute), files_(files), in_flight_(in_flight), disk_(disk), encode_(encode) {}

  // Returns how much of a set is after the chunk's area: room for its gradient and, later, for its
  // encoded weights.
  static uint64_t RoomAfter(const ExtentLayout::Area& area);

  // Checks a whole chunk in a slot. DataLoss names file and offset.
  void Check(uint32_t slot, uint32_t index, MemorySets* sets, Tier::CheckDone done);
  // Returns whether Fetch can carry out the operation in the device of these sets.
  bool CanFetch(const ChunkOp& op, const MemorySets& sets) const;
  // Carries out an operation that encodes weights, as Tier::Run does. REQUIRES CanFetch.
  void Fetch(ChunkOp* op, MemorySets* sets, Tier::RunDone done);
  // Encodes the weights of a chunk that an update left in its set, and brings them up.
  void Encode(const ChunkInSet& in, Version version, std::vector<UpdateRequest::Encode> encode,
              EncodedDone done);
  // Returns the place of a chunk in a slot. NotFound.
  absl::StatusOr<Place> PlaceOf(uint32_t slot, uint32_t index) const;
  // Reads a chunk whose device calls it damaged once more on the host, whose error names file and
  // offset; passes on `status` if the host finds no damage.
  void NameDamage(uint32_t slot, uint32_t index, const absl::Status& status,
                  std::function<void(absl::Status)> done);
  // Runs a kernel over the set and passes its answer on, in that lane.
  void Run(const ChunkInSet& in, const csd::Kernel& kernel, Lane lane, Device::KernelDone done);

 private:
  struct Encoding;

  bool Encodes(const Device& device) const { return encode_ && device.info().has_codecs; }
  void EncodeNext(const std::shared_ptr<Encoding>& encoding);
  void BringUp(const std::shared_ptr<Encoding>& encoding,
               const absl::StatusOr<std::string>& answer);
  // Brings the weights up in FP32, and encodes them on the host.
  void EncodeOnHost(const std::shared_ptr<Encoding>& encoding);

  const ChunkCompute* const compute_;
  SlotFiles* const files_;
  InFlight* const in_flight_;
  DeviceDisk* const disk_;
  const bool encode_;
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_NEAR_DEVICE_READS_H_
