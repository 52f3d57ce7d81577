#ifndef EPS_STORAGE_DISK_STAGING_POOL_H_
#define EPS_STORAGE_DISK_STAGING_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps {

// A fixed number of equal buffers, aligned for direct I/O. Operations queue for them. Tensors pass
// between disk and kernels only through this memory. Thread-safe. The owner charges the memory to
// an account. The destructor REQUIRES that all buffers were released.
class StagingPool {
 public:
  using Use = std::function<void(uint8_t* buffer)>;

  // `executor` must outlive the pool. ResourceExhausted if the system lacks the memory.
  static absl::StatusOr<std::unique_ptr<StagingPool>> New(uint64_t buffer_bytes, uint64_t buffers,
                                                          Executor* executor) {
    EPS_CHECK(buffer_bytes % kDiskBlock == 0 && buffers > 0);
    std::unique_ptr<StagingPool> pool(new StagingPool(buffer_bytes, buffers, executor));
    EPS_ASSIGN_OR_RETURN(pool->memory_, StateArena::New(buffer_bytes * buffers));
    auto* const begin = reinterpret_cast<uint8_t*>(pool->memory_->floats());
    MutexLock lock(&pool->mu_);
    for (uint64_t i = buffers; i > 0; --i) pool->free_.push_back(begin + (i - 1) * buffer_bytes);
    return pool;
  }

  uint64_t buffer_bytes() const { return buffer_bytes_; }
  uint64_t buffers() const { return buffers_; }

  // Passes a buffer to `use` in that lane of the executor. Buffers that are released go to the
  // first lane that waits, and in each lane in call order. Never blocks. Release the buffer exactly
  // once.
  void Acquire(Lane lane, Use use) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (free_.empty()) {
      waiting_.Push(lane, {lane, std::move(use)});
      return;
    }
    Give(free_.back(), {lane, std::move(use)});
    free_.pop_back();
  }
  void Release(uint8_t* buffer) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (waiting_.empty()) {
      free_.push_back(buffer);
      return;
    }
    Give(buffer, waiting_.Pop());
  }

 private:
  // A call of Acquire.
  struct Waiting {
    Lane lane;
    Use use;
  };

  StagingPool(uint64_t buffer_bytes, uint64_t buffers, Executor* executor)
      : buffer_bytes_(buffer_bytes), buffers_(buffers), executor_(executor) {}

  void Give(uint8_t* buffer, Waiting to) {
    executor_->lane(to.lane)->Post([buffer, use = std::move(to.use)] { use(buffer); });
  }

  const uint64_t buffer_bytes_;
  const uint64_t buffers_;
  Executor* const executor_;
  std::unique_ptr<StateArena> memory_;
  Mutex mu_;
  std::vector<uint8_t*> free_ EPS_GUARDED_BY(mu_);
  LaneQueue<Waiting> waiting_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_STORAGE_DISK_STAGING_POOL_H_
