#ifndef EPS_STORAGE_CSD_TESTING_HELD_STORES_H_
#define EPS_STORAGE_CSD_TESTING_HELD_STORES_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "storage/csd/device.h"

namespace eps {

// A device that begins each store from its memory to its medium after the next transfer by the
// host, or a few milliseconds later if none comes. A host that reads from the medium before the
// store has completed finds the old bytes. Thread-safe, like the device that it owns.
class HeldStores final : public Device {
 public:
  explicit HeldStores(std::unique_ptr<Device> device)
      : device_(std::move(device)), thread_([this] { Run(); }) {}
  ~HeldStores() override {
    {
      MutexLock lock(&mu_);
      ending_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }

  const DeviceInfo& info() const override { return device_->info(); }
  absl::StatusOr<Place> Allocate(uint64_t bytes) override { return device_->Allocate(bytes); }
  void HostWrite(absl::Span<const uint8_t> from, Place to, Purpose purpose, Done done) override {
    device_->HostWrite(from, to, purpose, Counting(std::move(done)));
  }
  void HostRead(Place from, absl::Span<uint8_t> into, Purpose purpose, Done done) override {
    device_->HostRead(from, into, purpose, Counting(std::move(done)));
  }
  void Copy(Place from, Place to, uint64_t bytes, Purpose purpose, Done done) override {
    if (to.where != Place::Where::kMedia) {
      return device_->Copy(from, to, bytes, purpose, std::move(done));
    }
    {
      MutexLock lock(&mu_);
      stores_.push_back({transfers_, [=, done = std::move(done)]() mutable {
                           device_->Copy(from, to, bytes, purpose, std::move(done));
                         }});
    }
    changed_.NotifyAll();
  }
  void Run(std::string kernel, Place memory, uint64_t bytes, KernelDone done) override {
    device_->Run(std::move(kernel), memory, bytes, std::move(done));
  }
  void Sync(Done done) override { device_->Sync(std::move(done)); }
  LinkBytes link_bytes() const override { return device_->link_bytes(); }

 private:
  static constexpr std::chrono::milliseconds kPatience{3};

  // A store that was asked for.
  struct Store {
    uint64_t transfers;  // that had completed when it was asked for
    std::function<void()> begin;
  };

  Done Counting(Done done) {
    return [this, done = std::move(done)](absl::Status status) {
      {
        MutexLock lock(&mu_);
        ++transfers_;
      }
      changed_.NotifyAll();
      done(std::move(status));
    };
  }

  // Begins the stores, in their order.
  void Run() {
    MutexLock lock(&mu_);
    while (!ending_) {
      if (stores_.empty()) {
        changed_.WaitFor(&mu_, std::chrono::seconds(1));
        continue;
      }
      Store store = std::move(stores_.front());
      stores_.pop_front();
      const auto deadline = std::chrono::steady_clock::now() + kPatience;
      while (transfers_ == store.transfers && changed_.WaitUntil(&mu_, deadline)) {
      }
      mu_.Unlock();
      store.begin();
      mu_.Lock();
    }
  }

  const std::unique_ptr<Device> device_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Store> stores_ EPS_GUARDED_BY(mu_);
  uint64_t transfers_ EPS_GUARDED_BY(mu_) = 0;  // by the host, completed
  bool ending_ EPS_GUARDED_BY(mu_) = false;
  std::thread thread_;  // the last: it uses the other members
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_TESTING_HELD_STORES_H_
