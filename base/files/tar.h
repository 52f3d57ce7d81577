#ifndef EPS_BASE_FILES_TAR_H_
#define EPS_BASE_FILES_TAR_H_

// Archives of plain files in the pax interchange format (POSIX.1-2001, XCU pax; POSIX.1-2017
// keeps it): a ustar header of 512 bytes in front of each file, which is filled up to 512 bytes; an
// extended header "size=N" before one of 8 GiB or more, which ustar's 11 octal digits cannot say;
// 1,024 zeros at the end. The writer has no folders, links or other members, and the reader refuses
// them.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// The header that precedes the bytes of a file. `mtime` in seconds since 1970. REQUIRES a name of
// at most 100 bytes.
std::string TarHeader(const std::string& name, uint64_t size, uint64_t mtime);
// The padding after the bytes of a file.
std::string TarPadding(uint64_t size);
// The bytes after the last file.
std::string TarEnd();

// The header of one file in an archive.
struct TarMember {
  std::string name;
  uint64_t size = 0;
};

// Reads an archive from its first to its last byte, also from a pipe, and checks all of it. Errors
// are DataLoss with `source`, the offset, and what was expected there; IoError if the system cannot
// read. Thread-compatible; calls block.
class TarReader {
 public:
  // `fd` is borrowed; `source` is its name in errors.
  TarReader(int fd, std::string source) : fd_(fd), source_(std::move(source)) {}

  // Returns the next file, or nullopt after the last one, if only zeros follow. DataLoss for a name
  // that is absolute or has a part "..", and for a member that is no plain file. REQUIRES that the
  // preceding file was read in full.
  absl::StatusOr<std::optional<TarMember>> Next();
  // Returns the next bytes of the current file, at most 1 MiB; empty at its end. Valid until the
  // next call.
  absl::StatusOr<absl::string_view> Read();

  uint64_t offset() const { return offset_; }  // of what was read so far
  absl::Status Damaged(absl::string_view what) const;

 private:
  // Fills buffer_ with that many bytes. `what` names them in the error if the archive ends too
  // early.
  absl::Status Take(uint64_t bytes, absl::string_view what);
  // Reads as many bytes as are available, up to `most`; none at the end.
  absl::StatusOr<uint64_t> TakeSome(uint64_t most);
  absl::Status ExpectZeros(absl::string_view what) const;
  absl::Status ReadToEnd();
  // Parses the size of the next file from an extended header of that many bytes.
  absl::StatusOr<uint64_t> ReadSize(uint64_t bytes);

  const int fd_;
  const std::string source_;
  uint64_t offset_ = 0;
  uint64_t left_ = 0;     // of the current file
  uint64_t padding_ = 0;  // after it
  std::string name_;      // of it
  std::string buffer_;
};

}  // namespace eps

#endif  // EPS_BASE_FILES_TAR_H_
