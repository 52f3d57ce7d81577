#include "storage/disk/state_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

absl::Status OutOfMemory(size_t size, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the system has no ", size, " bytes of memory: ", std::strerror(error)));
}

// Writes to every page of zero-filled memory.
void TouchPages(void* begin, size_t size) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  volatile uint8_t* bytes = static_cast<uint8_t*>(begin);
  for (size_t i = 0; i < size; i += page) bytes[i] = 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateArena>> StateArena::New(size_t size) {
  const size_t slack = size >= kHugePage ? kHugePage : 0;
  const size_t mapped_size = size + slack > 0 ? size + slack : 1;
  void* mapped =
      mmap(nullptr, mapped_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return OutOfMemory(size, errno);
  void* begin = mapped;
  if (slack > 0) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(mapped);
    begin = reinterpret_cast<void*>((address + kHugePage - 1) / kHugePage * kHugePage);
    // Without huge pages updates are slower, which is no error.
    madvise(begin, size, MADV_HUGEPAGE);
  }
  std::unique_ptr<StateArena> arena(new StateArena(mapped, mapped_size, begin));
#if defined(MADV_POPULATE_WRITE)
  if (size == 0 || madvise(begin, size, MADV_POPULATE_WRITE) == 0) return arena;
  if (errno == ENOMEM || errno == EFAULT) return OutOfMemory(size, errno);
#endif
  TouchPages(begin, size);  // kernels before 5.14 lack MADV_POPULATE_WRITE
  return arena;
}

StateArena::~StateArena() { munmap(mapped_, mapped_size_); }

}  // namespace eps
