#include "base/plugin/check/thread_mode.h"

#include <pthread.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <csignal>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/numerics/flush_denormals.h"

namespace eps {
namespace {

// Returns the floating-point control of this thread, without the flags of past exceptions.
uint64_t FloatControl() {
#if defined(__SSE__)
  uint16_t x87 = 0;
  asm volatile("fnstcw %0" : "=m"(x87));
  return (_mm_getcsr() & ~uint64_t{0x3f}) | uint64_t{x87} << 32;
#elif defined(__aarch64__)
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#else
  return 0;
#endif
}

uint64_t BlockedSignals() {
  sigset_t set;
  pthread_sigmask(SIG_BLOCK, nullptr, &set);
  uint64_t mask = 0;
  for (int signal = 1; signal < 64; ++signal) {
    if (sigismember(&set, signal) == 1) mask |= uint64_t{1} << signal;
  }
  return mask;
}

}  // namespace

std::string FindModeChange(const std::string& name, bool blocked,
                           const std::function<void()>& call) {
  sigset_t set;
  sigemptyset(&set);
  if (blocked) sigfillset(&set);
  pthread_sigmask(SIG_SETMASK, &set, nullptr);
#if defined(__SSE__)
  _mm_setcsr(_MM_MASK_MASK);  // round to nearest
  asm volatile("fninit");
#endif
  const uint64_t signals = BlockedSignals();
  const ScopedFlushDenormals flush;
  const uint64_t before = FloatControl();
  call();
  const uint64_t after = FloatControl();
  if (after != before) {
    return absl::StrFormat("%s changes the floating-point control from 0x%x to 0x%x", name, before,
                           after);
  }
  if (BlockedSignals() == signals) return "";
  return absl::StrCat(name, " changes the mask of signals");
}

}  // namespace eps
