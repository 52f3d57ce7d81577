#include "worker/exec/testing/simulated_queues.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ATen/ops/from_blob.h"
#include "base/check.h"

namespace eps {
namespace {

constexpr uint8_t kOverwritten = 0xff;  // a float of these bytes is NaN

// Becomes true when the simulation reaches it.
class SimulatedEvent final : public DeviceEvent {
 public:
  SimulatedEvent(SimulatedQueues* queues, DeviceQueue queue) : queues_(queues), queue_(queue) {}
  // Each call lets the device run some operations.
  bool done() const override {
    if (!*done_) queues_->Advance();
    return *done_;
  }
  // Ignores the deadline: a simulation does not hang, and Advance detects deadlocked queues.
  bool WaitUntil(std::chrono::steady_clock::time_point) const override {
    if (!*done_) queues_->CountHostWait(queue_);
    while (!done()) {
    }
    return true;
  }
  const std::shared_ptr<bool>& flag() const { return done_; }

 private:
  SimulatedQueues* const queues_;
  const DeviceQueue queue_;
  const std::shared_ptr<bool> done_ = std::make_shared<bool>(false);
};

size_t IndexOf(DeviceQueue queue) { return static_cast<size_t>(queue); }

}  // namespace

at::Tensor SimulatedQueues::NewBlock(at::IntArrayRef shape, at::ScalarType type, bool on_device,
                                     ByQueue<bool> users) {
  size_t elements = 1;
  for (const int64_t n : shape) elements *= static_cast<size_t>(n);
  Block& block = blocks_.emplace_back();
  block.bytes.assign(elements * c10::elementSize(type), kOverwritten);
  block.on_device = on_device;
  block.users = users;
  if (on_device) {
    device_bytes_ += block.bytes.size();
    peak_device_bytes_ = std::max(peak_device_bytes_, device_bytes_);
  }
  return at::from_blob(
      block.bytes.data(), shape, [this, &block](void*) { Drop(&block); },
      at::TensorOptions().dtype(type));
}

at::Tensor SimulatedQueues::New(DeviceQueue queue, at::IntArrayRef shape, at::ScalarType type) {
  ByQueue<bool> users{};
  users[IndexOf(queue)] = true;
  return NewBlock(shape, type, /*on_device=*/true, users);
}

at::Tensor SimulatedQueues::NewPinned(uint64_t bytes) {
  pinned_bytes_ += bytes;
  return NewBlock({static_cast<int64_t>(bytes)}, at::kByte, /*on_device=*/false, ByQueue<bool>{});
}

void SimulatedQueues::KeepFor(DeviceQueue user, const at::Tensor& tensor) {
  for (Block& block : blocks_) {
    if (block.bytes.data() != tensor.storage().data()) continue;
    block.users[IndexOf(user)] = true;
    return;
  }
  EPS_CHECK_MSG(false, "memory that these queues did not allocate");
}

void SimulatedQueues::Copy(DeviceQueue queue, const at::Tensor& from, const at::Tensor& to) {
  EPS_CHECK(from.nbytes() == to.nbytes() && from.is_contiguous() && to.is_contiguous());
  void* const target = to.mutable_data_ptr();
  const void* const source = from.const_data_ptr();
  Enqueue(queue, [target, source, n = from.nbytes()] { std::memcpy(target, source, n); });
}

void SimulatedQueues::Decode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
                             const at::Tensor& out) {
  const void* const from = in.const_data_ptr();
  void* const to = out.mutable_data_ptr();
  const at::ScalarType type = out.scalar_type();
  Enqueue(queue, [code, from, to, type] { DecodeOnGrid(code, from, type, to); });
}

void SimulatedQueues::Encode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
                             const at::Tensor& out) {
  const float* const from = in.const_data_ptr<float>();
  void* const to = out.mutable_data_ptr();
  Enqueue(queue, [code, from, to] { EncodeOnGrid(code, from, to); });
}

void SimulatedQueues::Checksum(DeviceQueue queue, const at::Tensor& in, const at::Tensor& out) {
  const void* const from = in.const_data_ptr();
  void* const to = out.mutable_data_ptr();
  Enqueue(queue, [from, to, n = in.nbytes()] { ChecksumOnGrid(from, n, to); });
}

DeviceEventPtr SimulatedQueues::Record(DeviceQueue queue) {
  auto event = std::make_shared<SimulatedEvent>(this, queue);
  Enqueue(queue, [flag = event->flag()] { *flag = true; });
  return event;
}

void SimulatedQueues::Await(DeviceQueue queue, const DeviceEventPtr& event) {
  Enqueue(
      queue, [] {}, static_cast<const SimulatedEvent&>(*event).flag());
}

void SimulatedQueues::Enqueue(DeviceQueue queue, std::function<void()> work,
                              std::shared_ptr<const bool> after) {
  queues_[IndexOf(queue)].push_back({std::move(work), std::move(after)});
  ++enqueued_[IndexOf(queue)];
}

void SimulatedQueues::Advance() {
  for (uint32_t steps = random_() % 4; steps > 0; --steps) {
    std::vector<size_t> ready;
    for (size_t q = 0; q < queues_.size(); ++q) {
      if (queues_[q].empty()) continue;
      const Operation& next = queues_[q].front();
      if (next.after == nullptr || *next.after) ready.push_back(q);
    }
    EPS_CHECK_MSG(!ready.empty() || pending() == 0, "the queues wait for each other");
    if (ready.empty()) return;
    const size_t q = ready[random_() % ready.size()];
    const Operation operation = std::move(queues_[q].front());
    queues_[q].pop_front();
    operation.work();
    ++executed_[q];
    Reuse();
  }
}

size_t SimulatedQueues::pending() const {
  size_t operations = 0;
  for (const std::deque<Operation>& queue : queues_) operations += queue.size();
  return operations;
}

void SimulatedQueues::Drop(Block* block) {
  dropped_.push_back(block);
  for (size_t q = 0; q < queues_.size(); ++q) {
    if (block->users[q]) block->until[q] = enqueued_[q];
  }
  Reuse();
}

void SimulatedQueues::Reuse() {
  const auto in_use = [this](const Block* block) {
    for (size_t q = 0; q < queues_.size(); ++q) {
      if (executed_[q] < block->until[q]) return true;
    }
    return false;
  };
  const auto free = std::partition(dropped_.begin(), dropped_.end(), in_use);
  for (auto it = free; it != dropped_.end(); ++it) {
    std::fill((*it)->bytes.begin(), (*it)->bytes.end(), kOverwritten);
    if ((*it)->on_device) device_bytes_ -= (*it)->bytes.size();
  }
  dropped_.erase(free, dropped_.end());
}

}  // namespace eps
