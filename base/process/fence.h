#ifndef EPS_BASE_PROCESS_FENCE_H_
#define EPS_BASE_PROCESS_FENCE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace eps {

// The limits of a fenced process.
struct FenceOptions {
  // The memory that it may still allocate.
  uint64_t scratch_bytes = uint64_t{16} << 20;
  // Whether the kernel also kills a process that asks for a mapping, instead of refusing it as if
  // the memory were full. The heap asks for one when it cannot grow.
  bool kills_mappings = false;
};

// Call this first in main, before any thread starts: the heap of a fenced process is one arena that
// is there already, because a thread cannot map another one.
void PrepareForFence();

// Call this before code that others wrote is loaded into this process. From now on, the kernel
// kills the process with SIGSYS if a thread opens a file for writing, changes a folder, makes a
// socket or a process, signals or watches another process, or uses io_uring. Open files stay
// usable; libraries can be loaded, memory mapped and threads started. Does nothing in a build with
// a sanitizer, whose runtime starts a process at its end. Internal with the reason if the kernel
// refuses.
absl::Status FenceLoading();

// From now on, no thread of this process can open a file or a socket, map or share memory, start a
// process or use io_uring: the kernel kills the process with SIGSYS. It can read and write what it
// has open, wait, and allocate options.scratch_bytes more from the heap. Threads must have been
// started and files opened before. Does nothing in a build with a sanitizer, whose runtime maps
// memory all the time. Internal with the reason if the kernel refuses.
absl::Status FenceProcess(const FenceOptions& options = {});

}  // namespace eps

#endif  // EPS_BASE_PROCESS_FENCE_H_
