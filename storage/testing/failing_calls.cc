// Fortified headers have bodies of the functions that are defined here.
#undef _FORTIFY_SOURCE
#include "storage/testing/failing_calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"

namespace eps {
namespace {

constexpr size_t kBlock = 4096;
constexpr size_t kSector = 512;

std::atomic<bool> counting{false};

struct Counters {
  Mutex mu;
  std::vector<CallPlan> plans EPS_GUARDED_BY(mu);
  CallReport report EPS_GUARDED_BY(mu);
};

Counters& TheCounters() {
  static auto* const counters = new Counters();
  return *counters;
}

// Decides the fault of this call.
CallFault Next(const char* call) {
  if (!counting) return CallFault::kNone;
  Counters& counters = TheCounters();
  MutexLock lock(&counters.mu);
  const uint64_t n = ++counters.report.counts[call];
  for (const CallPlan& plan : counters.plans) {
    if (plan.call != call || (plan.lasts ? n < plan.n : n != plan.n)) continue;
    ++counters.report.failed;
    return plan.fault;
  }
  return CallFault::kNone;
}

// Returns true, with errno set, if the call has to fail.
bool Fails(const char* call) {
  const int error = ErrnoOf(Next(call));
  if (error == 0) return false;
  errno = error;
  return true;
}

// Returns the library's own function.
template <class Function>
Function* Real(const char* name) {
  auto* const found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  EPS_CHECK_MSG(found != nullptr, name << " is not in a shared library");
  return found;
}

size_t ShortOf(CallFault fault, size_t size) {
  switch (fault) {
    case CallFault::kHalf:
      return size / 2 / kBlock * kBlock;
    case CallFault::kPiece:
      return std::min(size, kSector);
    case CallFault::kNothing:
      return 0;
    default:
      return size;
  }
}

// Runs a transfer with `move`, which takes a number of bytes.
template <class Move>
ssize_t Transfer(const char* call, size_t size, const Move& move) {
  const CallFault fault = Next(call);
  if (ErrnoOf(fault) != 0) {
    errno = ErrnoOf(fault);
    return -1;
  }
  const size_t moved = ShortOf(fault, size);
  if (moved == size || moved == 0) return moved == 0 ? 0 : move(size);
  // Direct I/O moves whole blocks, even if the call reports less.
  const ssize_t done = move(std::max(moved, kBlock));
  return done < 0 ? done : std::min(done, static_cast<ssize_t>(moved));
}

// Returns a file on which every write fails as on a full disk.
int FullDevice() {
  static const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  EPS_CHECK(full >= 0);
  return full;
}

// Changes a request before io_uring gets it.
void Bend(io_uring_sqe* sqe) {
  const char* const call = sqe->opcode == IORING_OP_READ    ? "uring read"
                           : sqe->opcode == IORING_OP_WRITE ? "uring write"
                           : sqe->opcode == IORING_OP_FSYNC ? "uring sync"
                                                            : "uring nothing";
  const CallFault fault = Next(call);
  if (fault == CallFault::kBadFile) {
    sqe->fd = -1;
  } else if (fault == CallFault::kNoSpace) {
    sqe->fd = FullDevice();
  } else if (sqe->opcode != IORING_OP_FSYNC) {
    sqe->len = static_cast<uint32_t>(ShortOf(fault, sqe->len));
  }
}

}  // namespace

const char* NameOf(CallFault fault) {
  constexpr const char* kNames[] = {
      "nothing",           "EIO",     "ENOSPC", "EBADF", "EINVAL", "EINTR", "EAGAIN", "half",
      "less than a block", "no bytes"};
  return kNames[static_cast<int>(fault)];
}

int ErrnoOf(CallFault fault) {
  constexpr int kErrors[] = {0, EIO, ENOSPC, EBADF, EINVAL, EINTR, EAGAIN, 0, 0, 0};
  return kErrors[static_cast<int>(fault)];
}

void BeginFailing(std::vector<CallPlan> plans) {
  FullDevice();
  Counters& counters = TheCounters();
  MutexLock lock(&counters.mu);
  counters.plans = std::move(plans);
  counters.report = CallReport();
  counting = true;
}

CallReport EndFailing() {
  counting = false;
  Counters& counters = TheCounters();
  MutexLock lock(&counters.mu);
  return std::exchange(counters.report, CallReport());
}

}  // namespace eps

using eps::Fails;
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
  return Fails("open") ? -1 : real(path, flags, mode);
}

int stat(const char* path, struct stat* found) noexcept {
  static auto* const real = Real<int(const char*, struct stat*)>("stat");
  return Fails("stat") ? -1 : real(path, found);
}

int statx(int fd, const char* path, int flags, unsigned mask, struct statx* found) noexcept {
  static auto* const real = Real<int(int, const char*, int, unsigned, struct statx*)>("statx");
  return Fails("statx") ? -1 : real(fd, path, flags, mask, found);
}

int statvfs(const char* path, struct statvfs* found) noexcept {
  static auto* const real = Real<int(const char*, struct statvfs*)>("statvfs");
  return Fails("statvfs") ? -1 : real(path, found);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = Real<int(const char*, mode_t)>("mkdir");
  return Fails("mkdir") ? -1 : real(path, mode);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = Real<int(const char*, const char*)>("rename");
  return Fails("rename") ? -1 : real(from, to);
}

int remove(const char* path) noexcept {
  static auto* const real = Real<int(const char*)>("remove");
  return Fails("remove") ? -1 : real(path);
}

int unlink(const char* path) noexcept {
  static auto* const real = Real<int(const char*)>("unlink");
  return Fails("unlink") ? -1 : real(path);
}

int flock(int fd, int operation) noexcept {
  static auto* const real = Real<int(int, int)>("flock");
  return Fails("flock") ? -1 : real(fd, operation);
}

int fsync(int fd) {
  static auto* const real = Real<int(int)>("fsync");
  return Fails("fsync") ? -1 : real(fd);
}

int fdatasync(int fd) {
  static auto* const real = Real<int(int)>("fdatasync");
  return Fails("fdatasync") ? -1 : real(fd);
}

DIR* opendir(const char* path) {
  static auto* const real = Real<DIR*(const char*)>("opendir");
  return Fails("opendir") ? nullptr : real(path);
}

dirent* readdir(DIR* folder) {
  static auto* const real = Real<dirent*(DIR*)>("readdir");
  return Fails("readdir") ? nullptr : real(folder);
}

ssize_t pread(int fd, void* into, size_t size, off_t offset) {
  static auto* const real = Real<ssize_t(int, void*, size_t, off_t)>("pread");
  return eps::Transfer("pread", size, [&](size_t part) { return real(fd, into, part, offset); });
}

ssize_t pwrite(int fd, const void* from, size_t size, off_t offset) {
  static auto* const real = Real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return eps::Transfer("pwrite", size, [&](size_t part) { return real(fd, from, part, offset); });
}

int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  static auto* const real = Real<int(unsigned, io_uring*, unsigned)>("io_uring_queue_init");
  return Fails("io_uring_queue_init") ? -errno : real(entries, ring, flags);
}

int io_uring_submit(io_uring* ring) {
  static auto* const real = Real<int(io_uring*)>("io_uring_submit");
  if (Fails("io_uring_submit")) return -errno;
  for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; ++i) {
    eps::Bend(&ring->sq.sqes[i & ring->sq.ring_mask]);
  }
  return real(ring);
}

int __io_uring_get_cqe(io_uring* ring, io_uring_cqe** cqe, unsigned submit, unsigned wait,
                       sigset_t* mask) {
  static auto* const real =
      Real<int(io_uring*, io_uring_cqe**, unsigned, unsigned, sigset_t*)>("__io_uring_get_cqe");
  return Fails("io_uring_wait_cqe") ? -errno : real(ring, cqe, submit, wait, mask);
}

}  // extern "C"
