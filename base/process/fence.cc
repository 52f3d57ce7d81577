#include "base/process/fence.h"

#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
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

// A filter of system calls that is being made. Thread-compatible.
class CallFilter {
 public:
  // `otherwise` happens to a call without a rule.
  explicit CallFilter(uint32_t otherwise)
      : filter_(seccomp_init(otherwise), &seccomp_release),
        error_(filter_ == nullptr ? -ENOMEM
                                  : seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_TSYNC, 1)) {}

  void Add(uint32_t action, std::initializer_list<int> calls) {
    for (const int call : calls) Add(action, call);
  }
  template <class... Conditions>
  void Add(uint32_t action, int call, Conditions... conditions) {
    if (error_ != 0) return;
    error_ = seccomp_rule_add(filter_.get(), action, call, sizeof...(conditions), conditions...);
  }
  // Applies the filter to all threads of this process.
  absl::Status Load() {
    if (error_ == 0) error_ = seccomp_load(filter_.get());
    if (error_ == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("seccomp: ", std::strerror(-error_)));
  }

 private:
  const std::unique_ptr<void, decltype(&seccomp_release)> filter_;
  int error_;
};

absl::Status FilterCalls(bool kills_mappings) {
  CallFilter filter(SCMP_ACT_KILL_PROCESS);
  filter.Add(
      SCMP_ACT_ALLOW,
      {SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(close), SCMP_SYS(pread64), SCMP_SYS(pwrite64),
       SCMP_SYS(fdatasync), SCMP_SYS(futex), SCMP_SYS(clock_gettime), SCMP_SYS(clock_nanosleep),
       // The heap, the begin and end of threads, the end of the process.
       SCMP_SYS(rseq), SCMP_SYS(set_robust_list), SCMP_SYS(brk), SCMP_SYS(munmap),
       SCMP_SYS(madvise), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn),
       SCMP_SYS(restart_syscall), SCMP_SYS(sched_yield), SCMP_SYS(exit), SCMP_SYS(exit_group)});
  // The heap asks for a mapping once it cannot grow: that is a full memory, no attempt to escape.
  if (!kills_mappings) filter.Add(SCMP_ACT_ERRNO(ENOMEM), SCMP_SYS(mmap));
  return filter.Load();
}

absl::Status FilterCallsOfLoading() {
  constexpr uint32_t kKill = SCMP_ACT_KILL_PROCESS;
  CallFilter filter(SCMP_ACT_ALLOW);
  filter.Add(
      kKill,
      {// Sockets.
       SCMP_SYS(socket), SCMP_SYS(socketpair), SCMP_SYS(connect), SCMP_SYS(bind), SCMP_SYS(listen),
       SCMP_SYS(accept), SCMP_SYS(accept4), SCMP_SYS(sendto), SCMP_SYS(sendmsg), SCMP_SYS(sendmmsg),
       // Other processes.
       SCMP_SYS(fork), SCMP_SYS(vfork), SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(kill),
       SCMP_SYS(tkill), SCMP_SYS(rt_sigqueueinfo), SCMP_SYS(pidfd_open), SCMP_SYS(pidfd_getfd),
       SCMP_SYS(pidfd_send_signal), SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv),
       SCMP_SYS(process_vm_writev),
       // Files and folders.
       SCMP_SYS(openat2), SCMP_SYS(open_by_handle_at), SCMP_SYS(creat), SCMP_SYS(truncate),
       SCMP_SYS(unlink), SCMP_SYS(unlinkat), SCMP_SYS(rename), SCMP_SYS(renameat),
       SCMP_SYS(renameat2), SCMP_SYS(mkdir), SCMP_SYS(mkdirat), SCMP_SYS(rmdir), SCMP_SYS(link),
       SCMP_SYS(linkat), SCMP_SYS(symlink), SCMP_SYS(symlinkat), SCMP_SYS(mknod), SCMP_SYS(mknodat),
       SCMP_SYS(chmod), SCMP_SYS(fchmod), SCMP_SYS(fchmodat), SCMP_SYS(chown), SCMP_SYS(fchown),
       SCMP_SYS(lchown), SCMP_SYS(fchownat), SCMP_SYS(setxattr), SCMP_SYS(lsetxattr),
       SCMP_SYS(fsetxattr),
       // The machine.
       SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(chroot), SCMP_SYS(pivot_root), SCMP_SYS(setns),
       SCMP_SYS(unshare), SCMP_SYS(bpf), SCMP_SYS(perf_event_open), SCMP_SYS(io_uring_setup),
       SCMP_SYS(init_module), SCMP_SYS(finit_module)});
  for (const uint64_t flag : {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC}) {
    filter.Add(kKill, SCMP_SYS(open), SCMP_A1_64(SCMP_CMP_MASKED_EQ, flag, flag));
    filter.Add(kKill, SCMP_SYS(openat), SCMP_A2_64(SCMP_CMP_MASKED_EQ, flag, flag));
  }
  // abort() signals its own process.
  filter.Add(kKill, SCMP_SYS(tgkill), SCMP_A0_64(SCMP_CMP_NE, static_cast<uint64_t>(getpid()), 0));
  // Threads, but no processes. The C library falls back to clone, whose flags a filter can read.
  filter.Add(kKill, SCMP_SYS(clone), SCMP_A0_64(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
  filter.Add(SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3));
  return filter.Load();
}

}  // namespace

void PrepareForFence() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

absl::Status FenceLoading() {
#ifdef EPS_UNDER_SANITIZER
  (void)&FilterCallsOfLoading;
  return absl::OkStatus();
#else
  return FilterCallsOfLoading();
#endif
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
