#include "worker/exec/device_copies.h"

#include <chrono>

#include "base/check.h"
#include "c10/util/Exception.h"
#include "worker/exec/torch_guard.h"

namespace eps {
namespace {

using at::Tensor;

constexpr size_t kBuffers = 2;
constexpr size_t kMicroBatchesAhead = 2;
constexpr std::chrono::minutes kDeviceTimeout{5};

}  // namespace

void WaitFor(const DeviceEvent& event) {
  TORCH_CHECK(event.WaitUntil(std::chrono::steady_clock::now() + kDeviceTimeout),
              "the device has not done its work for ", kDeviceTimeout.count(), " minutes");
}

DeviceCopies::DeviceCopies(std::unique_ptr<DeviceQueues> queues, uint64_t stage_bytes)
    : queues_(std::move(queues)), stage_bytes_(static_cast<int64_t>(stage_bytes)) {}

DeviceCopies::~DeviceCopies() {
  // If the device fails here, an earlier call has already reported it.
  static_cast<void>(CatchTorch("waiting for the device", [&] {
    for (const DeviceQueue queue :
         {DeviceQueue::kCompute, DeviceQueue::kToDevice, DeviceQueue::kToHost}) {
      WaitFor(*queues_->Record(queue));
    }
  }));
}

DeviceCopies::Buffer* DeviceCopies::FreeBuffer() {
  if (buffers_.size() >= kBuffers) {
    for (Buffer& buffer : buffers_) {
      if (!buffer.in_use) return &buffer;
    }
  }
  Buffer& buffer = buffers_.emplace_back();
  buffer.memory = queues_->New(DeviceQueue::kToDevice, {stage_bytes_}, at::kByte);
  return &buffer;
}

void DeviceCopies::ReleaseHostMemory() {
  for (Buffer& buffer : buffers_) {
    if (buffer.host != nullptr && buffer.copied->done()) buffer.host = nullptr;
  }
}

std::shared_ptr<const DeviceCopies::LoadedStage> DeviceCopies::LoadStage(
    const Tensor& pinned, std::shared_ptr<void> host) {
  EPS_CHECK(pinned.nbytes() <= static_cast<size_t>(stage_bytes_));
  Buffer* const buffer = FreeBuffer();
  if (buffer->read != nullptr) WaitFor(*buffer->read);
  ReleaseHostMemory();
  const Tensor bytes = buffer->memory.narrow(0, 0, pinned.numel());
  buffer->host = std::move(host);
  queues_->Copy(DeviceQueue::kToDevice, pinned, bytes);
  buffer->copied = queues_->Record(DeviceQueue::kToDevice);
  queues_->Await(DeviceQueue::kCompute, buffer->copied);
  buffer->in_use = true;
  return std::make_shared<const LoadedStage>(this, buffer, bytes);
}

void DeviceCopies::Release(Buffer* buffer) {
  // Without an event it is unknown when the buffer becomes free, so do not reuse it. The next call
  // that enqueues work reports the device's error.
  const absl::Status recorded = CatchTorch(
      "releasing a stage", [&] { buffer->read = queues_->Record(DeviceQueue::kCompute); });
  buffer->in_use = !recorded.ok();
  for (auto it = buffers_.begin(); it != buffers_.end(); ++it) {
    if (&*it != buffer) continue;
    buffers_.splice(buffers_.end(), buffers_, it);
    return;
  }
}

DeviceCopies::Stashed DeviceCopies::CopyToStash(const Tensor& on_device) {
  Stashed stashed;
  stashed.host = queues_->NewPinned(on_device.sizes(), on_device.scalar_type());
  stashed.copied = CopyToHost({{on_device, stashed.host}});
  return stashed;
}

Tensor DeviceCopies::CopyFromStash(const Stashed& stashed) {
  queues_->Await(DeviceQueue::kToDevice, stashed.copied);
  Tensor tensor =
      queues_->New(DeviceQueue::kToDevice, stashed.host.sizes(), stashed.host.scalar_type());
  queues_->Copy(DeviceQueue::kToDevice, stashed.host, tensor);
  queues_->Await(DeviceQueue::kCompute, queues_->Record(DeviceQueue::kToDevice));
  queues_->KeepFor(DeviceQueue::kCompute, tensor);
  return tensor;
}

DeviceEventPtr DeviceCopies::CopyToHost(const std::vector<std::pair<Tensor, Tensor>>& copies) {
  queues_->Await(DeviceQueue::kToHost, queues_->Record(DeviceQueue::kCompute));
  for (const auto& [from, to] : copies) {
    queues_->Copy(DeviceQueue::kToHost, from, to);
    queues_->KeepFor(DeviceQueue::kToHost, from);
  }
  return queues_->Record(DeviceQueue::kToHost);
}

void DeviceCopies::EndOfMicroBatch() {
  // Includes copies to the host: they may be slower than computing, and hold the memory they read.
  micro_batches_.push_back(
      {queues_->Record(DeviceQueue::kCompute), queues_->Record(DeviceQueue::kToHost)});
  if (micro_batches_.size() <= kMicroBatchesAhead) return;
  for (const DeviceEventPtr& event : micro_batches_.front()) WaitFor(*event);
  micro_batches_.pop_front();
}

}  // namespace eps
