#include "base/plugin/check/guarded_array.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/descriptor.h"

namespace eps {
namespace {

absl::Status Errno(const char* call) {
  return absl::InternalError(absl::StrCat(call, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<GuardedArray> GuardedArray::New(size_t bytes, Access access) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = (bytes + page - 1) / page * page;
  const Descriptor file(memfd_create("eps_check", MFD_CLOEXEC));
  if (!file.ok()) return Errno("memfd_create");
  if (ftruncate(file.get(), static_cast<off_t>(size)) != 0) return Errno("ftruncate");
  void* const own = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (own == MAP_FAILED) return Errno("mmap");
  void* const around =
      mmap(nullptr, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (around == MAP_FAILED) return Errno("mmap");
  const int rights = access == Access::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const shown = mmap(static_cast<uint8_t*>(around) + page, size, rights,
                           MAP_SHARED | MAP_FIXED, file.get(), 0);
  if (shown == MAP_FAILED) return Errno("mmap");
  return GuardedArray(static_cast<uint8_t*>(shown), static_cast<uint8_t*>(own), size);
}

}  // namespace eps
