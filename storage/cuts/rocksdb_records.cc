#include "storage/cuts/rocksdb_records.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "storage/disk/block_bytes.h"

namespace eps {
namespace {

// RocksDB's log format: blocks of consecutive records, none of which crosses the end of a block.
constexpr size_t kBlock = 32768;
constexpr size_t kHead = 7;  // masked CRC32C of type and payload, length of payload, type

// Returns true if `rest`, which ends with the block or the file, begins with a complete record of
// that length.
bool IsWhole(absl::string_view rest, size_t length) {
  if (kHead + length > rest.size()) return false;
  const uint32_t crc = Crc32c(rest.substr(kHead - 1, 1 + length));
  const auto* const head = reinterpret_cast<const uint8_t*>(rest.data());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u == LoadFrom<uint32_t>(head);
}

}  // namespace

absl::Status CheckRocksDbRecords(const std::string& path, absl::string_view bytes) {
  size_t at = 0;
  while (at + kHead <= bytes.size()) {
    const size_t left = kBlock - at % kBlock;
    if (left < kHead) {
      at += left;
      continue;
    }
    const absl::string_view rest = bytes.substr(at, left);
    const size_t length = LoadFrom<uint16_t>(reinterpret_cast<const uint8_t*>(rest.data()) + 4);
    if (length == 0 && rest[kHead - 1] == 0) return absl::OkStatus();  // preallocated space
    if (IsWhole(rest, length)) {
      at += kHead + length;
      continue;
    }
    if (kHead + length <= rest.size() || rest.size() == left) {
      return absl::DataLossError(
          absl::StrCat(path, " at offset ", at, ": a record with a bad checksum"));
    }
    for (size_t bit = 1; bit <= UINT16_MAX; bit <<= 1) {
      if (!IsWhole(rest, length ^ bit)) continue;
      return absl::DataLossError(absl::StrCat(path, " at offset ", at, ": a record of ",
                                              length ^ bit, " bytes expected, of ", length,
                                              " found"));
    }
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace eps
