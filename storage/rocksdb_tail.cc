#include "storage/rocksdb_tail.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "storage/block_bytes.h"

namespace eps {
namespace {

// RocksDB's log format: blocks, in which records lie one behind the other, none across their end.
constexpr size_t kBlock = 32768;
constexpr size_t kHead = 7;  // masked CRC32C of type and payload; length of payload; type
constexpr uint8_t kMaxType =
    4;  // other heads are those of logs that are used again: ours never are

struct Record {
  explicit Record(absl::string_view bytes)
      : crc(LoadFrom<uint32_t>(reinterpret_cast<const uint8_t*>(bytes.data()))),
        length(LoadFrom<uint16_t>(reinterpret_cast<const uint8_t*>(bytes.data()) + 4)),
        type(static_cast<uint8_t>(bytes[6])) {}

  uint32_t crc;
  size_t length;
  uint8_t type;
};

// Whether the record would be whole with that length; `rest` is the file from its head on.
bool IsWhole(const Record& record, absl::string_view rest, size_t length) {
  if (kHead + length > rest.size()) return false;
  const uint32_t crc = Crc32c(rest.substr(kHead - 1, 1 + length));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u == record.crc;
}

}  // namespace

absl::Status CheckRocksDbTail(const std::string& path, absl::string_view bytes) {
  size_t at = 0;
  while (at + kHead <= bytes.size()) {
    const size_t left = kBlock - at % kBlock;
    if (left < kHead) {
      at += left;
      continue;
    }
    const absl::string_view rest = bytes.substr(at, left);
    const Record record(rest);
    if (record.type > kMaxType) return absl::OkStatus();  // damage that RocksDB sees
    if (kHead + record.length <= rest.size()) {
      at += kHead + record.length;
      continue;
    }
    for (size_t bit = 1; bit < kBlock * 2; bit <<= 1) {
      if (!IsWhole(record, rest, record.length ^ bit)) continue;
      return absl::DataLossError(absl::StrCat(path, " at offset ", at, ": a record of ",
                                              record.length ^ bit, " bytes expected, of ",
                                              record.length, " found"));
    }
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace eps
