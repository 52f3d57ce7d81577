#ifndef EPS_STORAGE_BACKENDS_NEAR_MEMORY_SETS_H_
#define EPS_STORAGE_BACKENDS_NEAR_MEMORY_SETS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "storage/backends/in_flight.h"
#include "storage/csd/device.h"

namespace eps::durable {

// A fixed number of equal places in the memory of one device, each for one operation at a time.
// Operations queue for them. Thread-safe.
class MemorySets {
 public:
  using Use = std::function<void(Place)>;

  // `device` and `in_flight` must outlive the sets. ResourceExhausted if the device has too little
  // memory.
  static absl::StatusOr<std::unique_ptr<MemorySets>> New(Device* device, uint64_t bytes, int sets,
                                                         InFlight* in_flight) {
    std::unique_ptr<MemorySets> result(new MemorySets(device, bytes, in_flight));
    for (int i = 0; i < sets; ++i) {
      EPS_ASSIGN_OR_RETURN(const Place place, device->Allocate(bytes));
      MutexLock lock(&result->mu_);
      result->free_.push_back(place);
    }
    return result;
  }

  Device* device() const { return device_; }
  uint64_t bytes() const { return bytes_; }  // of one set

  // Passes a set to `use` in that lane of the executor, in call order within the lane. Release it
  // exactly once.
  void Acquire(Lane lane, Use use) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    waiting_.Push(lane, {lane, std::move(use)});
    Give();
  }
  void Release(Place place) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    free_.push_back(place);
    Give();
  }

 private:
  // A call of Acquire.
  struct Waiting {
    Lane lane;
    Use use;
  };

  MemorySets(Device* device, uint64_t bytes, InFlight* in_flight)
      : device_(device), bytes_(bytes), in_flight_(in_flight) {}

  void Give() EPS_REQUIRES(mu_) {
    if (free_.empty() || waiting_.empty()) return;
    Waiting next = waiting_.Pop();
    in_flight_->executor(next.lane)->Post(
        [use = std::move(next.use), place = free_.back()] { use(place); });
    free_.pop_back();
  }

  Device* const device_;
  const uint64_t bytes_;
  InFlight* const in_flight_;
  Mutex mu_;
  std::vector<Place> free_ EPS_GUARDED_BY(mu_);
  LaneQueue<Waiting> waiting_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_NEAR_MEMORY_SETS_H_
