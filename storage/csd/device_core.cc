#include "storage/csd/device_core.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// Creates the file under another name first, so that a file of this name is whole.
absl::Status CreateMedium(Disk* disk, const std::string& path, uint64_t bytes) {
  const std::string fresh = path + ".new";
  const absl::Status removed = disk->Remove(fresh);  // the remains of an interrupted creation
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  EPS_RETURN_IF_ERROR(disk->CreateFile(fresh, bytes));
  return disk->Rename(fresh, path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCore>> DeviceCore::Open(const DeviceCoreOptions& options,
                                                             Disk* disk, Executor* executor,
                                                             MemoryAccount* account) {
  DeviceInfo info = {options.name, options.media_bytes, options.dram_bytes};
  if (info.media_bytes % kDiskBlock != 0 || info.dram_bytes % kDiskBlock != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", info.name, ": ", info.media_bytes, " bytes of medium and ",
                     info.dram_bytes, " of memory; both must be multiples of ", kDiskBlock));
  }
  absl::StatusOr<std::unique_ptr<AsyncFile>> medium = disk->Open(options.path);
  if (absl::IsNotFound(medium.status())) {
    EPS_RETURN_IF_ERROR(CreateMedium(disk, options.path, info.media_bytes));
    medium = disk->Open(options.path);
  }
  EPS_RETURN_IF_ERROR(medium.status());
  if ((*medium)->size() != info.media_bytes) {
    return absl::FailedPreconditionError(absl::StrCat("device ", info.name, ": ", options.path,
                                                      " has ", (*medium)->size(),
                                                      " bytes, expected ", info.media_bytes));
  }
  std::unique_ptr<StateArena> dram;
  if (info.dram_bytes > 0) {
    EPS_RETURN_IF_ERROR(account->TryCharge(MemoryKind::kState, info.dram_bytes));
    absl::StatusOr<std::unique_ptr<StateArena>> arena = StateArena::New(info.dram_bytes);
    if (!arena.ok()) {
      account->Release(MemoryKind::kState, info.dram_bytes);
      return arena.status();
    }
    dram = *std::move(arena);
  }
  return std::unique_ptr<DeviceCore>(
      new DeviceCore(std::move(info), *std::move(medium), std::move(dram), executor, account));
}

DeviceCore::DeviceCore(DeviceInfo info, std::unique_ptr<AsyncFile> medium,
                       std::unique_ptr<StateArena> dram, Executor* executor, MemoryAccount* account)
    : info_(std::move(info)),
      medium_(std::move(medium)),
      dram_(std::move(dram)),
      executor_(executor),
      account_(account) {}

DeviceCore::~DeviceCore() { account_->Release(MemoryKind::kState, info_.dram_bytes); }

uint8_t* DeviceCore::InDram(Place place) const {
  return reinterpret_cast<uint8_t*>(dram_->floats()) + place.offset;
}

absl::StatusOr<Place> DeviceCore::Allocate(uint64_t bytes) {
  bytes = (bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
  MutexLock lock(&mu_);
  const uint64_t free = info_.dram_bytes - allocated_bytes_;
  if (bytes > free) {
    return absl::ResourceExhaustedError(absl::StrCat("device ", info_.name, ": ", bytes,
                                                     " bytes of device memory wanted, ", free,
                                                     " of ", info_.dram_bytes, " are free"));
  }
  const Place place = {Place::Where::kDram, allocated_bytes_};
  allocated_bytes_ += bytes;
  return place;
}

void DeviceCore::Complete(Done done, absl::Status status) {
  executor_->Post([done = std::move(done), status = std::move(status)] { done(status); });
}

Device::Done DeviceCore::Counting(Link link, Direction direction, bool media_too, Purpose purpose,
                                  uint64_t bytes, Done done) {
  return [this, link, direction, media_too, purpose, bytes,
          done = std::move(done)](absl::Status status) {
    if (status.ok()) {
      ledger_.Add(link, direction, purpose, bytes);
      if (media_too) ledger_.Add(Link::kMedia, direction, purpose, bytes);
    }
    done(std::move(status));
  };
}

void DeviceCore::HostWrite(absl::Span<const uint8_t> from, Place to, Purpose purpose, Done done) {
  absl::Status status = CheckTransfer(info_, "HostWrite", to, from.size());
  if (!status.ok()) return Complete(std::move(done), std::move(status));
  const bool media = to.where == Place::Where::kMedia;
  done = Counting(Link::kHost, Direction::kWritten, media, purpose, from.size(), std::move(done));
  if (media) return medium_->Write(to.offset, from, std::move(done));
  executor_->Post([this, from, to, done = std::move(done)] {
    std::memcpy(InDram(to), from.data(), from.size());
    done(absl::OkStatus());
  });
}

void DeviceCore::HostRead(Place from, absl::Span<uint8_t> into, Purpose purpose, Done done) {
  absl::Status status = CheckTransfer(info_, "HostRead", from, into.size());
  if (!status.ok()) return Complete(std::move(done), std::move(status));
  const bool media = from.where == Place::Where::kMedia;
  done = Counting(Link::kHost, Direction::kRead, media, purpose, into.size(), std::move(done));
  if (media) return medium_->Read(from.offset, into, std::move(done));
  executor_->Post([this, from, into, done = std::move(done)] {
    std::memcpy(into.data(), InDram(from), into.size());
    done(absl::OkStatus());
  });
}

void DeviceCore::Copy(Place from, Place to, uint64_t bytes, Purpose purpose, Done done) {
  absl::Status status = CheckCopy(info_, from, to, bytes);
  if (!status.ok()) return Complete(std::move(done), std::move(status));
  if (from.where == Place::Where::kMedia) {
    medium_->Read(
        from.offset, absl::MakeSpan(InDram(to), bytes),
        Counting(Link::kInternal, Direction::kRead, true, purpose, bytes, std::move(done)));
  } else {
    medium_->Write(
        to.offset, absl::MakeConstSpan(InDram(from), bytes),
        Counting(Link::kInternal, Direction::kWritten, true, purpose, bytes, std::move(done)));
  }
}

void DeviceCore::Run(std::string kernel, Place memory, uint64_t bytes, KernelDone done) {
  absl::Status status = CheckTransfer(info_, "Run", memory, bytes);
  if (status.ok() && memory.where != Place::Where::kDram) {
    status = absl::InvalidArgumentError(
        absl::StrCat("device ", info_.name, ": Run over ", Describe(memory)));
  }
  if (status.ok() && kernels_ == nullptr) {
    status = absl::FailedPreconditionError(
        absl::StrCat("device ", info_.name, " has no kernels of a job"));
  }
  executor_->Post([this, kernel = std::move(kernel), memory, bytes, done = std::move(done),
                   status = std::move(status)] {
    if (!status.ok()) return done(status);
    done(kernels_->Run(kernel, absl::MakeSpan(InDram(memory), bytes)));
  });
}

}  // namespace eps
