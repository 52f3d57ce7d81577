#ifndef EPS_STORAGE_TESTING_SIMULATED_INODE_H_
#define EPS_STORAGE_TESTING_SIMULATED_INODE_H_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace eps {

// SplitMix64: the same numbers from the same state everywhere.
uint64_t NextDraw(uint64_t* state);

// The content of a file of a simulated disk, sector by sector: what readers see, and what a power
// cut leaves. Thread-compatible.
struct SimulatedInode {
  static constexpr uint64_t kSector = 512;
  using Sector = std::array<uint8_t, kSector>;

  // A sector after a write that is not synced.
  struct Image {
    uint64_t completion;  // the number of the write that completed with it
    Sector bytes;
  };

  // Applies the first `bytes` of the write with the number `completion`.
  void Apply(uint64_t offset, const std::vector<uint8_t>& data, uint64_t bytes,
             uint64_t completion);
  // Makes the writes that completed up to `limit` durable, or loses them for good.
  void Sync(uint64_t limit, bool failed);
  // Draws what a power cut leaves of each unsynced sector. `mode` 0 leaves nothing, 1 everything, 2
  // any image or none, 3 also torn ones.
  void Cut(uint64_t mode, uint64_t* draws);
  void SetDurable(uint64_t sector, const Sector& bytes);

  uint64_t number = 0;  // unique on the disk
  std::vector<uint8_t> now;
  std::vector<uint8_t> durable;
  std::map<uint64_t, std::vector<Image>> unsynced;  // by sector, oldest first
};

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_SIMULATED_INODE_H_
