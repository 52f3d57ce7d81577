#include "storage/csd/device_disk.h"

#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "storage/csd/file_table.h"
#include "storage/disk/fill.h"
#include "storage/disk/state_arena.h"

namespace eps {
namespace {

// The most writes in flight while a new file is filled.
constexpr uint32_t kFillDepth = 4;

uint8_t* BytesOf(StateArena* memory) { return reinterpret_cast<uint8_t*>(memory->floats()); }

// An area of a medium, or of device memory, as a file.
class DeviceFile final : public AsyncFile {
 public:
  DeviceFile(Device* device, std::string path, const FileTable::File& area, Purpose purpose,
             Place::Where where = Place::Where::kMedia)
      : device_(device), path_(std::move(path)), area_(area), purpose_(purpose), where_(where) {}

  void Read(uint64_t offset, absl::Span<uint8_t> into, Done done) override {
    if (Ends(offset, into.size())) return RefuseAt("read", offset, into.size(), std::move(done));
    device_->HostRead(PlaceOf(offset), into, purpose_, std::move(done));
  }
  void Write(uint64_t offset, absl::Span<const uint8_t> from, Done done) override {
    if (Ends(offset, from.size())) return RefuseAt("write", offset, from.size(), std::move(done));
    device_->HostWrite(from, PlaceOf(offset), purpose_, std::move(done));
  }
  void Sync(Done done) override { device_->Sync(std::move(done)); }
  const std::string& path() const override { return path_; }
  uint64_t size() const override { return area_.bytes; }
  FileIdentity identity() const override { return {area_.number, 0}; }

 private:
  // Returns whether the file ends before the bytes do.
  bool Ends(uint64_t offset, uint64_t bytes) const {
    return offset > area_.bytes || bytes > area_.bytes - offset;
  }
  Place PlaceOf(uint64_t offset) const { return {where_, area_.offset + offset}; }
  // Completes after a sync, because nothing else completes elsewhere than on the caller's stack.
  void RefuseAt(const char* operation, uint64_t offset, uint64_t bytes, Done done) {
    const absl::Status status =
        absl::OutOfRangeError(absl::StrCat(path_, ": ", operation, " of ", bytes, " bytes at ",
                                           offset, " in a file of ", area_.bytes));
    device_->Sync([status, done = std::move(done)](absl::Status) { done(status); });
  }

  Device* const device_;
  const std::string path_;
  const FileTable::File area_;
  const Purpose purpose_;
  const Place::Where where_;
};

}  // namespace

// The files of one device. Thread-safe.
class DeviceDisk::Volume {
 public:
  static absl::StatusOr<std::unique_ptr<Volume>> Open(const DeviceMount& mount,
                                                      const Classify& classify);

  // Returns whether the path is the mount's folder or below it.
  bool Holds(const std::string& path) const {
    return path == folder_ || absl::StartsWith(path, folder_ + "/");
  }
  absl::Status CreateFolder(const std::string& path) {
    return Change(path, [&](FileTable* table) {
      table->AddFolder(Below(path));
      return absl::OkStatus();
    });
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) EPS_EXCLUDES(mu_);
  absl::Status CreateFile(const std::string& path, uint64_t size) EPS_EXCLUDES(mu_);
  absl::StatusOr<std::unique_ptr<AsyncFile>> OpenFile(const std::string& path) EPS_EXCLUDES(mu_);
  absl::Status Remove(const std::string& path) {
    return Change(path, [&](FileTable* table) { return table->Remove(Below(path)); });
  }
  absl::Status Rename(const std::string& from, const std::string& to) {
    return Change(from, [&](FileTable* table) { return table->Rename(Below(from), Below(to)); });
  }
  absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& path) EPS_EXCLUDES(mu_);
  uint64_t FreeBytes() EPS_EXCLUDES(mu_);
  absl::Status CreateInMemory(const std::string& path, uint64_t size) EPS_EXCLUDES(mu_);
  absl::StatusOr<Place> PlaceOf(const std::string& path) EPS_EXCLUDES(mu_);
  Device* device() const { return device_; }

 private:
  class HeldLock;

  Volume(const DeviceMount& mount, const Classify& classify, FileTable table)
      : folder_(mount.folder),
        device_(mount.device),
        classify_(classify),
        tables_(std::make_unique<DeviceFile>(device_, folder_ + " (its table of files)",
                                             FileTable::File{0, kFirstAreaOffset, 0},
                                             Purpose::kControl)),
        table_(std::move(table)) {}

  std::string Below(const std::string& path) const {
    return path.size() <= folder_.size() ? "" : path.substr(folder_.size() + 1);
  }
  // Makes a change durable, or leaves the table as it was. Errors name the path.
  template <class Changed>
  absl::Status Change(const std::string& path, const Changed& change) EPS_EXCLUDES(mu_);
  absl::Status WriteTable(FileTable* table) EPS_REQUIRES(mu_);
  absl::Status At(const std::string& path, const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat(path, " on device ", device_->info().name, ": ",
                                                    status.message()));
  }

  const std::string folder_;
  Device* const device_;
  const Classify& classify_;
  const std::unique_ptr<DeviceFile> tables_;
  // Held while a table is written and a file is filled: both are rare, and no step waits for them.
  Mutex mu_;
  FileTable table_ EPS_GUARDED_BY(mu_);
  std::map<std::string, FileTable::File> in_memory_ EPS_GUARDED_BY(mu_);  // by path
  std::set<std::string> locks_ EPS_GUARDED_BY(mu_);
};

class DeviceDisk::Volume::HeldLock final : public Lock {
 public:
  HeldLock(Volume* volume, std::string path) : volume_(volume), path_(std::move(path)) {}
  ~HeldLock() override {
    MutexLock lock(&volume_->mu_);
    volume_->locks_.erase(path_);
  }

 private:
  Volume* const volume_;
  const std::string path_;
};

absl::StatusOr<std::unique_ptr<DeviceDisk::Volume>> DeviceDisk::Volume::Open(
    const DeviceMount& mount, const Classify& classify) {
  const uint64_t media_bytes = mount.device->info().media_bytes;
  std::unique_ptr<Volume> volume(new Volume(mount, classify, FileTable(media_bytes)));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<StateArena> memory, StateArena::New(kFirstAreaOffset));
  const absl::Span<uint8_t> copies(BytesOf(memory.get()), kFirstAreaOffset);
  EPS_RETURN_IF_ERROR(volume->At(mount.folder, ReadBlocking(volume->tables_.get(), 0, copies)));
  absl::StatusOr<FileTable> table = FileTable::Read(copies.subspan(0, kFileTableBytes),
                                                    copies.subspan(kFileTableBytes), media_bytes);
  EPS_RETURN_IF_ERROR(volume->At(mount.folder, table.status()));
  MutexLock lock(&volume->mu_);
  volume->table_ = *std::move(table);
  return volume;
}

absl::Status DeviceDisk::Volume::WriteTable(FileTable* table) {
  EPS_ASSIGN_OR_RETURN(const std::string bytes, table->Write());
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<StateArena> memory, StateArena::New(bytes.size()));
  const absl::Span<uint8_t> copy(BytesOf(memory.get()), bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  EPS_RETURN_IF_ERROR(WriteBlocking(tables_.get(), table->sequence() % 2 * kFileTableBytes, copy));
  return SyncBlocking(tables_.get());
}

template <class Changed>
absl::Status DeviceDisk::Volume::Change(const std::string& path, const Changed& change) {
  MutexLock lock(&mu_);
  FileTable changed = table_;
  absl::Status status = change(&changed);
  if (status.ok()) status = WriteTable(&changed);
  EPS_RETURN_IF_ERROR(At(path, status));
  table_ = std::move(changed);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> DeviceDisk::Volume::List(const std::string& path) {
  MutexLock lock(&mu_);
  if (!table_.IsFolder(Below(path))) {
    return At(path, absl::NotFoundError("there is no such folder"));
  }
  return table_.NamesIn(Below(path));
}

absl::Status DeviceDisk::Volume::CreateFile(const std::string& path, uint64_t size) {
  return Change(path, [&](FileTable* table) -> absl::Status {
    const uint64_t untouched = table->untouched_offset();
    EPS_ASSIGN_OR_RETURN(const FileTable::File area, table->AddFile(Below(path), size));
    if (area.offset >= untouched) return absl::OkStatus();  // zeros, like an empty medium
    DeviceFile file(device_, path, area, Purpose::kControl);
    EPS_RETURN_IF_ERROR(FillWithZeros(&file, kFillDepth, nullptr));
    return SyncBlocking(&file);
  });
}

absl::StatusOr<std::unique_ptr<AsyncFile>> DeviceDisk::Volume::OpenFile(const std::string& path) {
  MutexLock lock(&mu_);
  const auto in_memory = in_memory_.find(path);
  if (in_memory != in_memory_.end()) {
    return std::make_unique<DeviceFile>(device_, path, in_memory->second, classify_(path),
                                        Place::Where::kDram);
  }
  const FileTable::File* const found = table_.Find(Below(path));
  if (found == nullptr) return At(path, absl::NotFoundError("there is no such file"));
  return std::make_unique<DeviceFile>(device_, path, *found, classify_(path));
}

absl::Status DeviceDisk::Volume::CreateInMemory(const std::string& path, uint64_t size) {
  MutexLock lock(&mu_);
  const absl::StatusOr<Place> place = device_->Allocate(size);
  if (!place.ok()) return At(path, place.status());
  in_memory_[path] = {place->offset, size, /*number=*/0};
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Disk::Lock>> DeviceDisk::Volume::TakeLock(const std::string& path) {
  MutexLock lock(&mu_);
  if (!locks_.insert(path).second) {
    return At(path, absl::FailedPreconditionError("the lock is held"));
  }
  return std::make_unique<HeldLock>(this, path);
}

absl::StatusOr<Place> DeviceDisk::Volume::PlaceOf(const std::string& path) {
  MutexLock lock(&mu_);
  const auto in_memory = in_memory_.find(path);
  if (in_memory != in_memory_.end()) {
    return Place{Place::Where::kDram, in_memory->second.offset};
  }
  const FileTable::File* const found = table_.Find(Below(path));
  if (found == nullptr) return At(path, absl::NotFoundError("there is no such file"));
  return Place{Place::Where::kMedia, found->offset};
}

uint64_t DeviceDisk::Volume::FreeBytes() {
  MutexLock lock(&mu_);
  return table_.FreeBytes();
}

DeviceDisk::DeviceDisk(Disk* host, Classify classify)
    : host_(host), classify_(std::move(classify)) {}
DeviceDisk::~DeviceDisk() = default;

absl::StatusOr<std::unique_ptr<DeviceDisk>> DeviceDisk::Open(Disk* host,
                                                             const std::vector<DeviceMount>& mounts,
                                                             Classify classify) {
  std::unique_ptr<DeviceDisk> disk(new DeviceDisk(host, std::move(classify)));
  for (const DeviceMount& mount : mounts) {
    EPS_ASSIGN_OR_RETURN(disk->volumes_.emplace_back(), Volume::Open(mount, disk->classify_));
  }
  return disk;
}

DeviceDisk::Volume* DeviceDisk::VolumeOf(const std::string& path) const {
  for (const std::unique_ptr<Volume>& volume : volumes_) {
    if (volume->Holds(path)) return volume.get();
  }
  return nullptr;
}

absl::Status DeviceDisk::CreateFolder(const std::string& path) {
  Volume* const volume = VolumeOf(path);
  return volume == nullptr ? host_->CreateFolder(path) : volume->CreateFolder(path);
}

absl::StatusOr<std::vector<std::string>> DeviceDisk::List(const std::string& path) {
  Volume* const volume = VolumeOf(path);
  return volume == nullptr ? host_->List(path) : volume->List(path);
}

absl::Status DeviceDisk::CreateFile(const std::string& path, uint64_t size) {
  Volume* const volume = VolumeOf(path);
  return volume == nullptr ? host_->CreateFile(path, size) : volume->CreateFile(path, size);
}

absl::StatusOr<std::unique_ptr<AsyncFile>> DeviceDisk::Open(const std::string& path) {
  Volume* const volume = VolumeOf(path);
  return volume == nullptr ? host_->Open(path) : volume->OpenFile(path);
}

absl::Status DeviceDisk::Remove(const std::string& path) {
  Volume* const volume = VolumeOf(path);
  return volume == nullptr ? host_->Remove(path) : volume->Remove(path);
}

absl::Status DeviceDisk::Rename(const std::string& from, const std::string& to) {
  Volume* const volume = VolumeOf(from);
  if (volume != VolumeOf(to)) {
    return absl::UnimplementedError(
        absl::StrCat("rename of ", from, " to ", to, ": they are on different devices"));
  }
  return volume == nullptr ? host_->Rename(from, to) : volume->Rename(from, to);
}

absl::StatusOr<std::unique_ptr<Disk::Lock>> DeviceDisk::TakeLock(const std::string& path) {
  Volume* const volume = VolumeOf(path);
  return volume == nullptr ? host_->TakeLock(path) : volume->TakeLock(path);
}

absl::StatusOr<uint64_t> DeviceDisk::FreeBytes(const std::string& path) {
  Volume* const volume = VolumeOf(path);
  if (volume == nullptr) return host_->FreeBytes(path);
  return volume->FreeBytes();
}

Device* DeviceDisk::DeviceOf(const std::string& folder) const {
  Volume* const volume = VolumeOf(folder);
  return volume == nullptr ? nullptr : volume->device();
}

absl::Status DeviceDisk::CreateInMemory(const std::string& path, uint64_t size) {
  Volume* const volume = VolumeOf(path);
  if (volume != nullptr) return volume->CreateInMemory(path, size);
  return absl::InvalidArgumentError(absl::StrCat(path, " lies in no device"));
}

absl::StatusOr<Place> DeviceDisk::PlaceOf(const std::string& path) const {
  Volume* const volume = VolumeOf(path);
  if (volume != nullptr) return volume->PlaceOf(path);
  return absl::InvalidArgumentError(absl::StrCat(path, " lies in no device"));
}

}  // namespace eps
