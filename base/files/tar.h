#ifndef EPS_BASE_FILES_TAR_H_
#define EPS_BASE_FILES_TAR_H_

// Archives of plain files in the pax interchange format (POSIX.1-2001, XCU pax; POSIX.1-2017
// keeps it): a ustar header of 512 bytes in front of each file, which is filled up to 512 bytes; an
// extended header "size=N" before one of 8 GiB or more, which ustar's 11 octal digits cannot say;
// 1,024 zeros at the end. Folders, links and all else that the format has are not written, and
// refused when read.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// What stands before the bytes of a file. `mtime` in seconds since 1970. REQUIRES a name of at most
// 100 bytes.
std::string TarHeader(const std::string& name, uint64_t size, uint64_t mtime);
// What stands behind them.
std::string TarPadding(uint64_t size);
// What stands behind the last file.
std::string TarEnd();

struct TarMember {
  std::string name;
  uint64_t size = 0;
};

// Reads an archive from its first byte to the last one, also from a pipe, and believes nothing.
// Errors are DataLoss with `source`, the offset, and what was expected there; IoError if the system
// cannot read. Thread-compatible; calls block.
class TarReader {
 public:
  // `fd` is borrowed; `source` is its name in errors.
  TarReader(int fd, std::string source) : fd_(fd), source_(std::move(source)) {}

  // The next file; nullopt behind the last one, and then nothing but zeros followed. DataLoss for a
  // name that is absolute or has a part "..", and for a member that is no plain file. REQUIRES that
  // the file before was read in full.
  absl::StatusOr<std::optional<TarMember>> Next();
  // The next bytes of the file at hand, at most 1 MiB; empty at its end. Valid until the next call.
  absl::StatusOr<absl::string_view> Read();

  uint64_t offset() const { return offset_; }  // of what was read so far
  absl::Status Damaged(absl::string_view what) const;

 private:
  // Fills buffer_ with that many bytes. `what` they are of, for the error where they end too early.
  absl::Status Take(uint64_t bytes, absl::string_view what);
  // As many as there are, up to `most`; none at the end.
  absl::StatusOr<uint64_t> TakeSome(uint64_t most);
  absl::Status ExpectZeros(absl::string_view what) const;
  absl::Status ReadToEnd();
  // From the extended header of that many bytes: the size of the next file.
  absl::StatusOr<uint64_t> ReadSize(uint64_t bytes);

  const int fd_;
  const std::string source_;
  uint64_t offset_ = 0;
  uint64_t left_ = 0;     // of the file at hand
  uint64_t padding_ = 0;  // behind it
  std::string name_;      // of it
  std::string buffer_;
};

}  // namespace eps

#endif  // EPS_BASE_FILES_TAR_H_
