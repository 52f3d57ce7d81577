#include "worker/exec/queues/pinned_memory.h"

#include "ATen/ops/from_blob.h"
#include "c10/util/accumulate.h"
#include "worker/exec/torch_guard.h"

namespace eps {

using at::Tensor;

void PinnedMemory::Reserve(uint64_t count, uint64_t bytes) {
  const uint64_t part = RangeMap::SizeOf(bytes);
  uint64_t room = 0;
  for (const Block& block : blocks_) room += block.memory.nbytes() / part;
  if (room < count) AddBlock((count - room) * part);
}

Tensor PinnedMemory::New(at::IntArrayRef shape, at::ScalarType type) {
  const uint64_t bytes =
      static_cast<uint64_t>(c10::multiply_integers(shape)) * c10::elementSize(type);
  Collect();
  absl::optional<Part> part = Find(bytes);
  while (!part.has_value() && !leaving_.empty()) {
    for (const DeviceEventPtr& event : leaving_.front().copied) WaitFor(*event);
    Collect();
    part = Find(bytes);
  }
  if (!part.has_value()) {
    AddBlock(RangeMap::SizeOf(bytes));
    part = Find(bytes);
  }
  return at::from_blob(
      part->block->memory.mutable_data_ptr<uint8_t>() + part->begin, shape,
      [this, part = *part](void*) { Leave(part); }, at::TensorOptions().dtype(type));
}

void PinnedMemory::AddBlock(uint64_t bytes) { blocks_.emplace_back(queues_->NewPinned(bytes)); }

absl::optional<PinnedMemory::Part> PinnedMemory::Find(uint64_t bytes) {
  for (Block& block : blocks_) {
    const absl::optional<uint64_t> begin = block.parts.Take(bytes);
    if (begin.has_value()) return Part{&block, *begin};
  }
  return absl::nullopt;
}

void PinnedMemory::Leave(const Part& part) {
  // If the device fails here, the part is not used again, and the next call that enqueues work
  // reports the error.
  static_cast<void>(CatchTorch("releasing pinned memory", [&] {
    leaving_.push_back(
        {part, {queues_->Record(DeviceQueue::kStashOut), queues_->Record(DeviceQueue::kStashIn)}});
  }));
}

void PinnedMemory::Collect() {
  for (auto it = leaving_.begin(); it != leaving_.end();) {
    if (it->copied[0]->done() && it->copied[1]->done()) {
      it->part.block->parts.Return(it->part.begin);
      it = leaving_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace eps
