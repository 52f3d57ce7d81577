#ifndef EPS_STORAGE_DISK_BLOCK_BYTES_H_
#define EPS_STORAGE_DISK_BLOCK_BYTES_H_

// Reads and writes little-endian numbers at any address.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"
#include "base/checksum.h"

namespace eps {

template <class T>
void StoreAt(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}
template <class T>
T LoadFrom(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

inline uint32_t CrcOf(const uint8_t* data, size_t size) {
  return Crc32c(absl::string_view(reinterpret_cast<const char*>(data), size));
}

inline uint64_t RoundUpTo(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace eps

#endif  // EPS_STORAGE_DISK_BLOCK_BYTES_H_
