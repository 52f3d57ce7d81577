#include "storage/records/sealed_record.h"

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"

namespace eps {
namespace {

constexpr size_t kSealBytes = 8;  // version before the fields, CRC32C after them

}  // namespace

void RecordWriter::F64(double value) { U64(absl::bit_cast<uint64_t>(value)); }

void RecordWriter::Integer(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
}

double RecordReader::F64() { return absl::bit_cast<double>(U64()); }

absl::string_view RecordReader::Text(uint64_t bytes) {
  if (bytes > rest_.size()) {
    missing_ = true;
    return {};
  }
  const absl::string_view text = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return text;
}

uint64_t RecordReader::Integer(uint64_t bytes) {
  const absl::string_view text = Text(bytes);
  uint64_t value = 0;
  for (size_t i = text.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(text[i]);
  return value;
}

absl::Status DamagedRecord(absl::string_view key, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("catalogue record ", key, ": ", what));
}

std::string SealRecord(absl::string_view key, absl::string_view fields, uint32_t version) {
  RecordWriter writer;
  writer.U32(version);
  writer.Text(fields);
  std::string record = std::move(writer).Take();
  RecordWriter crc;
  crc.U32(Crc32c(record, Crc32c(key)));
  return record + std::move(crc).Take();
}

absl::StatusOr<absl::string_view> UnsealRecord(absl::string_view key, absl::string_view record,
                                               uint32_t newest) {
  if (record.size() < kSealBytes) {
    return DamagedRecord(
        key, absl::StrCat(record.size(), " bytes where at least ", kSealBytes, " are expected"));
  }
  const absl::string_view sealed = record.substr(0, record.size() - 4);
  const uint32_t expected = RecordReader(record.substr(sealed.size())).U32();
  const uint32_t found = Crc32c(sealed, Crc32c(key));
  if (found != expected) {
    return DamagedRecord(key,
                         absl::StrFormat("CRC32C %08x where %08x is expected", found, expected));
  }
  const uint32_t version = RecordReader(sealed).U32();
  if (version == 0) return DamagedRecord(key, "version 0");
  if (version > newest) {
    return absl::FailedPreconditionError(
        absl::StrCat("catalogue record ", key, ": version ", version,
                     " of a later release; this one reads versions up to ", newest));
  }
  return sealed.substr(4);
}

}  // namespace eps
