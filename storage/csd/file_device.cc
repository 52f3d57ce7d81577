#include "storage/csd/file_device.h"

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

absl::StatusOr<std::unique_ptr<AsyncFile>> FileDevice::OpenMedium(const FileDeviceOptions& options,
                                                                  Disk* disk) {
  if (options.media_bytes % kDiskBlock != 0 || options.dram_bytes % kDiskBlock != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", options.name, ": ", options.media_bytes, " bytes of medium and ",
                     options.dram_bytes, " of memory; both must be multiples of ", kDiskBlock));
  }
  absl::StatusOr<std::unique_ptr<AsyncFile>> medium = disk->Open(options.path);
  if (absl::IsNotFound(medium.status())) {
    EPS_RETURN_IF_ERROR(CreateMedium(disk, options.path, options.media_bytes));
    medium = disk->Open(options.path);
  }
  EPS_RETURN_IF_ERROR(medium.status());
  if ((*medium)->size() != options.media_bytes) {
    return absl::FailedPreconditionError(absl::StrCat("device ", options.name, ": ", options.path,
                                                      " has ", (*medium)->size(),
                                                      " bytes, expected ", options.media_bytes));
  }
  return medium;
}

absl::StatusOr<Place> FileDevice::Allocate(uint64_t bytes) {
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

void FileDevice::Complete(Done done, absl::Status status) {
  executor_->Post([done = std::move(done), status = std::move(status)] { done(status); });
}

Device::Done FileDevice::Counting(Link link, Direction direction, bool media_too, Purpose purpose,
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

void FileDevice::HostWrite(absl::Span<const uint8_t> from, Place to, Purpose purpose, Done done) {
  absl::Status status = CheckTransfer(info_, "HostWrite", to, from.size());
  if (!status.ok()) return Complete(std::move(done), std::move(status));
  const bool media = to.where == Place::Where::kMedia;
  done = Counting(Link::kHost, Direction::kWritten, media, purpose, from.size(), std::move(done));
  if (media) return medium_->Write(to.offset, from, std::move(done));
  executor_->Post([this, from, to, done = std::move(done)] { done(WriteMemory(from, to.offset)); });
}

void FileDevice::HostRead(Place from, absl::Span<uint8_t> into, Purpose purpose, Done done) {
  absl::Status status = CheckTransfer(info_, "HostRead", from, into.size());
  if (!status.ok()) return Complete(std::move(done), std::move(status));
  const bool media = from.where == Place::Where::kMedia;
  done = Counting(Link::kHost, Direction::kRead, media, purpose, into.size(), std::move(done));
  if (media) return medium_->Read(from.offset, into, std::move(done));
  executor_->Post(
      [this, from, into, done = std::move(done)] { done(ReadMemory(from.offset, into)); });
}

void FileDevice::Copy(Place from, Place to, uint64_t bytes, Purpose purpose, Done done) {
  absl::Status status = CheckCopy(info_, from, to, bytes);
  if (!status.ok()) return Complete(std::move(done), std::move(status));
  if (from.where == Place::Where::kMedia) {
    Load(from.offset, to.offset, bytes,
         Counting(Link::kInternal, Direction::kRead, true, purpose, bytes, std::move(done)));
  } else {
    Store(from.offset, to.offset, bytes,
          Counting(Link::kInternal, Direction::kWritten, true, purpose, bytes, std::move(done)));
  }
}

void FileDevice::Run(std::string kernel, Place memory, uint64_t bytes, KernelDone done) {
  absl::Status status = CheckTransfer(info_, "Run", memory, bytes);
  if (status.ok() && memory.where != Place::Where::kDram) {
    status = absl::InvalidArgumentError(
        absl::StrCat("device ", info_.name, ": Run over ", Describe(memory)));
  }
  executor_->Post([this, kernel = std::move(kernel), memory, bytes, done = std::move(done),
                   status = std::move(status)] {
    if (!status.ok()) return done(status);
    done(RunKernel(kernel, memory.offset, bytes));
  });
}

}  // namespace eps
