#ifndef EPS_STORAGE_DISK_STATE_ARENA_H_
#define EPS_STORAGE_DISK_STATE_ARENA_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace eps {

// One region of memory of which every page was touched, on huge pages where the kernel has them:
// the first touch of a page costs far more than an update, so it is paid before training. Owns the
// region; thread-compatible.
class StateArena {
 public:
  // ResourceExhausted with the size and the system's reason. Content is zero.
  static absl::StatusOr<std::unique_ptr<StateArena>> New(size_t size);
  ~StateArena();
  StateArena(const StateArena&) = delete;
  StateArena& operator=(const StateArena&) = delete;

  // Aligned to at least a cache line.
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
