#include "wire/shm/shared_arena.h"

#include "absl/types/optional.h"

namespace eps {

std::shared_ptr<uint8_t> SharedArena::Allocate(size_t size) {
  absl::optional<uint64_t> begin;
  {
    MutexLock lock(&mu_);
    begin = ranges_.Take(size);
  }
  if (!begin.has_value()) return nullptr;
  return std::shared_ptr<uint8_t>(segment_->data() + *begin,
                                  [arena = shared_from_this(), begin = *begin](uint8_t*) {
                                    MutexLock lock(&arena->mu_);
                                    arena->ranges_.Return(begin);
                                  });
}

}  // namespace eps
