// Fortified headers have bodies of the functions that are defined here.
#undef _FORTIFY_SOURCE
#include "storage/testing/recorded_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace eps {
namespace {

// An open descriptor of a recorded file or folder.
struct Open {
  std::string path;
  uint64_t file = 0;  // 0 for a folder
  bool direct = false;
};

struct Record {
  std::recursive_mutex mu;  // std: it is held during the calls, whose library may use any lock
  bool on = false;
  std::string folder;
  uint64_t files = 0;
  std::map<std::string, uint64_t> names;
  std::map<int, Open> open;
  std::vector<RecordedCall> calls;
};

Record& TheRecord() {
  static auto* const record = new Record();
  return *record;
}

template <class Function>
Function* Real(const char* name) {
  auto* const found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  EPS_CHECK_MSG(found != nullptr, name << " is not in a shared library");
  return found;
}

// Sets the path below the folder. Returns false if the path is elsewhere or nothing is recorded.
bool IsBelow(const Record& record, const std::string& path, std::string* below) {
  if (!record.on || path.compare(0, record.folder.size() + 1, record.folder + "/") != 0) {
    return false;
  }
  *below = path.substr(record.folder.size() + 1);
  while (!below->empty() && below->back() == '/') below->pop_back();
  return true;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

void Add(Record* record, RecordedCall::Kind kind, const std::string& path, uint64_t file,
         const std::string& to = "") {
  RecordedCall call;
  call.kind = kind;
  call.path = path;
  call.file = file;
  call.to = to;
  record->calls.push_back(std::move(call));
}

void OnOpen(const char* path, int flags, bool existed, int fd) {
  Record& record = TheRecord();
  std::string below;
  if (fd < 0 || (!IsBelow(record, path, &below) && path != record.folder)) return;
  struct stat found {};
  if (!record.on || fstat(fd, &found) != 0) return;
  Open open;
  open.path = below;
  if (!S_ISDIR(found.st_mode)) {
    open.direct = (flags & O_DIRECT) != 0;
    if (!existed) {
      open.file = record.names[below] = ++record.files;
      Add(&record, RecordedCall::kCreate, below, open.file);
    }
    const auto known = record.names.find(below);
    if (known == record.names.end()) return;  // it was not made by a recorded call
    open.file = known->second;
    if ((flags & O_TRUNC) != 0 && existed) {
      Add(&record, RecordedCall::kResize, below, open.file);
    }
  }
  record.open[fd] = open;
}

void OnWrite(int fd, const void* from, ssize_t size, off_t offset) {
  Record& record = TheRecord();
  const auto it = record.open.find(fd);
  if (!record.on || size <= 0 || it == record.open.end()) return;
  RecordedCall call;
  call.kind = RecordedCall::kWrite;
  call.path = it->second.path;
  call.file = it->second.file;
  call.appends = !it->second.direct;
  call.offset = static_cast<uint64_t>(offset);
  call.bytes.assign(static_cast<const char*>(from), static_cast<size_t>(size));
  record.calls.push_back(std::move(call));
}

void OnResize(int fd, uint64_t size) {
  Record& record = TheRecord();
  const auto it = record.open.find(fd);
  if (!record.on || it == record.open.end()) return;
  Add(&record, RecordedCall::kResize, it->second.path, it->second.file);
  record.calls.back().offset = size;
}

void OnSync(int fd) {
  Record& record = TheRecord();
  const auto it = record.open.find(fd);
  if (!record.on || it == record.open.end()) return;
  const bool is_folder = it->second.file == 0;
  Add(&record, is_folder ? RecordedCall::kSyncFolder : RecordedCall::kSync, it->second.path,
      it->second.file);
}

void OnRemove(const char* path) {
  Record& record = TheRecord();
  std::string below;
  if (!IsBelow(record, path, &below)) return;
  record.names.erase(below);
  Add(&record, RecordedCall::kRemove, below, 0);
}

// Gives every name below a folder the folder's new name.
template <class Names>
void MoveNames(const std::string& from, const std::string& to, Names* names) {
  Names moved;
  for (auto it = names->lower_bound(from); it != names->end();) {
    const bool is_it = it->first == from;
    if (!is_it && it->first.compare(0, from.size() + 1, from + "/") != 0) {
      ++it;
      continue;
    }
    moved.emplace(to + it->first.substr(from.size()), it->second);
    it = names->erase(it);
  }
  names->merge(moved);
}

void OnRename(const char* from, const char* to) {
  Record& record = TheRecord();
  std::string old_path, new_path;
  if (!IsBelow(record, from, &old_path) || !IsBelow(record, to, &new_path)) return;
  if (std::filesystem::is_directory(to)) {
    MoveNames(old_path, new_path, &record.names);
    return Add(&record, RecordedCall::kRename, old_path, 0, new_path);
  }
  const auto it = record.names.find(old_path);
  if (it == record.names.end()) return;
  const uint64_t file = it->second;
  record.names.erase(it);
  record.names[new_path] = file;
  Add(&record, RecordedCall::kRename, old_path, file, new_path);
}

std::unique_lock<std::recursive_mutex> Hold() {
  return std::unique_lock<std::recursive_mutex>(TheRecord().mu);
}

}  // namespace

void BeginRecording(const std::string& folder) {
  const auto hold = Hold();
  Record& record = TheRecord();
  record.folder = folder;
  record.names.clear();
  record.open.clear();
  record.calls.clear();
  record.on = true;
}

void RecordMark(uint64_t mark) {
  const auto hold = Hold();
  Add(&TheRecord(), RecordedCall::kMark, "", 0);
  TheRecord().calls.back().mark = mark;
}

std::vector<RecordedCall> EndRecording() {
  const auto hold = Hold();
  TheRecord().on = false;
  return std::exchange(TheRecord().calls, {});
}

// ---- The replay.

void CallReplay::Apply(const RecordedCall& call, size_t bytes, std::string* content) {
  if (call.kind == RecordedCall::kResize) return content->resize(call.offset);
  if (content->size() < call.offset + bytes) content->resize(call.offset + bytes);
  content->replace(call.offset, bytes, call.bytes, 0, bytes);
}

void CallReplay::Change(const RecordedCall& call, Names* names) {
  if (call.kind == RecordedCall::kRename) {
    if (call.file == 0) return MoveNames(call.path, call.to, names);
    names->erase(call.path);
    (*names)[call.to] = call.file;
  } else if (call.kind == RecordedCall::kRemove) {
    names->erase(call.path);
  } else {
    (*names)[call.path] = call.file;
  }
}

void CallReplay::Carry(const RecordedCall& call) {
  switch (call.kind) {
    case RecordedCall::kWrite:
    case RecordedCall::kResize:
      files_[call.file].unsynced.push_back(call);
      return;
    case RecordedCall::kSync: {
      File& file = files_[call.file];
      for (const RecordedCall& write : file.unsynced) {
        Apply(write, write.bytes.size(), &file.synced);
      }
      file.unsynced.clear();
      return;
    }
    case RecordedCall::kSyncFolder: {
      std::vector<RecordedCall> left;
      for (const RecordedCall& change : pending_) {
        if (FolderOf(change.path) == call.path) {
          Change(change, &names_);
        } else {
          left.push_back(change);
        }
      }
      pending_ = std::move(left);
      return;
    }
    case RecordedCall::kMark:
      return;
    default:
      if (call.kind == RecordedCall::kCreate) files_[call.file];
      pending_.push_back(call);
      return;
  }
}

void CallReplay::Cut(std::mt19937_64* random, const std::string& folder) const {
  const uint64_t mode = (*random)() % 3;  // keeps none, all or some of what is not synced
  const auto draw = [&](size_t most) -> size_t {
    return mode == 0 ? 0 : mode == 1 ? most : (*random)() % (most + 1);
  };
  std::map<std::string, std::vector<const RecordedCall*>> changes;  // by folder
  for (const RecordedCall& change : pending_) changes[FolderOf(change.path)].push_back(&change);
  Names names = names_;
  for (const auto& [path, list] : changes) {
    const size_t kept = draw(list.size());
    for (size_t i = 0; i < kept; ++i) Change(*list[i], &names);
  }
  for (const auto& [path, number] : names) {  // a folder precedes its entries
    const std::string place = folder + "/" + path;
    if (!std::filesystem::exists(std::filesystem::path(place).parent_path())) continue;
    if (number == 0) {
      std::filesystem::create_directory(place);
      continue;
    }
    const File& file = files_.at(number);
    std::string content = file.synced;
    const size_t kept = draw(file.unsynced.size());
    for (size_t i = 0; i < file.unsynced.size(); ++i) {
      const RecordedCall& write = file.unsynced[i];
      const bool in_order = write.appends || write.kind == RecordedCall::kResize;
      if (in_order ? i < kept : draw(1) == 1) Apply(write, write.bytes.size(), &content);
      if (in_order && i == kept && mode == 2) Apply(write, draw(write.bytes.size()), &content);
    }
    std::ofstream(place, std::ios::binary) << content;
  }
}

}  // namespace eps

using eps::Hold;
using eps::Real;

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const real = Real<int(const char*, int, ...)>("open");
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  const auto hold = Hold();
  const bool existed = access(path, F_OK) == 0;
  const int fd = real(path, flags, mode);
  const int error = errno;
  eps::OnOpen(path, flags, existed, fd);
  errno = error;
  return fd;
}

int close(int fd) {
  static auto* const real = Real<int(int)>("close");
  const auto hold = Hold();
  eps::TheRecord().open.erase(fd);
  return real(fd);
}

ssize_t write(int fd, const void* from, size_t size) {
  static auto* const real = Real<ssize_t(int, const void*, size_t)>("write");
  const auto hold = Hold();
  const bool recorded = eps::TheRecord().open.count(fd) > 0;
  const off_t at = recorded ? lseek(fd, 0, SEEK_CUR) : 0;
  const ssize_t done = real(fd, from, size);
  eps::OnWrite(fd, from, done, at);
  return done;
}

ssize_t pwrite(int fd, const void* from, size_t size, off_t offset) {
  static auto* const real = Real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const auto hold = Hold();
  const ssize_t done = real(fd, from, size, offset);
  eps::OnWrite(fd, from, done, offset);
  return done;
}

int ftruncate(int fd, off_t size) noexcept {
  static auto* const real = Real<int(int, off_t)>("ftruncate");
  const auto hold = Hold();
  const int done = real(fd, size);
  if (done == 0) eps::OnResize(fd, static_cast<uint64_t>(size));
  return done;
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
  static auto* const real = Real<int(int, int, off_t, off_t)>("fallocate");
  const auto hold = Hold();
  const int done = real(fd, mode, offset, size);
  if (done == 0 && mode == 0) eps::OnResize(fd, static_cast<uint64_t>(offset + size));
  return done;
}

int fsync(int fd) {
  static auto* const real = Real<int(int)>("fsync");
  const auto hold = Hold();
  const int done = real(fd);
  if (done == 0) eps::OnSync(fd);
  return done;
}

int fdatasync(int fd) {
  static auto* const real = Real<int(int)>("fdatasync");
  const auto hold = Hold();
  const int done = real(fd);
  if (done == 0) eps::OnSync(fd);
  return done;
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = Real<int(const char*, mode_t)>("mkdir");
  const auto hold = Hold();
  const int done = real(path, mode);
  std::string below;
  if (done == 0 && eps::IsBelow(eps::TheRecord(), path, &below)) {
    eps::Add(&eps::TheRecord(), eps::RecordedCall::kMakeFolder, below, 0);
  }
  return done;
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = Real<int(const char*, const char*)>("rename");
  const auto hold = Hold();
  const int done = real(from, to);
  if (done == 0) eps::OnRename(from, to);
  return done;
}

int unlink(const char* path) noexcept {
  static auto* const real = Real<int(const char*)>("unlink");
  const auto hold = Hold();
  const int done = real(path);
  if (done == 0) eps::OnRemove(path);
  return done;
}

int remove(const char* path) noexcept {
  static auto* const real = Real<int(const char*)>("remove");
  const auto hold = Hold();
  const int done = real(path);
  if (done == 0) eps::OnRemove(path);
  return done;
}

int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  static auto* const real = Real<int(unsigned, io_uring*, unsigned)>("io_uring_queue_init");
  return eps::TheRecord().on ? -ENOSYS : real(entries, ring, flags);
}

}  // extern "C"
