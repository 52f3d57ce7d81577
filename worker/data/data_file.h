#ifndef EPS_WORKER_DATA_DATA_FILE_H_
#define EPS_WORKER_DATA_DATA_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/data_header.h"
#include "worker/data/mapped_file.h"

namespace eps {

// An .epsd file (docs/formats/data.md), mapped read-only. Immutable; thread-safe.
class DataFile {
 public:
  // Checks the header and all sizes; also the digests if the columns have at most kDigestedBytes
  // (otherwise CheckDigests does). `key` is the configuration key that names the file. Errors as
  // MappedFile::Open, ParseDataHeader and CheckDigests.
  static absl::StatusOr<DataFile> Open(const std::string& path, const std::string& key);
  static constexpr uint64_t kDigestedBytes = uint64_t{1} << 30;

  const DataHeader& header() const { return header_; }
  // The file and its key, for errors.
  const std::string& name() const { return name_; }
  // Returns the bytes of a column of this file. They live as long as this object.
  absl::string_view bytes(const DataColumn& column) const {
    return file_.bytes().substr(column.offset, column.bytes);
  }

  // Reads all columns and compares their SHA-256 with the header. Exit code 65 with the column, its
  // place and both digests.
  absl::Status CheckDigests() const;

 private:
  DataFile(std::string name, MappedFile file, DataHeader header)
      : name_(std::move(name)), file_(std::move(file)), header_(std::move(header)) {}

  std::string name_;
  MappedFile file_;
  DataHeader header_;
};

// Returns whether a file's name says that it is an .epsd file.
bool IsDataFileName(absl::string_view path);

}  // namespace eps

#endif  // EPS_WORKER_DATA_DATA_FILE_H_
