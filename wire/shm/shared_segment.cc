#include "wire/shm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::string Reason() { return std::strerror(errno); }

}  // namespace

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Create(uint64_t bytes,
                                                                     SegmentWriters writers) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  Descriptor file(memfd_create("eps", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.ok() || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the kernel gives no shared segment of ", bytes, " bytes: ", Reason()));
  }
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> segment,
                       Map(std::move(file), bytes, /*writes=*/true));
  // After the mapping above: the seal against writers stops every later one.
  const int seals =
      kSizeSeals | F_SEAL_SEAL | (writers == SegmentWriters::kCreator ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(segment->fd(), F_ADD_SEALS, seals) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the kernel does not seal shared segments (it needs Linux 5.1): ", Reason()));
  }
  return segment;
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Open(Descriptor file, uint64_t bytes,
                                                                   SegmentWriters writers) {
  struct stat facts = {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (fstat(file.get(), &facts) != 0 || seals < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the descriptor is no shared segment: ", Reason()));
  }
  if (bytes == 0 || facts.st_size < 0 || static_cast<uint64_t>(facts.st_size) < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the shared segment has ", facts.st_size,
                                                   " bytes, expected ", bytes, ", and not 0"));
  }
  const int needed = kSizeSeals | (writers == SegmentWriters::kCreator ? F_SEAL_FUTURE_WRITE : 0);
  if ((seals & needed) != needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shared segment has the seals ", seals, ", expected ", needed));
  }
  return Map(std::move(file), bytes, writers == SegmentWriters::kEveryHolder);
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Map(Descriptor file, uint64_t bytes,
                                                                  bool writes) {
  void* const memory =
      mmap(nullptr, bytes, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the kernel maps no shared segment of ", bytes, " bytes: ", Reason()));
  }
  return std::unique_ptr<SharedSegment>(
      new SharedSegment(std::move(file), static_cast<uint8_t*>(memory), bytes));
}

SharedSegment::~SharedSegment() { munmap(data_, size_); }

absl::optional<uint64_t> SharedSegment::OffsetOf(absl::Span<const uint8_t> memory) const {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data_);
  const uintptr_t at = reinterpret_cast<uintptr_t>(memory.data());
  if (at < begin || at - begin > size_ || memory.size() > size_ - (at - begin)) {
    return absl::nullopt;
  }
  return at - begin;
}

absl::StatusOr<absl::Span<const uint8_t>> SharedSegment::At(uint64_t offset, uint64_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        bytes, " bytes at ", offset, " do not lie in a shared segment of ", size_, " bytes"));
  }
  return absl::Span<const uint8_t>(data_ + offset, bytes);
}

}  // namespace eps
