#include "worker/exec/queues/device_slots.h"

#include <cstring>
#include <optional>

#include "ATen/ops/from_blob.h"
#include "base/check.h"
#include "base/trace/span_names.h"
#include "compression/codec.h"
#include "worker/exec/torch_guard.h"

namespace eps {
namespace {

using at::Tensor;

constexpr size_t kSlots = 2;

// Returns the codec whose bytes are elements of the type.
uint32_t PlainCodec(at::ScalarType type) {
  return static_cast<uint32_t>(type == at::kFloat ? CodecId::kFp32 : CodecId::kBf16);
}

Tensor PartOf(const Tensor& memory, uint64_t offset, uint64_t bytes) {
  return memory.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(bytes));
}

}  // namespace

std::shared_ptr<DeviceSlots::Slot> DeviceSlots::Take(StageId stage) {
  {
    MutexLock lock(mu_);
    DropRead();
  }
  Memory* memory = nullptr;
  if (memories_.size() >= kSlots) {
    for (Memory& candidate : memories_) {
      if (candidate.in_use) continue;
      memory = &candidate;
      break;
    }
  }
  if (memory == nullptr) {
    memory = &memories_.emplace_back();
    memory->decoded =
        queues_->New(DeviceQueue::kWeights, {static_cast<int64_t>(sizes_.decoded)}, at::kByte);
    if (sizes_.encoded > 0 && sizes_.decodes) {
      memory->encoded =
          queues_->New(DeviceQueue::kWeights, {static_cast<int64_t>(sizes_.encoded)}, at::kByte);
    }
  }
  if (memory->copied != nullptr) WaitFor(*memory->copied);
  memory->copied = nullptr;
  memory->done = nullptr;
  memory->in_use = true;
  for (Memory& other : memories_) {
    if (other.host != nullptr && other.copied != nullptr && other.copied->done()) {
      other.host = nullptr;
    }
  }
  return std::make_shared<Slot>(this, stage, memory);
}

void DeviceSlots::Release(Memory* memory) {
  // Without an event it is unknown when the memory becomes free, so do not reuse it. The next call
  // that enqueues work reports the device's error.
  const absl::Status recorded = CatchTorch("releasing a stage", [&] {
    MutexLock lock(mu_);
    memory->last_used = {queues_->Record(DeviceQueue::kCompute), memory->done};
  });
  memory->in_use = !recorded.ok();
  for (auto it = memories_.begin(); it != memories_.end(); ++it) {
    if (&*it != memory) continue;
    memories_.splice(memories_.end(), memories_, it);
    return;
  }
}

void DeviceSlots::Slot::AwaitMemory() {
  for (DeviceEventPtr& event : memory_->last_used) {
    if (event != nullptr) owner_->queues_->Await(DeviceQueue::kWeights, event);
    event = nullptr;
  }
}

Tensor DeviceSlots::Slot::RoomOf(const Piece& piece) const {
  const uint64_t n = uint64_t{piece.code.rows} * piece.code.cols;
  return PartOf(memory_->decoded, piece.to, n * c10::elementSize(owner_->sizes_.type));
}

void DeviceSlots::DropRead() {
  while (!borrowed_.empty() && borrowed_.front().copied->done()) borrowed_.pop_front();
}

void DeviceSlots::Slot::Arrive(const Bytes& encoded, uint64_t offset,
                               absl::Span<const Piece> pieces) {
  EPS_CHECK_MSG(offset + encoded.size() <= owner_->sizes_.encoded,
                offset << " + " << encoded.size() << " of " << owner_->sizes_.encoded);
  DeviceQueues& queues = *owner_->queues_;
  const bool reached = queues.Reaches({encoded.data(), encoded.size()});
  Tensor from;
  if (reached) {
    from = at::from_blob(const_cast<uint8_t*>(encoded.data()),
                         {static_cast<int64_t>(encoded.size())}, at::kByte);
  } else {
    from = PartOf(Pinned(), offset, encoded.size());
    std::memcpy(from.mutable_data_ptr(), encoded.data(), encoded.size());
  }
  MutexLock lock(owner_->mu_);
  owner_->DropRead();
  AwaitMemory();
  if (pieces.front().code.codec == PlainCodec(owner_->sizes_.type)) {
    const QueueTrace::Span span(owner_->trace_, DeviceQueue::kWeights, kDeviceWeightsSpan, place_);
    for (const Piece& piece : pieces) {
      const Tensor to = RoomOf(piece);
      queues.Copy(DeviceQueue::kWeights, PartOf(from, piece.from, to.nbytes()), to);
    }
    memory_->copied = queues.Record(DeviceQueue::kWeights);
    if (reached) owner_->borrowed_.push_back({memory_->copied, encoded});
    return;
  }
  const Tensor landed = PartOf(memory_->encoded, offset, encoded.size());
  {
    const QueueTrace::Span span(owner_->trace_, DeviceQueue::kWeights, kDeviceWeightsSpan, place_);
    queues.Copy(DeviceQueue::kWeights, from, landed);
  }
  memory_->copied = queues.Record(DeviceQueue::kWeights);
  if (reached) owner_->borrowed_.push_back({memory_->copied, encoded});
  queues.Await(DeviceQueue::kCodec, memory_->copied);
  Decode(landed, pieces);
}

const Tensor& DeviceSlots::Slot::Pinned() {
  MutexLock lock(owner_->mu_);
  if (memory_->pinned.defined()) return memory_->pinned;
  const uint64_t bytes = owner_->sizes_.encoded;
  MemoryAccount* const account = owner_->account_;
  memory_->pinned = owner_->queues_->NewPinned(bytes);
  if (account != nullptr) account->Charge(MemoryKind::kStage, bytes);
  memory_->charge = std::make_unique<Charge>(account, MemoryKind::kStage, bytes);
  return memory_->pinned;
}

void DeviceSlots::Slot::Decode(const Tensor& landed, absl::Span<const Piece> pieces) {
  DeviceQueues& queues = *owner_->queues_;
  {
    const QueueTrace::Span span(owner_->trace_, DeviceQueue::kCodec, kDeviceDecodeSpan, place_);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const uint64_t end = i + 1 < pieces.size() ? pieces[i + 1].from : landed.nbytes();
      queues.Decode(DeviceQueue::kCodec, pieces[i].code,
                    PartOf(landed, pieces[i].from, end - pieces[i].from),
                    RoomOf(pieces[i]).view(owner_->sizes_.type));
    }
  }
  memory_->done = queues.Record(DeviceQueue::kCodec);
}

void DeviceSlots::Slot::CopyFrom(const Tensor& pinned, std::shared_ptr<void> host) {
  EPS_CHECK(pinned.nbytes() <= owner_->sizes_.decoded);
  MutexLock lock(owner_->mu_);
  AwaitMemory();
  memory_->host = std::move(host);
  {
    const QueueTrace::Span span(owner_->trace_, DeviceQueue::kWeights, kDeviceWeightsSpan, place_);
    owner_->queues_->Copy(DeviceQueue::kWeights, pinned,
                          PartOf(memory_->decoded, 0, pinned.nbytes()));
  }
  memory_->copied = owner_->queues_->Record(DeviceQueue::kWeights);
}

void DeviceSlots::Slot::Ready() {
  MutexLock lock(owner_->mu_);
  owner_->DropRead();
  // Not what the queues hold by now: later stages may already be arriving.
  for (const DeviceEventPtr& event : {memory_->copied, memory_->done}) {
    if (event != nullptr) owner_->queues_->Await(DeviceQueue::kCompute, event);
  }
}

}  // namespace eps
