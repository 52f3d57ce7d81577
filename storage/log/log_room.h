#ifndef EPS_STORAGE_LOG_LOG_ROOM_H_
#define EPS_STORAGE_LOG_LOG_ROOM_H_

#include <algorithm>
#include <cstdint>

#include "storage/disk/block_bytes.h"
#include "storage/log/log_format.h"

namespace eps {

// The capacity that a contribution log needs.
struct LogRoom {
  uint64_t steps = 0;        // the most between two cuts; 0 for no log
  uint64_t step_bytes = 0;   // of one step's entries, each in a batch of its own
  uint64_t entry_bytes = 0;  // of the largest entry: text, payload and residual

  // Adds room for that many entries in every step, of at most `bytes` each.
  void AddEntries(uint64_t count, uint64_t bytes) {
    const uint64_t batch = log_format::batch::kHeadBytes + log_format::entry::kHeadBytes + bytes;
    step_bytes += count * RoundUpTo(batch, log_format::kBlock);
    entry_bytes = std::max(entry_bytes, bytes);
  }
};

}  // namespace eps

#endif  // EPS_STORAGE_LOG_LOG_ROOM_H_
