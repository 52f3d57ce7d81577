#ifndef EPS_WORKER_DATA_DATA_HEADER_H_
#define EPS_WORKER_DATA_DATA_HEADER_H_

// The header of an .epsd file (docs/formats/data.md).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

inline constexpr absl::string_view kDataMagic = "EPSDATA1";
inline constexpr uint64_t kDataHeaderBytes = 4096;

enum class DataKind { kStream, kRows };

// The types of a column's elements. A bit column has whole bytes for each row.
enum class DataType { kU8, kU16, kU32, kU64, kI32, kF32, kBit };
// Returns the bytes of an element. REQUIRES another type than kBit.
uint64_t ElementBytes(DataType type);
// Returns the type's name in the file: "u16".
absl::string_view NameOf(DataType type);

// One array of the file.
struct DataColumn {
  std::string name;
  DataType type = DataType::kU8;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  std::string sha256;  // in hexadecimal digits
};

// The shape of an image. A byte becomes (byte / 255 - mean) / std of its channel.
struct DataImage {
  uint32_t channels = 0;
  uint32_t height = 0;
  uint32_t width = 0;
  std::vector<double> mean, std;  // of each channel

  uint64_t bytes() const { return uint64_t{channels} * height * width; }
};

// The tokens of a tokenizer that masking needs to know.
struct DataMasking {
  uint32_t mask_token = 0;
  std::vector<uint32_t> special_tokens;  // in increasing order
};

// The fields of a header.
struct DataHeader {
  DataKind kind = DataKind::kStream;
  uint64_t samples = 0;     // documents of a stream, or rows
  uint32_t seq_len = 0;     // of rows with tokens; 0 for others
  uint64_t vocab_size = 0;  // 0 without tokens
  std::string tokenizer;    // digest of the tokenizer in hexadecimal digits, or empty
  std::vector<DataColumn> columns;
  std::optional<DataImage> image;
  std::optional<DataMasking> masking;  // not there if the tokenizer has no mask token

  // Returns null if the file does not have the column.
  const DataColumn* Find(absl::string_view name) const;
  // Returns the bytes of one row in a column of kind kRows.
  uint64_t RowBytes(const DataColumn& column) const;
};

// Reads the header of a file of `file_bytes`, of which `bytes` are the first ones, and checks all
// sizes against each other. `file` names it in errors, which have exit code 65 and say the place,
// the value expected and the value found.
absl::StatusOr<DataHeader> ParseDataHeader(absl::string_view bytes, uint64_t file_bytes,
                                           const std::string& file);

}  // namespace eps

#endif  // EPS_WORKER_DATA_DATA_HEADER_H_
