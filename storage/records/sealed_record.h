#ifndef EPS_STORAGE_RECORDS_SEALED_RECORD_H_
#define EPS_STORAGE_RECORDS_SEALED_RECORD_H_

// The frame of every durable record of a server, and its fields. docs/formats/catalogue.md has the
// layout.

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Appends little-endian fields.
class RecordWriter {
 public:
  void U32(uint32_t value) { Integer(value, 4); }
  void U64(uint64_t value) { Integer(value, 8); }
  void F64(double value);
  void Text(absl::string_view text) { out_.append(text.data(), text.size()); }
  std::string Take() && { return std::move(out_); }

 private:
  void Integer(uint64_t value, int bytes);
  std::string out_;
};

// Reads little-endian fields. A missing field reads as zero and makes complete() false. The bytes
// must outlive the reader.
class RecordReader {
 public:
  explicit RecordReader(absl::string_view bytes) : rest_(bytes) {}
  uint32_t U32() { return static_cast<uint32_t>(Integer(4)); }
  uint64_t U64() { return Integer(8); }
  double F64();
  absl::string_view Text(uint64_t bytes);
  // Returns true if no field was missing and no byte is left.
  bool complete() const { return !missing_ && rest_.empty(); }

 private:
  uint64_t Integer(uint64_t bytes);
  absl::string_view rest_;
  bool missing_ = false;
};

// A record has the first version whose readers know all of its fields.
inline constexpr uint32_t kFirstRecordVersion = 1;

// Returns the record of `fields` under `key`: its version, the fields, and a CRC32C of key, version
// and fields. All versions use this frame, so a damaged record is never mistaken for a later one.
std::string SealRecord(absl::string_view key, absl::string_view fields,
                       uint32_t version = kFirstRecordVersion);

// Returns the fields of a record, which must outlive them. DataLoss names the key of a damaged
// record, FailedPrecondition the key of a record that a later release wrote: `newest` is the last
// version of records of this kind.
absl::StatusOr<absl::string_view> UnsealRecord(absl::string_view key, absl::string_view record,
                                               uint32_t newest = kFirstRecordVersion);

// Returns the DataLoss of the record under `key`; `what` says what is wrong with it.
absl::Status DamagedRecord(absl::string_view key, absl::string_view what);

}  // namespace eps

#endif  // EPS_STORAGE_RECORDS_SEALED_RECORD_H_
