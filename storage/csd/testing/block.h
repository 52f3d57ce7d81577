#ifndef EPS_STORAGE_CSD_TESTING_BLOCK_H_
#define EPS_STORAGE_CSD_TESTING_BLOCK_H_

#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "storage/disk/disk.h"

namespace eps {

// A block of host memory whose bytes are equal at first, aligned for direct I/O. Plain value.
struct alignas(kDiskBlock) Block {
  explicit Block(uint8_t value = 0) { std::memset(bytes, value, sizeof(bytes)); }
  absl::Span<uint8_t> span() { return absl::MakeSpan(bytes); }
  uint8_t bytes[kDiskBlock];
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_TESTING_BLOCK_H_
