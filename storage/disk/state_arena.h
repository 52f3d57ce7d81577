#ifndef EPS_STORAGE_DISK_STATE_ARENA_H_
#define EPS_STORAGE_DISK_STATE_ARENA_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace eps {

// A region of prefaulted memory, on huge pages if the kernel has them. The first access to a page
// costs far more than an update, so it happens here, before training. Owns the region;
// thread-compatible.
class StateArena {
 public:
  // Returns a zero-filled region. ResourceExhausted with the size and the system's reason.
  static absl::StatusOr<std::unique_ptr<StateArena>> New(size_t size);
  ~StateArena();
  StateArena(const StateArena&) = delete;
  StateArena& operator=(const StateArena&) = delete;

  // Returns the begin of the region, aligned to at least a cache line.
  float* floats() { return static_cast<float*>(begin_); }

 private:
  StateArena(void* mapped, size_t mapped_size, void* begin)
      : mapped_(mapped), mapped_size_(mapped_size), begin_(begin) {}

  void* const mapped_;
  const size_t mapped_size_;
  void* const begin_;
};

}  // namespace eps

#endif  // EPS_STORAGE_DISK_STATE_ARENA_H_
