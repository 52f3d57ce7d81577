#include "base/process/fence.h"

#include <malloc.h>
#include <seccomp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EPS_UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define EPS_UNDER_SANITIZER 1
#endif
#endif

namespace eps {
namespace {

// Returns the address space that this process has mapped, in bytes; 0 if /proc is missing.
uint64_t MappedBytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  unsigned long pages = 0;
  const int fields = std::fscanf(file, "%lu", &pages);
  std::fclose(file);
  return fields == 1 ? uint64_t{pages} * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// A shared mapping counts in RLIMIT_AS too, unlike in RLIMIT_DATA.
absl::Status LimitMemory(uint64_t scratch_bytes) {
  const uint64_t mapped = MappedBytes();
  if (mapped == 0) return absl::InternalError("/proc/self/statm cannot be read");
  const rlimit limit = {mapped + scratch_bytes, mapped + scratch_bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) {
    return absl::InternalError(absl::StrCat("setrlimit(RLIMIT_AS): ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status FilterCalls(bool kills_mappings) {
  const std::unique_ptr<void, decltype(&seccomp_release)> filter(
      seccomp_init(SCMP_ACT_KILL_PROCESS), &seccomp_release);
  if (filter == nullptr) return absl::InternalError("seccomp_init failed");
  int error = seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1);
  for (const int call :
       {SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(close), SCMP_SYS(pread64), SCMP_SYS(pwrite64),
        SCMP_SYS(fdatasync), SCMP_SYS(futex), SCMP_SYS(clock_gettime), SCMP_SYS(clock_nanosleep),
        // The heap, the begin and end of threads, the end of the process.
        SCMP_SYS(rseq), SCMP_SYS(set_robust_list), SCMP_SYS(brk), SCMP_SYS(munmap),
        SCMP_SYS(madvise), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn),
        SCMP_SYS(restart_syscall), SCMP_SYS(sched_yield), SCMP_SYS(exit), SCMP_SYS(exit_group)}) {
    if (error == 0) error = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
  }
  // The heap asks for a mapping once it cannot grow: that is a full memory, no attempt to escape.
  if (error == 0 && !kills_mappings) {
    error = seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOMEM), SCMP_SYS(mmap), 0);
  }
  if (error == 0) error = seccomp_load(filter.get());
  if (error != 0) return absl::InternalError(absl::StrCat("seccomp: ", std::strerror(-error)));
  return absl::OkStatus();
}

}  // namespace

void PrepareForFence() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

absl::Status FenceProcess(const FenceOptions& options) {
#ifdef EPS_UNDER_SANITIZER
  (void)options;
  (void)&LimitMemory;
  (void)&FilterCalls;
  return absl::OkStatus();
#else
  EPS_RETURN_IF_ERROR(LimitMemory(options.scratch_bytes));
  return FilterCalls(options.kills_mappings);
#endif
}

}  // namespace eps
