#ifndef EPS_BASE_NUMERICS_FLUSH_DENORMALS_H_
#define EPS_BASE_NUMERICS_FLUSH_DENORMALS_H_

#include <cstdint>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace eps {

// While alive, the calling thread flushes denormal results to zero and reads denormal inputs as
// zero (x86 FTZ + DAZ, AArch64 FZ). Every thread that computes on weights or gradients holds one:
// it affects the bits, and denormals make the optimizer 16 times slower.
class ScopedFlushDenormals {
 public:
#if defined(__SSE__)
  ScopedFlushDenormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(static_cast<unsigned>(saved_) | 0x8040u);
  }
  ~ScopedFlushDenormals() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
  ScopedFlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (uint64_t{1} << 24)));
  }
  ~ScopedFlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#endif
  ScopedFlushDenormals(const ScopedFlushDenormals&) = delete;
  ScopedFlushDenormals& operator=(const ScopedFlushDenormals&) = delete;

 private:
  uint64_t saved_ = 0;
};

}  // namespace eps

#endif  // EPS_BASE_NUMERICS_FLUSH_DENORMALS_H_
