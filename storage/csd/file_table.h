#ifndef EPS_STORAGE_CSD_FILE_TABLE_H_
#define EPS_STORAGE_CSD_FILE_TABLE_H_

// The table of the files on a medium: a pure value, which is written to blocks and read from them.
//
// A copy is a u64, the size of its record, then the record (storage/records/sealed_record.h), then
// zeros. The record's fields: u64 sequence, u64 last number of a file, u64 offset of the untouched
// rest, u32 files and for each u64 offset, u64 bytes, u64 number, u32 length of the path, path; u32
// folders and for each u32 length of the path, path. All numbers are little-endian.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace eps {

// The size of one copy of the table. The medium begins with two of them.
inline constexpr uint64_t kFileTableBytes = uint64_t{64} << 10;
// Where the areas of files begin.
inline constexpr uint64_t kFirstAreaOffset = 2 * kFileTableBytes;

// Files and folders of one medium by their paths below its root, "a/b". The root is always there.
// Each file is one area of whole blocks. Thread-compatible.
class FileTable {
 public:
  // A file's area.
  struct File {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t number = 0;  // unique on the medium, also among removed files
  };

  explicit FileTable(uint64_t media_bytes) : media_bytes_(media_bytes) {}
  // Returns the newer of two copies, each kFileTableBytes long. A copy of zeros is an empty table
  // of sequence 0. DataLoss if no copy is intact, FailedPrecondition if a later release wrote one.
  static absl::StatusOr<FileTable> Read(absl::Span<const uint8_t> first,
                                        absl::Span<const uint8_t> second, uint64_t media_bytes);

  // Counts the changes. The copy of a table is its sequence modulo 2.
  uint64_t sequence() const { return sequence_; }
  // Advances the sequence, and returns the blocks of the table. ResourceExhausted if it has too
  // many files.
  absl::StatusOr<std::string> Write();

  const File* Find(const std::string& path) const;
  // Where the rest of the medium begins that no file has ever had.
  uint64_t untouched_offset() const { return untouched_offset_; }
  bool IsFolder(const std::string& path) const { return path.empty() || folders_.count(path) > 0; }
  // Returns the names in a folder, sorted.
  std::vector<std::string> NamesIn(const std::string& folder) const;
  // Creates the folder and those above it.
  void AddFolder(const std::string& path);
  // Takes the first free area that is large enough. AlreadyExists; NotFound if the folder is
  // missing; InvalidArgument for a size that is no multiple of kDiskBlock; ResourceExhausted with
  // the wanted and the free bytes.
  absl::StatusOr<File> AddFile(const std::string& path, uint64_t bytes);
  // NotFound; FailedPrecondition for a folder that is not empty.
  absl::Status Remove(const std::string& path);
  // Moves a file or a folder with all that is in it; replaces a file.
  absl::Status Rename(const std::string& from, const std::string& to);
  uint64_t FreeBytes() const;

 private:
  static absl::StatusOr<FileTable> ReadCopy(absl::Span<const uint8_t> copy, uint64_t media_bytes);

  uint64_t media_bytes_;
  uint64_t sequence_ = 0;
  uint64_t last_number_ = 0;
  uint64_t untouched_offset_ = kFirstAreaOffset;
  std::map<std::string, File> files_;
  std::set<std::string> folders_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_FILE_TABLE_H_
