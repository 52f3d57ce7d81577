#include "worker/exec/queues/device_departures.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "worker/exec/torch_guard.h"

namespace eps {
namespace {

using at::Tensor;

// Returns the bytes of the largest gradient of a stage, encoded, in any step.
uint64_t LargestGradient(const JobChunks& chunks) {
  const Step after_warmup(chunks.spec().codecs.warmup_steps + 1);
  uint64_t largest = 0;
  for (uint32_t s = 0; s < chunks.spec().stages.size(); ++s) {
    uint64_t bytes[2] = {0, 0};
    for (const ChunkId id : chunks.map().ChunksOfStage(StageId(s))) {
      const Chunk& chunk = chunks.map().chunk(id);
      bytes[0] += AlignedSize(chunks.codecs().gradient(id, Step(1)), chunk, Axis::kRow);
      bytes[1] += AlignedSize(chunks.codecs().gradient(id, after_warmup), chunk, Axis::kRow);
    }
    largest = std::max({largest, bytes[0], bytes[1]});
  }
  return largest;
}

}  // namespace

// An encoded gradient in pinned memory.
class DeviceDepartures::Source final : public GradientSource {
 public:
  Source(DeviceDepartures* owner, Room* room) : owner_(owner), room_(room) {}
  ~Source() override { owner_->Release(room_); }

  absl::optional<Bytes> Encoded(const Chunk& chunk) const override {
    const Bytes& place = room_->place.at(chunk.id);
    Buffer copy(place.size());
    std::memcpy(copy.data(), place.data(), place.size());
    return std::move(copy).Freeze();
  }
  const float* tensor(TensorId tensor) const override {
    EPS_CHECK_MSG(false, "tensor " << tensor << " of a gradient that is encoded");
    return nullptr;
  }

 private:
  DeviceDepartures* const owner_;
  Room* const room_;
};

// A gradient on its way.
class DeviceDepartures::Leaving final : public LeavingGradient {
 public:
  Leaving(std::string stage, DeviceEventPtr copied, std::shared_ptr<const GradientSource> source)
      : stage_(std::move(stage)), copied_(std::move(copied)), source_(std::move(source)) {}

  absl::StatusOr<std::shared_ptr<const GradientSource>> Wait() override {
    EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("copying the gradient of stage ", stage_),
                                   [this] { WaitFor(*copied_); }));
    return std::move(source_);
  }

 private:
  const std::string stage_;
  const DeviceEventPtr copied_;
  std::shared_ptr<const GradientSource> source_;
};

DeviceDepartures::DeviceDepartures(const JobChunks* chunks, DeviceCopies* copies,
                                   MemoryAccount* account)
    : chunks_(*chunks),
      copies_(*copies),
      account_(account),
      room_bytes_(LargestGradient(*chunks)) {}

bool DeviceDepartures::Encodes(StageId stage, Step step) const {
  if (!copies_.queues().has_codecs()) return false;
  if (chunks_.spec().training.nonfinite == Nonfinite::kSkip) return false;
  for (const ChunkId id : chunks_.map().ChunksOfStage(stage)) {
    const bool sends = !chunks_.map().chunk(id).frozen;
    if (sends && !HasKernels(chunks_.codecs().gradient(id, step))) return false;
  }
  return true;
}

DeviceDepartures::Room* DeviceDepartures::TakeRoom() {
  MutexLock lock(&mu_);
  for (Room& room : rooms_) {
    if (room.in_use) continue;
    room.in_use = true;
    return &room;
  }
  const auto bytes = static_cast<int64_t>(room_bytes_);
  Room room;
  room.on_device = copies_.queues().New(DeviceQueue::kCodec, {bytes}, at::kByte);
  room.pinned = copies_.queues().NewPinned({bytes}, at::kByte);
  if (account_ != nullptr) account_->Charge(MemoryKind::kStage, room_bytes_);
  room.charge = std::make_unique<Charge>(account_, MemoryKind::kStage, room_bytes_);
  room.in_use = true;
  return &rooms_.emplace_back(std::move(room));
}

void DeviceDepartures::Release(Room* room) {
  MutexLock lock(&mu_);
  room->in_use = false;
}

std::unique_ptr<LeavingGradient> DeviceDepartures::Start(StageId stage, Step step,
                                                         const std::vector<Tensor>& gradient) {
  std::vector<Tensor> flat;
  for (const Tensor& tensor : gradient) {
    flat.push_back(tensor.defined() ? tensor.contiguous().flatten() : tensor);
  }
  Room* const room = TakeRoom();
  auto source = std::make_shared<Source>(this, room);
  DeviceQueues& queues = copies_.queues();
  const StageSpec& spec = chunks_.spec().stages[stage.value()];
  const SpanPlace place = {step.value(), stage.value() + 1};
  room->place.clear();
  uint64_t end = 0;
  MutexLock lock(copies_.codec_mutex());
  queues.Await(DeviceQueue::kCodec, queues.Record(DeviceQueue::kCompute));
  if (room->copied != nullptr) queues.Await(DeviceQueue::kCodec, room->copied);
  {
    const QueueTrace::Span span(copies_.trace(), DeviceQueue::kCodec, kDeviceEncodeSpan, place);
    for (const ChunkId id : chunks_.map().ChunksOfStage(stage)) {
      const Chunk& chunk = chunks_.map().chunk(id);
      if (chunk.frozen) continue;
      const Codec& codec = chunks_.codecs().gradient(id, step);
      const uint64_t bytes = codec.MaxEncodedSize(chunk, Axis::kRow);
      const auto begin = static_cast<int64_t>(end);
      ForEachCode(codec, chunk, Axis::kRow,
                  [&](const Segment& segment, const SegmentCode& code, uint64_t offset) {
                    size_t use = 0;
                    while (spec.uses[use].tensor != segment.tensor) ++use;
                    const Tensor from =
                        flat[use].narrow(0, static_cast<int64_t>(segment.tensor_offset),
                                         static_cast<int64_t>(segment.elements()));
                    queues.Encode(DeviceQueue::kCodec, code, from,
                                  room->on_device.narrow(0, begin, static_cast<int64_t>(bytes))
                                      .slice(0, static_cast<int64_t>(offset)));
                  });
      room->place[id] = Bytes::Borrow({room->pinned.const_data_ptr<uint8_t>() + begin, bytes});
      end += AlignedSize(codec, chunk, Axis::kRow);
    }
  }
  for (const Tensor& tensor : flat) {
    if (tensor.defined()) queues.KeepFor(DeviceQueue::kCodec, tensor);
  }
  queues.Await(DeviceQueue::kGradients, queues.Record(DeviceQueue::kCodec));
  {
    const QueueTrace::Span span(copies_.trace(), DeviceQueue::kGradients, kDeviceGradientSpan,
                                place);
    // Chunk by chunk: copies to the stash share the link.
    for (const auto& [id, bytes] : room->place) {
      const int64_t begin = bytes.data() - room->pinned.const_data_ptr<uint8_t>();
      const auto size = static_cast<int64_t>(bytes.size());
      queues.Copy(DeviceQueue::kGradients, room->on_device.narrow(0, begin, size),
                  room->pinned.narrow(0, begin, size));
    }
  }
  room->copied = queues.Record(DeviceQueue::kGradients);
  return std::make_unique<Leaving>(spec.name, room->copied, std::move(source));
}

}  // namespace eps
