#include "worker/exec/queues/device_copies.h"

#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "worker/exec/torch_guard.h"

namespace eps {
namespace {

using at::Tensor;

constexpr size_t kMicroBatchesAhead = 2;

}  // namespace

DeviceCopies::DeviceCopies(std::unique_ptr<DeviceQueues> queues, const SlotSizes& sizes,
                           MemoryAccount* account_or_null)
    : queues_(std::move(queues)),
      stash_memory_(queues_.get()),
      trace_(queues_.get()),
      slots_(queues_.get(), &codec_mu_, &trace_, sizes, account_or_null) {}

DeviceCopies::~DeviceCopies() {
  // If the device fails here, an earlier call has already reported it.
  static_cast<void>(CatchTorch("waiting for the device", [&] {
    for (size_t queue = 0; queue < kDeviceQueues; ++queue) {
      WaitFor(*queues_->Record(static_cast<DeviceQueue>(queue)));
    }
  }));
}

DeviceCopies::Stashed DeviceCopies::CopyToStash(const Tensor& on_device) {
  Stashed stashed;
  stashed.host = stash_memory_.New(on_device.sizes(), on_device.scalar_type());
  stashed.copied =
      CopyToHost(DeviceQueue::kStashOut, kDeviceStashSpan, {{on_device, stashed.host}});
  return stashed;
}

Tensor DeviceCopies::CopyFromStash(const Stashed& stashed) {
  queues_->Await(DeviceQueue::kStashIn, stashed.copied);
  Tensor tensor =
      queues_->New(DeviceQueue::kStashIn, stashed.host.sizes(), stashed.host.scalar_type());
  {
    const QueueTrace::Span span(&trace_, DeviceQueue::kStashIn, kDeviceUnstashSpan, SpanPlace());
    queues_->Copy(DeviceQueue::kStashIn, stashed.host, tensor);
  }
  queues_->Await(DeviceQueue::kCompute, queues_->Record(DeviceQueue::kStashIn));
  queues_->KeepFor(DeviceQueue::kCompute, tensor);
  return tensor;
}

DeviceEventPtr DeviceCopies::CopyGradients(const std::vector<std::pair<Tensor, Tensor>>& copies) {
  return CopyToHost(DeviceQueue::kGradients, kDeviceGradientSpan, copies);
}

DeviceEventPtr DeviceCopies::CopyToHost(DeviceQueue queue, const char* span,
                                        const std::vector<std::pair<Tensor, Tensor>>& copies) {
  queues_->Await(queue, queues_->Record(DeviceQueue::kCompute));
  const QueueTrace::Span traced(&trace_, queue, span, SpanPlace());
  for (const auto& [from, to] : copies) {
    queues_->Copy(queue, from, to);
    queues_->KeepFor(queue, from);
  }
  return queues_->Record(queue);
}

void DeviceCopies::EndOfMicroBatch() {
  // Includes the stash: copies to it may be slower than computing, and hold the memory they read.
  micro_batches_.push_back(
      {queues_->Record(DeviceQueue::kCompute), queues_->Record(DeviceQueue::kStashOut)});
  trace_.Collect();
  if (micro_batches_.size() <= kMicroBatchesAhead) return;
  for (const DeviceEventPtr& event : micro_batches_.front()) WaitFor(*event);
  micro_batches_.pop_front();
}

}  // namespace eps
