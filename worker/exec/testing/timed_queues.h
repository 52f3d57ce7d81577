#ifndef EPS_WORKER_EXEC_TESTING_TIMED_QUEUES_H_
#define EPS_WORKER_EXEC_TESTING_TIMED_QUEUES_H_

// A device whose operations take a known time on a clock of its own. It does each operation when it
// is enqueued, so results never depend on times; the clock of the host advances only in waits.

#include <array>
#include <deque>
#include <functional>
#include <memory>

#include "worker/exec/testing/test_queues.h"

namespace eps {

// Rates per second of the device's clock.
struct DeviceRates {
  double operations = 1;
  double bytes_in = 1;   // of the link to the device
  double bytes_out = 1;  // of the link to the host
  double coded = 1;      // floats, decoded or encoded
};

// Thread-compatible.
class TimedQueues final : public TestQueues {
 public:
  explicit TimedQueues(const DeviceRates& rates) : rates_(rates) {}

  at::Tensor New(DeviceQueue queue, at::IntArrayRef shape, at::ScalarType type) override;
  void KeepFor(DeviceQueue, const at::Tensor&) override {}
  at::Tensor NewPinned(uint64_t bytes) override;
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
  void Compute(std::function<void()> work, double operations) override;

  // Returns the host's clock in seconds.
  double now() const { return now_; }

 private:
  class Event;
  // A link in one direction, which several queues share.
  struct Link {
    double free_at = 0;
  };
  // An entry of a queue: work, or an event to set or to wait for.
  struct Operation {
    double enqueued_at = 0;
    double seconds = 0;
    Link* link = nullptr;
    std::shared_ptr<const Event> awaited;
    std::shared_ptr<const Event> recorded;
  };

  void Enqueue(DeviceQueue queue, Operation operation);
  void EnqueueWork(DeviceQueue queue, double seconds, Link* link_or_null);
  // Returns when the next operation of a queue could start if its link were free; infinity if
  // nothing is there, or if it waits for an event whose time is not known yet.
  double NextReady(size_t queue) const;
  // Returns when it can start.
  double NextStart(size_t queue) const;
  // Runs the operation that starts first, if it starts by `limit`. Of those that a link could start
  // at the same time, the one that has waited longest is first. Returns whether it ran one.
  bool RunFirst(double limit);

  const DeviceRates rates_;
  double now_ = 0;
  std::array<std::deque<Operation>, kDeviceQueues> queues_;
  std::array<double, kDeviceQueues> ends_{};  // of the last operation, by queue
  Link in_;
  Link out_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TESTING_TIMED_QUEUES_H_
