#ifndef EPS_BASE_FILES_TAR_H_
#define EPS_BASE_FILES_TAR_H_

// Archives of plain files in the pax interchange format (POSIX.1-2017, XCU pax), written and read
// by libarchive. An archive has no folders, links or other members, and the reader refuses them.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Writes an archive from its first to its last byte. Thread-compatible; calls block in the sink.
class TarWriter {
 public:
  // Receives the bytes of the archive, in order. Its errors end the archive.
  using Sink = std::function<absl::Status(absl::string_view)>;

  explicit TarWriter(Sink sink);
  ~TarWriter();
  TarWriter(const TarWriter&) = delete;
  TarWriter& operator=(const TarWriter&) = delete;

  // Begins the next file. Write `size` bytes before the next Add or Finish. `mtime` in seconds
  // since 1970. Returns the error of the sink.
  absl::Status Add(const std::string& name, uint64_t size, uint64_t mtime);
  // Appends to the current file. REQUIRES that the file does not become longer than its size.
  absl::Status Write(absl::string_view content);
  // Ends the archive.
  absl::Status Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The header of one file in an archive.
struct TarMember {
  std::string name;
  uint64_t size = 0;
};

// Reads an archive from its first to its last byte, also from a pipe. It checks the headers; check
// the content of the files, and that none is missing, against a list of your own. Errors are
// DataLoss with `source`, the offset, and what is wrong; IoError if the system cannot read.
// Thread-compatible; calls block.
class TarReader {
 public:
  // `fd` is borrowed; `source` is its name in errors.
  TarReader(int fd, std::string source);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  // Returns the next file, or nullopt after the last one. Skips what was not read of the preceding
  // file. DataLoss for a name that is absolute or has a part "..", and for a member that is no
  // plain file.
  absl::StatusOr<std::optional<TarMember>> Next();
  // Returns the next bytes of the current file, at most 1 MiB; empty at its end. Valid until the
  // next call.
  absl::StatusOr<absl::string_view> Read();

  // The error for an archive with a defect at the current place.
  absl::Status Damaged(absl::string_view what) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace eps

#endif  // EPS_BASE_FILES_TAR_H_
