// Runs the catalogue's database on a failing disk. In a sequence of several processes, each call of
// RocksDB to its file system fails once: with EIO; with ENOSPC if it takes space; an append also
// after half of its bytes. A variant fails all later calls of the process too. The database must
// report each failure by name or retry; fail all writes after a failed one; and the next process
// must find every acknowledged change, and the change in flight completely or not at all. The same
// must hold if the power fails some time after the failure.
//
// EPS_LONG=1 tests every call instead of a sample.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/testing/rocksdb_recording.h"
#include "storage/testing/watchdog.h"

namespace eps {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

constexpr char kFolder[] = "/catalogue";
constexpr int kSessions = 7;  // processes, one after the other
constexpr int kWrites = 9;    // of each

enum class Fault { kIoError, kNoSpace, kHalf };
const char* NameOf(Fault fault) {
  return fault == Fault::kIoError ? "EIO" : fault == Fault::kNoSpace ? "ENOSPC" : "half, EIO";
}

// The calls that take space, by their names in the report.
const char* const kTakeSpace[] = {
    "append", "create", "create folder", "lock",     "open a logger",
    "rename", "sync",   "sync folder",   "truncate", "close after writing"};
bool TakesSpace(const std::string& call) {
  for (const char* const each : kTakeSpace) {
    if (call == each) return true;
  }
  return false;
}

// The call that fails, and how it fails.
struct Plan {
  std::string call;  // empty for any call that takes space
  uint64_t n = 0;    // from 1; 0 for none
  Fault fault = Fault::kIoError;
  bool lasts = false;  // all later calls of the kind fail too, until the process ends

  std::string ToString() const {
    return absl::StrCat(call.empty() ? "a call that takes space" : call, " number ", n, ", ",
                        NameOf(fault), lasts ? " from then on" : "");
  }
};

// Counts calls and decides which of them fail. Thread-safe: RocksDB has threads of its own.
class Faults {
 public:
  explicit Faults(const Plan& plan) : plan_(plan) {}

  std::optional<Fault> Next(const std::string& call, const std::string& path) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    const uint64_t n = ++counts_[call];
    const uint64_t spacious = TakesSpace(call) ? ++spacious_ : 0;
    if (plan_.n == 0 || is_over_ || (plan_.call.empty() ? spacious == 0 : plan_.call != call)) {
      return std::nullopt;
    }
    const uint64_t at = plan_.call.empty() ? spacious : n;
    if (at != plan_.n && !(plan_.lasts && at > plan_.n)) return std::nullopt;
    ++failed_;
    if (where_.empty()) where_ = absl::StrCat(call, " ", KindOf(path));
    return plan_.fault;
  }
  // Begins a new process, for which the disk works again.
  void EndProcess() EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (failed_ > 0) is_over_ = true;
  }
  uint64_t failed() const EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return failed_;
  }
  std::string where() const EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return where_;
  }
  std::map<std::string, uint64_t> counts() const EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    auto counts = counts_;
    counts[""] = spacious_;
    return counts;
  }

 private:
  static std::string KindOf(const std::string& path) {
    const std::string name = path.substr(path.rfind('/') + 1);
    const size_t digits = name.find_first_of("0123456789");
    const size_t dot = name.rfind('.');
    if (digits == 0 && dot != std::string::npos) return "*" + name.substr(dot);
    return digits == std::string::npos ? name : name.substr(0, digits) + "*";
  }

  const Plan plan_;
  mutable Mutex mu_;
  std::map<std::string, uint64_t> counts_ EPS_GUARDED_BY(mu_);
  uint64_t spacious_ EPS_GUARDED_BY(mu_) = 0;
  uint64_t failed_ EPS_GUARDED_BY(mu_) = 0;
  bool is_over_ EPS_GUARDED_BY(mu_) = false;
  std::string where_ EPS_GUARDED_BY(mu_);
};

// Returns the error in the words of RocksDB's own file system.
IOStatus ErrorOf(Fault fault, const std::string& call, const std::string& path) {
  const std::string context = absl::StrCat("While ", call, ": ", path);
  if (fault != Fault::kNoSpace) return IOStatus::IOError(context, "Input/output error (injected)");
  IOStatus full = IOStatus::NoSpace(context, "No space left on device (injected)");
  full.SetRetryable(true);
  return full;
}

IOStatus FailOr(Faults* faults, const std::string& call, const std::string& path) {
  const std::optional<Fault> fault = faults->Next(call, path);
  return fault.has_value() ? ErrorOf(*fault, call, path) : IOStatus::OK();
}

#define RETURN_IF_IT_FAILS(call, path)                      \
  do {                                                      \
    IOStatus injected_status = FailOr(faults_, call, path); \
    if (!injected_status.ok()) return injected_status;      \
  } while (false)

class FaultyWritableFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultyWritableFile(std::unique_ptr<rocksdb::FSWritableFile> file, Faults* faults,
                     std::string name)
      : FSWritableFileOwnerWrapper(std::move(file)), faults_(faults), name_(std::move(name)) {}

  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  IODebugContext* dbg) override {
    const std::optional<Fault> fault = faults_->Next("append", name_);
    if (!fault.has_value()) return FSWritableFileOwnerWrapper::Append(data, options, dbg);
    if (*fault == Fault::kHalf) {
      const rocksdb::Slice half(data.data(), data.size() / 2);
      const IOStatus appended = FSWritableFileOwnerWrapper::Append(half, options, dbg);
      if (!appended.ok()) return appended;
    }
    return ErrorOf(*fault, "append", name_);
  }
  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo&, IODebugContext* dbg) override {
    return Append(data, options, dbg);
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("truncate", name_);
    return FSWritableFileOwnerWrapper::Truncate(size, options, dbg);
  }
  IOStatus Flush(const IOOptions& options, IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("flush", name_);
    return FSWritableFileOwnerWrapper::Flush(options, dbg);
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("sync", name_);
    return FSWritableFileOwnerWrapper::Sync(options, dbg);
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* dbg) override {
    return Sync(options, dbg);
  }
  IOStatus RangeSync(uint64_t offset, uint64_t size, const IOOptions& options,
                     IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("sync", name_);
    return FSWritableFileOwnerWrapper::RangeSync(offset, size, options, dbg);
  }
  IOStatus Close(const IOOptions& options, IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("close after writing", name_);
    return FSWritableFileOwnerWrapper::Close(options, dbg);
  }

 private:
  Faults* const faults_;
  const std::string name_;
};

class FaultySequentialFile final : public rocksdb::FSSequentialFileOwnerWrapper {
 public:
  FaultySequentialFile(std::unique_ptr<rocksdb::FSSequentialFile> file, Faults* faults,
                       std::string name)
      : FSSequentialFileOwnerWrapper(std::move(file)), faults_(faults), name_(std::move(name)) {}

  IOStatus Read(size_t n, const IOOptions& options, rocksdb::Slice* result, char* scratch,
                IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("read", name_);
    return FSSequentialFileOwnerWrapper::Read(n, options, result, scratch, dbg);
  }

 private:
  Faults* const faults_;
  const std::string name_;
};

class FaultyRandomAccessFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  FaultyRandomAccessFile(std::unique_ptr<rocksdb::FSRandomAccessFile> file, Faults* faults,
                         std::string name)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), faults_(faults), name_(std::move(name)) {}

  IOStatus Read(uint64_t offset, size_t n, const IOOptions& options, rocksdb::Slice* result,
                char* scratch, IODebugContext* dbg) const override {
    RETURN_IF_IT_FAILS("read", name_);
    return FSRandomAccessFileOwnerWrapper::Read(offset, n, options, result, scratch, dbg);
  }
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count, const IOOptions& options,
                     IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("read", name_);
    return FSRandomAccessFileOwnerWrapper::MultiRead(requests, count, options, dbg);
  }
  IOStatus Prefetch(uint64_t offset, size_t n, const IOOptions& options,
                    IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("prefetch", name_);
    return FSRandomAccessFileOwnerWrapper::Prefetch(offset, n, options, dbg);
  }

 private:
  Faults* const faults_;
  const std::string name_;
};

class FaultyFolder final : public rocksdb::FSDirectoryWrapper {
 public:
  FaultyFolder(std::unique_ptr<rocksdb::FSDirectory> folder, Faults* faults, std::string name)
      : FSDirectoryWrapper(std::move(folder)), faults_(faults), name_(std::move(name)) {}

  IOStatus Fsync(const IOOptions& options, IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("sync folder", name_);
    return FSDirectoryWrapper::Fsync(options, dbg);
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* dbg,
                               const rocksdb::DirFsyncOptions&) override {
    return Fsync(options, dbg);
  }

 private:
  Faults* const faults_;
  const std::string name_;
};

class FaultyFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  FaultyFileSystem(const std::shared_ptr<rocksdb::FileSystem>& target, Faults* faults)
      : FileSystemWrapper(target), faults_(faults) {}

  const char* Name() const override { return "FaultyFileSystem"; }
  IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                             std::unique_ptr<rocksdb::FSSequentialFile>* file,
                             IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("open", name);
    IOStatus status = FileSystemWrapper::NewSequentialFile(name, options, file, dbg);
    if (status.ok()) {
      *file = std::make_unique<FaultySequentialFile>(std::move(*file), faults_, name);
    }
    return status;
  }
  IOStatus NewRandomAccessFile(const std::string& name, const rocksdb::FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                               IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("open", name);
    IOStatus status = FileSystemWrapper::NewRandomAccessFile(name, options, file, dbg);
    if (status.ok()) {
      *file = std::make_unique<FaultyRandomAccessFile>(std::move(*file), faults_, name);
    }
    return status;
  }
  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("create", name);
    IOStatus status = FileSystemWrapper::NewWritableFile(name, options, file, dbg);
    if (status.ok()) {
      *file = std::make_unique<FaultyWritableFile>(std::move(*file), faults_, name);
    }
    return status;
  }
  IOStatus NewDirectory(const std::string& name, const IOOptions& options,
                        std::unique_ptr<rocksdb::FSDirectory>* folder,
                        IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("open folder", name);
    IOStatus status = FileSystemWrapper::NewDirectory(name, options, folder, dbg);
    if (status.ok()) *folder = std::make_unique<FaultyFolder>(std::move(*folder), faults_, name);
    return status;
  }
  IOStatus FileExists(const std::string& name, const IOOptions& options,
                      IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("look for", name);
    return FileSystemWrapper::FileExists(name, options, dbg);
  }
  IOStatus GetChildren(const std::string& name, const IOOptions& options,
                       std::vector<std::string>* children, IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("list", name);
    return FileSystemWrapper::GetChildren(name, options, children, dbg);
  }
  IOStatus DeleteFile(const std::string& name, const IOOptions& options,
                      IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("delete", name);
    return FileSystemWrapper::DeleteFile(name, options, dbg);
  }
  IOStatus CreateDirIfMissing(const std::string& name, const IOOptions& options,
                              IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("create folder", name);
    return FileSystemWrapper::CreateDirIfMissing(name, options, dbg);
  }
  IOStatus GetFileSize(const std::string& name, const IOOptions& options, uint64_t* size,
                       IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("ask for size", name);
    return FileSystemWrapper::GetFileSize(name, options, size, dbg);
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("rename", from);
    return FileSystemWrapper::RenameFile(from, to, options, dbg);
  }
  IOStatus LockFile(const std::string& name, const IOOptions& options, rocksdb::FileLock** lock,
                    IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("lock", name);
    return FileSystemWrapper::LockFile(name, options, lock, dbg);
  }
  IOStatus NewLogger(const std::string& name, const IOOptions& options,
                     std::shared_ptr<rocksdb::Logger>* logger, IODebugContext* dbg) override {
    RETURN_IF_IT_FAILS("open a logger", name);
    return FileSystemWrapper::NewLogger(name, options, logger, dbg);
  }

 private:
  Faults* const faults_;
};

#undef RETURN_IF_IT_FAILS

// ---- The changes.

using Contents = std::map<std::string, std::string>;

// Returns the i-th change: several keys, one of which it removes, and sometimes enough data that
// RocksDB writes a table by itself.
std::vector<KeyValueStore::Change> ChangesOf(size_t i) {
  std::vector<KeyValueStore::Change> changes;
  for (size_t k = 0; k < 3; ++k) {
    changes.push_back({absl::StrCat("small/", (i * 3 + k) % 20), std::string(100 + i, 'a' + k)});
  }
  changes.push_back({absl::StrCat("small/", (i + 7) % 20), std::nullopt});
  if (i % 3 == 1) {
    changes.push_back({absl::StrCat("large/", i % 4), std::string(250000 + i, 'A' + i % 26)});
  }
  return changes;
}

// Returns the expected contents; element i is the state after i changes.
const std::vector<Contents>& States() {
  static const auto* const states = [] {
    auto* const all = new std::vector<Contents>(1);
    for (size_t i = 0; i < kSessions * kWrites; ++i) {
      Contents next = all->back();
      for (const KeyValueStore::Change& change : ChangesOf(i)) {
        if (change.value.has_value()) {
          next[change.key] = *change.value;
        } else {
          next.erase(change.key);
        }
      }
      all->push_back(std::move(next));
    }
    return all;
  }();
  return *states;
}

absl::StatusOr<Contents> ContentsOf(const KeyValueStore& store) {
  const auto found = store.Scan("");
  if (!found.ok()) return found.status();
  return Contents(found->begin(), found->end());
}

// ---- A sequence of processes, in one of which a call fails.

class Story {
 public:
  explicit Story(const Plan& plan)
      : plan_(plan),
        faults_(plan),
        recorder_(/*log_syncs_lie=*/false),
        memory_(rocksdb::NewMemEnv(rocksdb::Env::Default())),
        env_(rocksdb::NewCompositeEnv(std::make_shared<FaultyFileSystem>(
            std::make_shared<RecordingFileSystem>(memory_->GetFileSystem(), &recorder_),
            &faults_))) {}

  void Tell() {
    for (int i = 0; i < kSessions; ++i) {
      if (!Process()) ++ended_early_;
      faults_.EndProcess();
      if (failed_at_ == 0 && faults_.failed() > 0) failed_at_ = recorder_.events().size();
    }
    // A process whose calls all succeed.
    Process();
    EXPECT_LE(ended_early_, 1) << plan_.ToString();
  }

  // Cuts the power `times` times, anywhere after the process that precedes the failed one.
  void CutPower(int times) {
    if (failed_at_ == 0) return;
    const std::vector<Event> events = recorder_.events();
    std::mt19937_64 random(plan_.n);
    std::vector<bool> cuts(events.size());
    const size_t begin = failed_at_ - std::min<size_t>(failed_at_, 150);
    const size_t end = std::min(events.size(), failed_at_ + 100);
    for (int i = 0; i < times; ++i) cuts[begin + random() % (end - begin)] = true;
    Replay replay;
    for (size_t at = 0; at < end; ++at) {
      replay.Carry(events[at]);
      if (cuts[at]) CutAt(replay, &random);
    }
  }

  // Returns the database's first reaction to the failure.
  const std::string& met() const { return met_; }
  const Faults& faults() const { return faults_; }

 private:
  // Opens, reads, writes, reads and closes. Returns false if it ended with an error.
  bool Process() {
    auto opened = OpenRocksDbIn(env_.get(), kFolder);
    if (!opened.ok()) return Ended("refuses to open", opened.status());
    KeyValueStore& store = **opened;
    const absl::StatusOr<Contents> before = ContentsOf(store);
    if (!before.ok()) return Ended("refuses to read", before.status());
    if (!Settle(*before, "after opening")) return false;
    for (int i = 0; i < kWrites && acknowledged_ + 1 < States().size(); ++i) {
      const absl::Status written = store.Write(ChangesOf(acknowledged_));
      if (!written.ok()) {
        under_way_ = true;
        EndInWrite(&store);
        return Ended("refuses to write", written);
      }
      ++acknowledged_;
      recorder_.Add({Event::kAcknowledge, "", "", 0});
    }
    const absl::StatusOr<Contents> after = ContentsOf(store);
    if (!after.ok()) return Ended("refuses to read", after.status());
    return Settle(*after, "after writing");
  }

  void EndInWrite(KeyValueStore* store) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_FALSE(store->Write({{"later", "value"}}).ok())
          << plan_.ToString() << ": a write succeeds after a failed one";
    }
    const absl::StatusOr<Contents> left = ContentsOf(*store);
    if (!left.ok()) return;
    EXPECT_TRUE(*left == States()[acknowledged_] || *left == States()[acknowledged_ + 1])
        << plan_.ToString() << ": other contents after a failed write";
  }

  bool Ended(const std::string& how, const absl::Status& status) {
    if (met_.empty()) met_ = how;
    EXPECT_GT(faults_.failed(), 0u) << plan_.ToString() << ": nothing failed, and yet " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), kFolder)) << status;
    // RocksDB rewords two errors: it calls a table damaged if it cannot read its size, and says
    // that a file refuses direct I/O if it can be opened at the second attempt.
    if (absl::StrContains(status.message(), "Direct I/O is not supported")) return false;
    EXPECT_TRUE(absl::IsInternal(status) || absl::StrContains(status.message(), "Can't access"))
        << plan_.ToString() << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "(injected)"))
        << plan_.ToString() << " is reported as " << status;
    return false;
  }

  // Records a change whose outcome was unknown.
  bool Settle(const Contents& found, const char* when) {
    if (under_way_ && found == States()[acknowledged_ + 1]) {
      ++acknowledged_;
      recorder_.Add({Event::kAcknowledge, "", "", 0});
    }
    under_way_ = false;
    const bool same = found == States()[acknowledged_];
    EXPECT_TRUE(same) << plan_.ToString() << " (" << faults_.where() << "): " << when << ", with "
                      << acknowledged_ << " acknowledged changes: other contents found";
    return same;
  }

  void CutAt(const Replay& replay, std::mt19937_64* random) const {
    const std::unique_ptr<rocksdb::Env> env(rocksdb::NewMemEnv(rocksdb::Env::Default()));
    replay.Cut(kFolder, random, env.get());
    const auto store = OpenRocksDbIn(env.get(), kFolder);
    ASSERT_TRUE(store.ok()) << plan_.ToString() << ", then a power cut: " << store.status();
    const absl::StatusOr<Contents> found = ContentsOf(**store);
    ASSERT_TRUE(found.ok()) << plan_.ToString() << ", then a power cut: " << found.status();
    const size_t acknowledged = replay.acknowledged();
    EXPECT_TRUE(*found == States()[acknowledged] ||
                (acknowledged + 1 < States().size() && *found == States()[acknowledged + 1]))
        << plan_.ToString() << " (" << faults_.where() << "), then a power cut after "
        << acknowledged << " acknowledged changes: other contents found";
  }

  const Plan plan_;
  Faults faults_;
  Recorder recorder_;
  const std::unique_ptr<rocksdb::Env> memory_;
  const std::unique_ptr<rocksdb::Env> env_;
  size_t acknowledged_ = 0;
  bool under_way_ = false;
  size_t failed_at_ = 0;  // number of events at the end of the process in which a call failed
  int ended_early_ = 0;
  std::string met_;
};

// ---- The test.

// Returns every `stride`-th failure of each kind of call, and at least one of each.
std::vector<Plan> PlansOf(const std::map<std::string, uint64_t>& calls, uint64_t stride) {
  std::vector<Plan> plans;
  for (const auto& [call, count] : calls) {
    const bool lasts = call.empty();
    for (const Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kHalf}) {
      if (fault == Fault::kNoSpace && !lasts && !TakesSpace(call)) continue;
      if (fault == Fault::kHalf && call != "append") continue;
      const uint64_t first = 1 + stride / 2 % count;
      for (uint64_t n = first; n <= count; n += stride) plans.push_back({call, n, fault, lasts});
    }
  }
  return plans;
}

TEST(RocksDbFaults, FailedCallsLoseNothing) {
  Story good{Plan()};
  good.Tell();
  ASSERT_FALSE(HasFailure());
  const bool all = std::getenv("EPS_LONG") != nullptr;
  const std::vector<Plan> plans = PlansOf(good.faults().counts(), all ? 1 : 80);
  std::map<std::string, std::map<std::string, int>> hits;  // by call, by the reaction
  int missed = 0;
  for (const Plan& plan : plans) {
    Watch(plan.ToString());
    Story story(plan);
    story.Tell();
    if (story.faults().failed() == 0) {
      ++missed;  // RocksDB's threads made fewer calls of the kind this time
      continue;
    }
    story.CutPower(all ? 6 : 3);
    ++hits[story.faults().where()][story.met().empty() ? "recovers" : story.met()];
  }
  StopWatching();
  std::printf("%zu planned failures, %d of calls that did not occur:\n", plans.size(), missed);
  for (const auto& [where, how] : hits) {
    std::printf("  %-28s", where.c_str());
    for (const auto& [met, count] : how) std::printf(" %s %d", met.c_str(), count);
    std::printf("\n");
  }
  EXPECT_LT(missed, static_cast<int>(1 + plans.size() / 10));
}

}  // namespace
}  // namespace eps
