#ifndef EPS_WORKER_EXEC_TENSOR_MEMORY_H_
#define EPS_WORKER_EXEC_TENSOR_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.h"

namespace eps {

// Memory of LibTorch's tensors on a CPU. Counts it, and keeps large freed blocks for the next
// tensor of about the same size: the system's allocator returns large blocks to the kernel at once,
// and faulting them in again for every micro-batch costs more than computing on them.
//
// Idle blocks never exceed the peak of live bytes, so the process holds at most twice what its
// tensors needed. One object per process, because LibTorch has one CPU allocator. Thread-safe.
class TensorMemory {
 public:
  // Returns the process's object. The first call makes LibTorch use it.
  static TensorMemory& Get();

  uint64_t live_bytes() const { return live_.load(std::memory_order_relaxed); }
  uint64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  // Starts a new peak from the bytes that are live now.
  void ResetPeak() { peak_.store(live_bytes(), std::memory_order_relaxed); }
  // Corrects the count for memory that a device would hold but that is elsewhere on a CPU, or the
  // reverse: +bytes for weights computed on in place, -bytes for a tensor that moved to the stash.
  void Adjust(int64_t bytes);

  // 64-byte aligned, uninitialised. Returns null for 0 bytes; throws std::bad_alloc if out of
  // memory.
  void* Allocate(size_t bytes);
  void Free(void* data);
  // Counts a block of Allocate no longer, which stays valid until it is freed; returns its bytes.
  uint64_t Exclude(void* data);

 private:
  TensorMemory() = default;

  std::atomic<uint64_t> live_{0};
  std::atomic<uint64_t> peak_{0};
  Mutex mu_;
  std::map<size_t, std::vector<void*>> idle_ EPS_GUARDED_BY(mu_);  // by size class
  uint64_t idle_bytes_ EPS_GUARDED_BY(mu_) = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TENSOR_MEMORY_H_
