#ifndef EPS_STORAGE_TESTING_RECORDED_CALLS_H_
#define EPS_STORAGE_TESTING_RECORDED_CALLS_H_

// For tests of real files: the calls of the operating system that change files below one folder, in
// the order in which they were made, and a replay of them up to a power cut at any place. A program
// that links this library records its own calls and those of RocksDB alike. While it records, no
// io_uring can be opened, so that transfers are calls too.

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace eps {

// A change of a file or folder, or a mark of the test.
struct RecordedCall {
  enum Kind { kMakeFolder, kCreate, kWrite, kResize, kSync, kRename, kRemove, kSyncFolder, kMark };
  Kind kind = kMark;
  std::string path;      // below the folder; for kRename the old one
  std::string to;        // for kRename
  uint64_t file = 0;     // of kCreate, kWrite, kResize and kSync
  bool appends = false;  // of kWrite: to a log, which the file system writes in order
  uint64_t offset = 0;   // of kWrite; for kResize the size
  std::string bytes;     // of kWrite
  uint64_t mark = 0;
};

// Begins to record the calls below `folder`, which must exist. One recording at a time; the calls
// of all threads are made one after the other.
void BeginRecording(const std::string& folder);
// Adds a mark: the test knows something at this place.
void RecordMark(uint64_t mark);
std::vector<RecordedCall> EndRecording();

// The disk after the recorded calls up to a power cut. Thread-compatible.
class CallReplay {
 public:
  void Carry(const RecordedCall& call);
  // Writes what a cut leaves into an empty folder. Of the changes of each folder and of the bytes
  // of each log that are not synced, a prefix is left; of other unsynced writes, any of them.
  void Cut(std::mt19937_64* random, const std::string& folder) const;

 private:
  // The content of a file.
  struct File {
    std::string synced;
    std::vector<RecordedCall> unsynced;
  };
  // By path; a folder is its own entry, with file 0.
  using Names = std::map<std::string, uint64_t>;

  static void Apply(const RecordedCall& call, size_t bytes, std::string* content);
  static void Change(const RecordedCall& call, Names* names);

  std::map<uint64_t, File> files_;
  Names names_;                        // synced
  std::vector<RecordedCall> pending_;  // unsynced changes of folders
};

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_RECORDED_CALLS_H_
