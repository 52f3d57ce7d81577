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
#include "storage/backends/near/buffer_gates.h"
#include "storage/csd/device.h"

namespace eps::durable {

// A fixed number of equal places in the memory of one device, each for one operation at a time.
// Operations queue for them. Thread-safe.
class MemorySets {
 public:
  using Use = std::function<void(Place)>;
  using Gates = std::shared_ptr<BufferGates>;
  using UseEarly = std::function<void(Place, const Gates& gates_or_null)>;

  // `device` and `in_flight` must outlive the sets. ResourceExhausted if the device has too little
  // memory.
  static absl::StatusOr<std::unique_ptr<MemorySets>> New(Device* device, uint64_t bytes, int sets,
                                                         InFlight* in_flight) {
    std::unique_ptr<MemorySets> result(new MemorySets(device, bytes, in_flight));
    for (int i = 0; i < sets; ++i) {
      EPS_ASSIGN_OR_RETURN(const Place place, device->Allocate(bytes));
      MutexLock lock(&result->mu_);
      result->free_.push_back({place, nullptr});
    }
    return result;
  }

  Device* device() const { return device_; }
  uint64_t bytes() const { return bytes_; }  // of one set

  // Passes a set to `use` in that lane of the executor, in call order within the lane. Release it
  // exactly once.
  void Acquire(Lane lane, Use use) EPS_EXCLUDES(mu_) {
    AcquireEarly(lane, [this, lane, use = std::move(use)](Place place, const Gates& gates_or_null) {
      if (gates_or_null == nullptr) return use(place);
      in_flight_->Begin();
      gates_or_null->WhenAll([this, lane, use, place] {
        in_flight_->executor(lane)->Post([use, place] { use(place); });
        in_flight_->End();
      });
    });
  }
  // The same, but passes on a set whose buffers may not be free yet, with their gates.
  void AcquireEarly(Lane lane, UseEarly use) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    waiting_.Push(lane, {lane, std::move(use)});
    Give();
  }
  // If there are gates, they must open at some time.
  void Release(Place place, Gates gates_or_null = nullptr) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    free_.push_back({place, std::move(gates_or_null)});
    Give();
  }

 private:
  // A call of AcquireEarly.
  struct Waiting {
    Lane lane;
    UseEarly use;
  };
  // A set that nobody has.
  struct Free {
    Place place;
    Gates gates_or_null;
  };

  MemorySets(Device* device, uint64_t bytes, InFlight* in_flight)
      : device_(device), bytes_(bytes), in_flight_(in_flight) {}

  void Give() EPS_REQUIRES(mu_) {
    if (free_.empty() || waiting_.empty()) return;
    Waiting next = waiting_.Pop();
    in_flight_->executor(next.lane)->Post(
        [use = std::move(next.use), free = free_.back()] { use(free.place, free.gates_or_null); });
    free_.pop_back();
  }

  Device* const device_;
  const uint64_t bytes_;
  InFlight* const in_flight_;
  Mutex mu_;
  std::vector<Free> free_ EPS_GUARDED_BY(mu_);
  LaneQueue<Waiting> waiting_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_NEAR_MEMORY_SETS_H_
