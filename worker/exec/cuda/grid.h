#ifndef EPS_WORKER_EXEC_CUDA_GRID_H_
#define EPS_WORKER_EXEC_CUDA_GRID_H_

// Defines the form of kernels that a CPU can run too. The code of a kernel is a Body,
//
//   struct Body {
//     struct Args { ... };            // by value, at most 4 KB
//     struct Shared { ... };          // of one thread block; initially arbitrary
//     static constexpr int kPhases;   // number of parts, separated by barriers of the thread block
//     static void Run(int phase, const Args&, Shared*, uint32_t block, uint32_t thread);
//   };
//
// and only shared and device memory carry data from phase to phase. device_grid.h runs a Body on a
// device; simulated_grid.h runs it in loops, with threads in any order; threaded_grid.h runs a CPU
// thread for each thread of a device. A call's launches are a function of a launcher, whose
//
//   template <class Body> int Run(uint32_t blocks, const typename Body::Args& args);
//
// enqueues one kernel of `blocks` blocks of kThreads threads and returns 0 or an error.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "worker/exec/cuda/elementwise.h"

namespace eps::grid {

constexpr uint32_t kThreads = 256;
// The maximum number of blocks for kernels whose threads step through the elements: enough to fill
// every multiprocessor several times.
constexpr uint32_t kMaxBlocks = 4096;
// The value that launch functions return for invalid arguments: cudaErrorInvalidValue.
constexpr int kInvalidValue = 1;

EPS_HOST_DEVICE inline uint64_t DivideUp(uint64_t n, uint64_t by) { return (n + by - 1) / by; }

inline uint32_t BlocksFor(uint64_t n) {
  const uint64_t blocks = DivideUp(n, kThreads);
  return static_cast<uint32_t>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

// Adds to a counter to which other threads add at the same time. With integers the sum does not
// depend on the order, and no thread reads the previous value.
EPS_HOST_DEVICE inline void AddTo(uint32_t* counter, uint32_t amount) {
#if defined(__CUDA_ARCH__)
  atomicAdd(counter, amount);
#else
  __atomic_fetch_add(counter, amount, __ATOMIC_RELAXED);
#endif
}

// Sums over the threads of a block, in three phases: each thread writes its value to counts, then
// calls AddUp, and then Before and Total are available.
struct BlockSum {
  static constexpr uint32_t kRun = 16;
  uint32_t counts[kThreads];
  uint32_t sums[kThreads / kRun];

  EPS_HOST_DEVICE void AddUp(uint32_t thread) {
    if (thread >= kThreads / kRun) return;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kRun; ++i) sum += counts[thread * kRun + i];
    sums[thread] = sum;
  }
  // Returns the sum of all threads before this one.
  EPS_HOST_DEVICE uint32_t Before(uint32_t thread) const {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < thread / kRun; ++i) sum += sums[i];
    for (uint32_t i = thread / kRun * kRun; i < thread; ++i) sum += counts[i];
    return sum;
  }
  EPS_HOST_DEVICE uint32_t Total() const {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kThreads / kRun; ++i) sum += sums[i];
    return sum;
  }
};

EPS_HOST_DEVICE inline uint32_t MisalignmentOf(const void* p) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p) % 4);
}

// Does this thread's share of a copy by all threads of a block, in words where possible. REQUIRES
// MisalignmentOf(from) == MisalignmentOf(to).
EPS_HOST_DEVICE inline void CopyTogether(const uint8_t* from, uint32_t bytes, uint8_t* to,
                                         uint32_t thread) {
  uint32_t head = (4 - MisalignmentOf(to)) % 4;
  if (head > bytes) head = bytes;
  const uint32_t words = (bytes - head) / 4;
  for (uint32_t i = thread; i < words; i += kThreads) {
    uint32_t word;
    memcpy(&word, __builtin_assume_aligned(from + head + 4 * i, 4), 4);
    memcpy(__builtin_assume_aligned(to + head + 4 * i, 4), &word, 4);
  }
  if (thread < head) to[thread] = from[thread];
  const uint32_t tail = head + 4 * words;
  if (thread < bytes - tail) to[tail + thread] = from[tail + thread];
}

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_GRID_H_
