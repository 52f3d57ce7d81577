#ifndef EPS_STORAGE_TESTING_ROCKSDB_RECORDING_H_
#define EPS_STORAGE_TESTING_ROCKSDB_RECORDING_H_

// For tests of the catalogue's database: a file system that records what RocksDB writes and syncs,
// and a replay of the record up to a power cut at any place.
//
// A cut leaves any prefix of a file's unsynced bytes, and any prefix of the unsynced changes to the
// folder, in their order, as journaling file systems do. storage/testing/simulated_disk.h is
// harsher, but RocksDB treats a log that is torn in the middle of its tail as damaged.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"

namespace eps {

// A change of a file or folder, or an acknowledgement of the store.
struct Event {
  enum Kind { kCreate, kAppend, kTruncate, kSync, kRename, kDelete, kSyncFolder, kAcknowledge };
  Kind kind;
  std::string name;   // of the file; for kRename the old one
  std::string bytes;  // that were appended; for kRename the new name
  uint64_t number;    // of the file; for kTruncate and kAppend below
  uint64_t size = 0;
};

// The events in order. Thread-safe.
class Recorder {
 public:
  explicit Recorder(bool log_syncs_lie) : log_syncs_lie_(log_syncs_lie) {}

  void Add(Event event) EPS_EXCLUDES(mu_) {
    const bool of_log = event.name.size() > 4 && event.name.substr(event.name.size() - 4) == ".log";
    if (event.kind == Event::kSync && of_log && log_syncs_lie_) return;
    MutexLock lock(&mu_);
    events_.push_back(std::move(event));
  }
  uint64_t NewFile() EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return ++files_;
  }
  std::vector<Event> events() const EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return events_;
  }

 private:
  const bool log_syncs_lie_;
  mutable Mutex mu_;
  std::vector<Event> events_ EPS_GUARDED_BY(mu_);
  uint64_t files_ EPS_GUARDED_BY(mu_) = 0;
};

// Records writes and syncs of a file.
class RecordedFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  RecordedFile(std::unique_ptr<rocksdb::FSWritableFile> file, Recorder* recorder, std::string name,
               uint64_t number)
      : FSWritableFileOwnerWrapper(std::move(file)),
        recorder_(recorder),
        name_(std::move(name)),
        number_(number) {}

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* dbg) override {
    recorder_->Add({Event::kAppend, name_, data.ToString(), number_});
    return FSWritableFileOwnerWrapper::Append(data, options, dbg);
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           const rocksdb::DataVerificationInfo&,
                           rocksdb::IODebugContext* dbg) override {
    return Append(data, options, dbg);
  }
  rocksdb::IOStatus Truncate(uint64_t size, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override {
    recorder_->Add({Event::kTruncate, name_, "", number_, size});
    return FSWritableFileOwnerWrapper::Truncate(size, options, dbg);
  }
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override {
    rocksdb::IOStatus status = FSWritableFileOwnerWrapper::Sync(options, dbg);
    recorder_->Add({Event::kSync, name_, "", number_});
    return status;
  }
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* dbg) override {
    return Sync(options, dbg);
  }

 private:
  Recorder* const recorder_;
  const std::string name_;
  const uint64_t number_;
};

// Records syncs of a folder.
class RecordedFolder final : public rocksdb::FSDirectoryWrapper {
 public:
  RecordedFolder(std::unique_ptr<rocksdb::FSDirectory> folder, Recorder* recorder)
      : FSDirectoryWrapper(std::move(folder)), recorder_(recorder) {}

  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* dbg) override {
    rocksdb::IOStatus status = FSDirectoryWrapper::Fsync(options, dbg);
    recorder_->Add({Event::kSyncFolder, "", "", 0});
    return status;
  }
  rocksdb::IOStatus FsyncWithDirOptions(const rocksdb::IOOptions& options,
                                        rocksdb::IODebugContext* dbg,
                                        const rocksdb::DirFsyncOptions&) override {
    return Fsync(options, dbg);
  }

 private:
  Recorder* const recorder_;
};

// Passes all calls on, and records those that change files.
class RecordingFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  RecordingFileSystem(const std::shared_ptr<rocksdb::FileSystem>& target, Recorder* recorder)
      : FileSystemWrapper(target), recorder_(recorder) {}

  const char* Name() const override { return "RecordingFileSystem"; }
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* dbg) override {
    const uint64_t number = recorder_->NewFile();
    recorder_->Add({Event::kCreate, name, "", number});
    rocksdb::IOStatus status = FileSystemWrapper::NewWritableFile(name, options, file, dbg);
    if (status.ok()) {
      *file = std::make_unique<RecordedFile>(std::move(*file), recorder_, name, number);
    }
    return status;
  }
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* folder,
                                 rocksdb::IODebugContext* dbg) override {
    rocksdb::IOStatus status = FileSystemWrapper::NewDirectory(name, options, folder, dbg);
    if (status.ok()) *folder = std::make_unique<RecordedFolder>(std::move(*folder), recorder_);
    return status;
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override {
    recorder_->Add({Event::kRename, from, to, 0});
    return FileSystemWrapper::RenameFile(from, to, options, dbg);
  }
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override {
    recorder_->Add({Event::kDelete, name, "", 0});
    return FileSystemWrapper::DeleteFile(name, options, dbg);
  }

 private:
  Recorder* const recorder_;
};

// The disk after the events up to a cut.
class Replay {
 public:
  void Carry(const Event& event) {
    switch (event.kind) {
      case Event::kAppend:
        files_[event.number].bytes += event.bytes;
        return;
      case Event::kTruncate: {
        File& file = files_[event.number];
        file.bytes.resize(event.size);
        file.synced = std::min(file.synced, file.bytes.size());
        return;
      }
      case Event::kSync:
        files_[event.number].synced = files_[event.number].bytes.size();
        return;
      case Event::kCreate:
        files_[event.number];
        pending_.push_back(event);
        return;
      case Event::kRename:
      case Event::kDelete:
        pending_.push_back(event);
        return;
      case Event::kSyncFolder:
        for (const Event& change : pending_) ChangeFolder(change, &folder_);
        pending_.clear();
        return;
      case Event::kAcknowledge:
        ++acknowledged_;
        return;
    }
  }

  // Writes what a cut leaves into an empty environment.
  void Cut(const std::string& folder_path, std::mt19937_64* random, rocksdb::Env* env) const {
    const uint64_t mode = (*random)() % 3;  // keeps none, all or some of what is not synced
    const auto draw = [&](size_t most) -> size_t {
      return mode == 0 ? 0 : mode == 1 ? most : (*random)() % (most + 1);
    };
    std::map<std::string, uint64_t> folder = folder_;
    const size_t changes = draw(pending_.size());
    for (size_t i = 0; i < changes; ++i) ChangeFolder(pending_[i], &folder);
    EPS_CHECK(env->CreateDirIfMissing(folder_path).ok());
    for (const auto& [name, number] : folder) {
      const File& file = files_.at(number);
      const size_t size = file.synced + draw(file.bytes.size() - file.synced);
      const rocksdb::Slice bytes(file.bytes.data(), size);
      EPS_CHECK(rocksdb::WriteStringToFile(env, bytes, name).ok());
    }
  }

  size_t acknowledged() const { return acknowledged_; }

 private:
  // A file as a power cut may find it.
  struct File {
    std::string bytes;
    size_t synced = 0;
  };

  static void ChangeFolder(const Event& change, std::map<std::string, uint64_t>* folder) {
    if (change.kind == Event::kCreate) {
      (*folder)[change.name] = change.number;
    } else {
      const auto it = folder->find(change.name);
      if (it == folder->end()) return;
      const uint64_t number = it->second;
      folder->erase(it);
      if (change.kind == Event::kRename) (*folder)[change.bytes] = number;
    }
  }

  std::map<uint64_t, File> files_;
  std::map<std::string, uint64_t> folder_;
  std::vector<Event> pending_;  // unsynced changes of the folder
  size_t acknowledged_ = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_ROCKSDB_RECORDING_H_
