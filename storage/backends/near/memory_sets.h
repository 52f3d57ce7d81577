#ifndef EPS_STORAGE_BACKENDS_NEAR_MEMORY_SETS_H_
#define EPS_STORAGE_BACKENDS_NEAR_MEMORY_SETS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "storage/csd/device.h"

namespace eps::durable {

// A fixed number of equal places in the memory of one device, each for one update at a time.
// Updates queue for them. Thread-safe.
class MemorySets {
 public:
  using Use = std::function<void(Place)>;

  // `device` and `executor` must outlive the sets. ResourceExhausted if the device has too little
  // memory.
  static absl::StatusOr<std::unique_ptr<MemorySets>> New(Device* device, uint64_t bytes, int sets,
                                                         Executor* executor) {
    std::unique_ptr<MemorySets> result(new MemorySets(device, bytes, executor));
    for (int i = 0; i < sets; ++i) {
      EPS_ASSIGN_OR_RETURN(const Place place, device->Allocate(bytes));
      MutexLock lock(&result->mu_);
      result->free_.push_back(place);
    }
    return result;
  }

  Device* device() const { return device_; }
  uint64_t bytes() const { return bytes_; }  // of one set

  // Passes a set to `use` on the executor, in call order. Release it exactly once.
  void Acquire(Use use) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    waiting_.push_back(std::move(use));
    Give();
  }
  void Release(Place place) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    free_.push_back(place);
    Give();
  }

 private:
  MemorySets(Device* device, uint64_t bytes, Executor* executor)
      : device_(device), bytes_(bytes), executor_(executor) {}

  void Give() EPS_REQUIRES(mu_) {
    if (free_.empty() || waiting_.empty()) return;
    executor_->Post([use = std::move(waiting_.front()), place = free_.back()] { use(place); });
    waiting_.pop_front();
    free_.pop_back();
  }

  Device* const device_;
  const uint64_t bytes_;
  Executor* const executor_;
  Mutex mu_;
  std::vector<Place> free_ EPS_GUARDED_BY(mu_);
  std::deque<Use> waiting_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_NEAR_MEMORY_SETS_H_
