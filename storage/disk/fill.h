#ifndef EPS_STORAGE_DISK_FILL_H_
#define EPS_STORAGE_DISK_FILL_H_

// Fills new files with zeros, as fast as the disk allows, and reports how far it is.

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "storage/disk/disk.h"

namespace eps {

// Counts the bytes of new files since the start of the process. Thread-safe.
class FillMeter {
 public:
  // Adds a file of `bytes` that is about to be filled.
  void Begin(uint64_t bytes) { wanted_.fetch_add(bytes, std::memory_order_relaxed); }
  void Add(uint64_t bytes) { filled_.fetch_add(bytes, std::memory_order_relaxed); }

  uint64_t wanted_bytes() const { return wanted_.load(std::memory_order_relaxed); }
  uint64_t filled_bytes() const { return filled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> wanted_{0};
  std::atomic<uint64_t> filled_{0};
};

// Writes zeros to every block of the file, up to `depth` writes at a time, and logs its progress
// every few seconds. Blocks until no write is in flight. Returns the first error, after which it
// begins no write. Counts in `meter_or_null`. Does not sync.
absl::Status FillWithZeros(AsyncFile* file, uint32_t depth, FillMeter* meter_or_null);

}  // namespace eps

#endif  // EPS_STORAGE_DISK_FILL_H_
