#ifndef EPS_WORKER_EXEC_TESTING_SIMULATED_QUEUES_H_
#define EPS_WORKER_EXEC_TESTING_SIMULATED_QUEUES_H_

// A device for tests on a CPU. Its queues run operations later, in an order drawn at random among
// those that the events allow. It overwrites reusable memory at the first moment at which a device
// could reuse it. Code that forgets an event or frees memory too early thus computes wrong numbers
// for some seed.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "worker/exec/testing/test_queues.h"

namespace eps {

// Queues that run in the process of the test. Thread-compatible.
class SimulatedQueues final : public TestQueues {
 public:
  explicit SimulatedQueues(uint32_t seed) : random_(seed) {}

  at::Tensor New(DeviceQueue queue, at::IntArrayRef shape, at::ScalarType type) override;
  void KeepFor(DeviceQueue user, const at::Tensor& tensor) override;
  // Overwrites the memory when the tensor is destroyed.
  at::Tensor NewPinned(uint64_t bytes) override;
  bool Reaches(absl::Span<const uint8_t>) override { return reaches_; }
  void Copy(DeviceQueue queue, const at::Tensor& from, const at::Tensor& to) override;
  bool has_codecs() const override { return true; }
  void Decode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
              const at::Tensor& out) override;
  void Encode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
              const at::Tensor& out) override;
  void Checksum(DeviceQueue queue, const at::Tensor& in, const at::Tensor& out) override;
  DeviceEventPtr Record(DeviceQueue queue) override;
  DeviceEventPtr RecordTime(DeviceQueue queue) override { return Record(queue); }
  void Await(DeviceQueue queue, const DeviceEventPtr& event) override;

  void Compute(std::function<void()> work, double /*operations*/) override {
    Enqueue(DeviceQueue::kCompute, std::move(work));
  }
  // From now on the device reaches all memory of the host.
  void ReachEverything() { reaches_ = true; }
  // Runs some of the enqueued operations.
  void Advance();

  // Returns the most bytes of the device that were in use at once.
  uint64_t peak_device_bytes() const { return peak_device_bytes_; }
  // Returns the bytes of all calls of NewPinned.
  uint64_t pinned_bytes() const { return pinned_bytes_; }
  // Returns the number of operations enqueued and not done.
  size_t pending() const;
  // Returns how often the host has waited for an event of `queue` that was not done.
  int host_waits(DeviceQueue queue) const { return host_waits_[static_cast<size_t>(queue)]; }
  void CountHostWait(DeviceQueue queue) { ++host_waits_[static_cast<size_t>(queue)]; }

 private:
  template <class T>
  using ByQueue = std::array<T, kDeviceQueues>;

  // An entry of a queue.
  struct Operation {
    std::function<void()> work;
    std::shared_ptr<const bool> after;  // runs once this is true; null does not wait
  };
  // The memory of one tensor.
  struct Block {
    std::vector<uint8_t> bytes;
    bool on_device = false;
    ByQueue<bool> users{};      // queues whose operations use the memory
    ByQueue<uint64_t> until{};  // operations of each queue to finish before it is free
  };

  at::Tensor NewBlock(at::IntArrayRef shape, at::ScalarType type, bool on_device,
                      ByQueue<bool> users);
  void Enqueue(DeviceQueue queue, std::function<void()> work,
               std::shared_ptr<const bool> after = nullptr);
  void Drop(Block* block);
  // Overwrites blocks that have become free.
  void Reuse();

  std::mt19937 random_;
  bool reaches_ = false;
  ByQueue<std::deque<Operation>> queues_;
  ByQueue<uint64_t> enqueued_{};
  ByQueue<uint64_t> executed_{};
  std::deque<Block> blocks_;     // including free ones
  std::vector<Block*> dropped_;  // dropped, but not yet free
  uint64_t device_bytes_ = 0;
  uint64_t peak_device_bytes_ = 0;
  uint64_t pinned_bytes_ = 0;
  ByQueue<int> host_waits_{};
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TESTING_SIMULATED_QUEUES_H_
