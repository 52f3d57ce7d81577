#ifndef EPS_STORAGE_BACKENDS_NEAR_BUFFER_GATES_H_
#define EPS_STORAGE_BACKENDS_NEAR_BUFFER_GATES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace eps::durable {

// The buffers of a set that still hold a chunk: the next chunk takes each over as soon as it is
// free (Smart-Infinity, section 4.2, the transfer handler). Thread-safe; it calls back without its
// lock.
class BufferGates : public std::enable_shared_from_this<BufferGates> {
 public:
  using Then = std::function<void()>;

  // None of the buffers is free yet. Buffers of two chunks match if the chunks' arrays are equally
  // long, `array_bytes`.
  BufferGates(size_t buffers, uint64_t array_bytes)
      : array_bytes_(array_bytes), count_(buffers), buffers_(buffers) {}

  uint64_t array_bytes() const { return array_bytes_; }

  // Does nothing if it is free already.
  void Free(size_t buffer) EPS_EXCLUDES(mu_) {
    std::vector<Then> waiting;
    {
      MutexLock lock(&mu_);
      buffers_[buffer].free = true;
      waiting = std::exchange(buffers_[buffer].waiting, {});
    }
    for (const Then& then : waiting) then();
  }
  // The first buffer has the weights, and the last, which had the gradient, their encodings.
  void FreeWeights() {
    Free(0);
    Free(count_ - 1);
  }
  // Calls `then` when the buffer is free: here, or in Free.
  void When(size_t buffer, Then then) EPS_EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (!buffers_[buffer].free) return buffers_[buffer].waiting.push_back(std::move(then));
    }
    then();
  }
  // The same for all buffers.
  void WhenAll(Then then) { WhenAllFrom(0, std::move(then)); }

 private:
  // One buffer, and who waits for it.
  struct Buffer {
    bool free = false;
    std::vector<Then> waiting;
  };

  void WhenAllFrom(size_t first, Then then) {
    if (first == count_) return then();
    When(first, [self = shared_from_this(), first, then = std::move(then)] {
      self->WhenAllFrom(first + 1, then);
    });
  }

  const uint64_t array_bytes_;
  const size_t count_;
  Mutex mu_;
  std::vector<Buffer> buffers_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_NEAR_BUFFER_GATES_H_
