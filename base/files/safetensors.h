#ifndef EPS_BASE_FILES_SAFETENSORS_H_
#define EPS_BASE_FILES_SAFETENSORS_H_

// Files of named tensors in the safetensors format: 8 bytes of header length (little-endian), a
// JSON header, the tensors' bytes. Hugging Face's libraries load the files of the writer; the
// reader checks every claim of a file before it relies on it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps {

// Bounds of what the reader accepts. The first one is the format's own.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxSafetensorsTensors = size_t{1} << 20;
inline constexpr size_t kMaxSafetensorsRank = 8;
inline constexpr size_t kMaxSafetensorsMetadata = size_t{1} << 16;

// Quotes and truncates a text from a file for an error message.
std::string ShowUntrusted(absl::string_view text);

// One tensor in the header of a file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype = "F32";  // as the file spells it
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // of the first byte, from the start of the file
  uint64_t bytes = 0;

  uint64_t elements() const;  // product of the shape; 1 for a scalar
};

// A file mapped into memory, read only. Immutable, thread-safe. Do not shorten the file while it is
// open: reading the missing part ends the process (SIGBUS).
class SafetensorsReader {
 public:
  // NotFound if there is no such file. DataLoss, with the file and the tensor, for a header that is
  // cut off, too long, not JSON of the format, or names a key twice; for an unknown dtype; for
  // bytes that are not dtype x shape; for tensors that overlap, leave a hole or leave the file.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  // In the order of their bytes in the file.
  absl::Span<const SafetensorsEntry> entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  // NotFound names the tensor and the file.
  absl::StatusOr<const SafetensorsEntry*> Find(absl::string_view name) const;

  // `count` elements of `entry` from `first` on, as float (exact: F32, BF16 and F16 values are all
  // floats). OutOfRange beyond the tensor; Unimplemented names a dtype that is none of these.
  absl::Status Read(const SafetensorsEntry& entry, uint64_t first, size_t count, float* out) const;

 private:
  SafetensorsReader() = default;

  std::string path_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> index_by_name_;
  std::map<std::string, std::string> metadata_;
};

// Writes tensors piece by piece in any order, so that no tensor is ever held whole.
// Thread-compatible.
class SafetensorsWriter {
 public:
  // Creates (or empties) `path` and writes the header: `__metadata__` {"format": "pt"}, which
  // Hugging Face's loaders ask for, and the tensors in the order given. Of the entries only name,
  // dtype and shape are read. InvalidArgument for a name given twice or reserved, a dtype other
  // than F32, BF16 and F16, or a size that overflows; IoError (base/exit_code.h) if the file
  // cannot be written, ResourceExhausted if the disk is full.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<SafetensorsEntry> entries);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Elements of entries[entry] from `first` on, rounded to the nearest value of its dtype, ties to
  // even. OutOfRange beyond the tensor; InvalidArgument names a finite value that the dtype could
  // only hold as infinity.
  absl::Status Write(size_t entry, uint64_t first, absl::Span<const float> values);
  // Ends the file and syncs it. FailedPrecondition names the first tensor that was not written in
  // full. Call nothing afterwards.
  absl::Status Finish();

  uint64_t file_bytes() const { return file_bytes_; }

 private:
  SafetensorsWriter() = default;

  std::string path_;
  int fd_ = -1;
  uint64_t file_bytes_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::vector<uint64_t> written_;  // elements, by entry
};

}  // namespace eps

#endif  // EPS_BASE_FILES_SAFETENSORS_H_
