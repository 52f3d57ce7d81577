#include "worker/exec/testing/timed_queues.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "ATen/ops/empty.h"
#include "base/check.h"

namespace eps {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

size_t IndexOf(DeviceQueue queue) { return static_cast<size_t>(queue); }

}  // namespace

// Done once the host's clock has reached its time.
class TimedQueues::Event final : public DeviceEvent {
 public:
  explicit Event(TimedQueues* queues) : queues_(queues) {}
  bool done() const override {
    while (at_ == kNever && queues_->RunFirst(queues_->now_)) {
    }
    return at_ <= queues_->now_;
  }
  bool WaitUntil(std::chrono::steady_clock::time_point) const override {
    while (at_ == kNever) {
      EPS_CHECK_MSG(queues_->RunFirst(kNever), "the queues wait for each other");
    }
    queues_->now_ = std::max(queues_->now_, at_);
    return true;
  }
  int64_t time_ns() const override { return static_cast<int64_t>(at_ * 1e9); }

  mutable double at_ = kNever;  // until the queue has reached it

 private:
  TimedQueues* const queues_;
};

at::Tensor TimedQueues::New(DeviceQueue, at::IntArrayRef shape, at::ScalarType type) {
  return at::empty(shape, at::TensorOptions().dtype(type));
}

at::Tensor TimedQueues::NewPinned(uint64_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

void TimedQueues::Copy(DeviceQueue queue, const at::Tensor& from, const at::Tensor& to) {
  EPS_CHECK(from.nbytes() == to.nbytes() && from.is_contiguous() && to.is_contiguous());
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  const bool out = queue == DeviceQueue::kGradients || queue == DeviceQueue::kStashOut;
  const auto bytes = static_cast<double>(from.nbytes());
  EnqueueWork(queue, bytes / (out ? rates_.bytes_out : rates_.bytes_in), out ? &out_ : &in_);
}

void TimedQueues::Decode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
                         const at::Tensor& out) {
  DecodeOnGrid(code, in.const_data_ptr(), out.scalar_type(), out.mutable_data_ptr());
  EnqueueWork(queue, static_cast<double>(out.numel()) / rates_.coded, nullptr);
}

void TimedQueues::Encode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
                         const at::Tensor& out) {
  EncodeOnGrid(code, in.const_data_ptr<float>(), out.mutable_data_ptr());
  EnqueueWork(queue, static_cast<double>(in.numel()) / rates_.coded, nullptr);
}

void TimedQueues::Checksum(DeviceQueue, const at::Tensor& in, const at::Tensor& out) {
  ChecksumOnGrid(in.const_data_ptr(), in.nbytes(), out.mutable_data_ptr());
}

DeviceEventPtr TimedQueues::Record(DeviceQueue queue) {
  auto event = std::make_shared<const Event>(this);
  Operation operation;
  operation.recorded = event;
  Enqueue(queue, std::move(operation));
  return event;
}

void TimedQueues::Await(DeviceQueue queue, const DeviceEventPtr& event) {
  Operation operation;
  operation.awaited = std::static_pointer_cast<const Event>(event);
  Enqueue(queue, std::move(operation));
}

void TimedQueues::Compute(std::function<void()> work, double operations) {
  work();
  EnqueueWork(DeviceQueue::kCompute, operations / rates_.operations, nullptr);
}

void TimedQueues::EnqueueWork(DeviceQueue queue, double seconds, Link* link_or_null) {
  Operation operation;
  operation.seconds = seconds;
  operation.link = link_or_null;
  Enqueue(queue, std::move(operation));
}

void TimedQueues::Enqueue(DeviceQueue queue, Operation operation) {
  operation.enqueued_at = now_;
  queues_[IndexOf(queue)].push_back(std::move(operation));
}

double TimedQueues::NextReady(size_t queue) const {
  if (queues_[queue].empty()) return kNever;
  const Operation& next = queues_[queue].front();
  const double ready = std::max(ends_[queue], next.enqueued_at);
  return next.awaited == nullptr ? ready : std::max(ready, next.awaited->at_);
}

double TimedQueues::NextStart(size_t queue) const {
  const double ready = NextReady(queue);
  if (ready == kNever || queues_[queue].front().link == nullptr) return ready;
  return std::max(ready, queues_[queue].front().link->free_at);
}

bool TimedQueues::RunFirst(double limit) {
  size_t first = 0;
  for (size_t queue = 1; queue < queues_.size(); ++queue) {
    if (std::make_pair(NextStart(queue), NextReady(queue)) <
        std::make_pair(NextStart(first), NextReady(first))) {
      first = queue;
    }
  }
  const double start = NextStart(first);
  if (start == kNever || start > limit) return false;
  const Operation operation = std::move(queues_[first].front());
  queues_[first].pop_front();
  ends_[first] = start + operation.seconds;
  if (operation.link != nullptr) operation.link->free_at = ends_[first];
  if (operation.recorded != nullptr) operation.recorded->at_ = ends_[first];
  return true;
}

}  // namespace eps
