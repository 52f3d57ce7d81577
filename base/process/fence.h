#ifndef EPS_BASE_PROCESS_FENCE_H_
#define EPS_BASE_PROCESS_FENCE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace eps {

// The memory that a fenced process may still allocate.
inline constexpr uint64_t kFencedScratchBytes = uint64_t{16} << 20;

// Call this first in main, before any thread starts: the heap of a fenced process is one arena that
// is there already, because a thread cannot map another one.
void PrepareForFence();

// From now on, no thread of this process can open a file or a socket, map or share memory, start a
// process or use io_uring: the kernel kills the process with SIGSYS. It can read and write what it
// has open, wait, and allocate kFencedScratchBytes more from the heap. Threads must have been
// started and files opened before. Does nothing in a build with a sanitizer, whose runtime maps
// memory all the time. Internal with the reason if the kernel refuses.
absl::Status FenceProcess();

}  // namespace eps

#endif  // EPS_BASE_PROCESS_FENCE_H_
