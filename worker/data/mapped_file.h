#ifndef EPS_WORKER_DATA_MAPPED_FILE_H_
#define EPS_WORKER_DATA_MAPPED_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// A whole data file, mapped read-only. Empty files have no mapping. Immutable.
class MappedFile {
 public:
  // `key` is the configuration key that names the file, for error texts. NotFound,
  // PermissionDenied, or InvalidArgument for something else than a regular file.
  static absl::StatusOr<MappedFile> Open(const std::string& path, const std::string& key);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  absl::string_view bytes() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  MappedFile() = default;
  absl::Status Map(int fd, const std::string& path, const std::string& key);

  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_DATA_MAPPED_FILE_H_
