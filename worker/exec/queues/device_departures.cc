#include "worker/exec/queues/device_departures.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ATen/ops/from_blob.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "worker/exec/cuda/crc_bodies.h"
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

int64_t PiecesOf(int64_t bytes) {
  return static_cast<int64_t>(grid::CrcPieces(static_cast<uint64_t>(bytes)));
}

}  // namespace

// An encoded gradient in host memory.
class DeviceDepartures::Source final : public GradientSource {
 public:
  Source(DeviceDepartures* owner, Room* room) : owner_(owner), room_(room) {}
  ~Source() override { owner_->Release(room_); }

  absl::optional<EncodedGradient> Encoded(const Chunk& chunk) const override {
    const Place& place = room_->places.at(chunk.id);
    const auto size = static_cast<size_t>(place.bytes);
    const auto* const crcs = static_cast<const uint32_t*>(room_->pinned_crcs.const_data_ptr());
    const uint32_t crc = grid::CombineCrc32c(crcs + place.first_crc, size);
    if (place.room != nullptr) {
      return EncodedGradient{Bytes::Borrow({place.host, size}, place.room), crc};
    }
    Buffer copy(size);
    std::memcpy(copy.data(), place.host, size);
    return EncodedGradient{std::move(copy).Freeze(), crc};
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
  Leaving(std::string stage, Room* room, std::shared_ptr<const GradientSource> source)
      : stage_(std::move(stage)), room_(room), source_(std::move(source)) {}

  absl::StatusOr<std::shared_ptr<const GradientSource>> Wait() override {
    EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("copying the gradient of stage ", stage_),
                                   [this] { WaitFor(*room_->copied); }));
    room_->has_left = true;
    return std::move(source_);
  }

 private:
  const std::string stage_;
  Room* const room_;
  std::shared_ptr<const GradientSource> source_;
};

DeviceDepartures::DeviceDepartures(const JobChunks* chunks, DeviceCopies* copies,
                                   MemoryAccount* account)
    : chunks_(*chunks),
      copies_(*copies),
      account_(account),
      room_bytes_(LargestGradient(*chunks)),
      room_crcs_(
          static_cast<int64_t>(grid::CrcPieces(room_bytes_) + chunks->map().chunks().size())) {}

DeviceDepartures::~DeviceDepartures() {
  // If the device fails here, an earlier call has already reported it.
  static_cast<void>(CatchTorch("waiting for gradients", [this] {
    MutexLock lock(&mu_);
    for (const Room& room : rooms_) WaitForCopy(room);
  }));
}

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
  Room room;
  room.on_device =
      copies_.queues().New(DeviceQueue::kCodec, {static_cast<int64_t>(room_bytes_)}, at::kByte);
  room.crcs = copies_.queues().New(DeviceQueue::kCodec, {room_crcs_}, at::kInt);
  room.pinned_crcs = copies_.queues()
                         .NewPinned(static_cast<uint64_t>(room_crcs_) * sizeof(uint32_t))
                         .view(at::kInt);
  room.in_use = true;
  return &rooms_.emplace_back(std::move(room));
}

void DeviceDepartures::WaitForCopy(const Room& room) {
  if (!room.places.empty() && room.copied != nullptr) WaitFor(*room.copied);
}

void DeviceDepartures::Release(Room* room) {
  MutexLock lock(&mu_);
  // Otherwise the device may still copy, and the next Start waits.
  if (room->has_left) room->places.clear();
  room->in_use = false;
}

DeviceDepartures::Places DeviceDepartures::PlacesOnDevice(StageId stage, Step step) const {
  Places places;
  int64_t end = 0;
  int64_t crcs = 0;
  for (const ChunkId id : chunks_.map().ChunksOfStage(stage)) {
    const Chunk& chunk = chunks_.map().chunk(id);
    if (chunk.frozen) continue;
    const Codec& codec = chunks_.codecs().gradient(id, step);
    Place& place = places[id];
    place.on_device = end;
    place.bytes = static_cast<int64_t>(codec.MaxEncodedSize(chunk, Axis::kRow));
    end += static_cast<int64_t>(AlignedSize(codec, chunk, Axis::kRow));
    place.first_crc = crcs;
    crcs += PiecesOf(place.bytes);
  }
  EPS_CHECK(crcs <= room_crcs_);
  return places;
}

bool DeviceDepartures::FindRooms(GradientRooms* rooms, Places* places) const {
  for (auto& [id, place] : *places) {
    const auto size = static_cast<size_t>(place.bytes);
    std::shared_ptr<uint8_t> room = rooms->RoomFor(id, size);
    if (room == nullptr || !copies_.queues().Reaches({room.get(), size})) return false;
    place.host = room.get();
    place.room = std::move(room);
  }
  return true;
}

void DeviceDepartures::UsePinned(Room* room) {
  if (!room->pinned.defined()) {
    room->pinned = copies_.queues().NewPinned(room_bytes_);
    if (account_ != nullptr) account_->Charge(MemoryKind::kStage, room_bytes_);
    room->charge = std::make_unique<Charge>(account_, MemoryKind::kStage, room_bytes_);
  }
  for (auto& [id, place] : room->places) {
    place.host = room->pinned.mutable_data_ptr<uint8_t>() + place.on_device;
    place.room = nullptr;
  }
}

std::unique_ptr<LeavingGradient> DeviceDepartures::Start(StageId stage, Step step,
                                                         const std::vector<Tensor>& gradient,
                                                         GradientRooms* rooms) {
  Room* const room = TakeRoom();
  auto source = std::make_shared<Source>(this, room);
  WaitForCopy(*room);
  room->places = PlacesOnDevice(stage, step);
  if (!FindRooms(rooms, &room->places)) UsePinned(room);
  room->has_left = false;
  const SpanPlace place = {step.value(), stage.value() + 1};
  DeviceQueues& queues = copies_.queues();
  queues.Await(DeviceQueue::kGradients, Encode(stage, step, gradient, *room, place));
  {
    const QueueTrace::Span span(copies_.trace(), DeviceQueue::kGradients, kDeviceGradientSpan,
                                place);
    // Chunk by chunk: copies to the stash share the link.
    for (const auto& [id, chunk] : room->places) {
      const Tensor to = at::from_blob(chunk.host, {chunk.bytes}, at::kByte);
      queues.Copy(DeviceQueue::kGradients, room->on_device.narrow(0, chunk.on_device, chunk.bytes),
                  to);
    }
    queues.Copy(DeviceQueue::kGradients, room->crcs, room->pinned_crcs);
  }
  room->copied = queues.Record(DeviceQueue::kGradients);
  return std::make_unique<Leaving>(chunks_.spec().stages[stage.value()].name, room,
                                   std::move(source));
}

DeviceEventPtr DeviceDepartures::Encode(StageId stage, Step step,
                                        const std::vector<Tensor>& gradient, const Room& room,
                                        const SpanPlace& place) {
  std::vector<Tensor> flat;
  for (const Tensor& tensor : gradient) {
    flat.push_back(tensor.defined() ? tensor.contiguous().flatten() : tensor);
  }
  DeviceQueues& queues = copies_.queues();
  const std::vector<TensorUse>& uses = chunks_.spec().stages[stage.value()].uses;
  MutexLock lock(copies_.codec_mutex());
  queues.Await(DeviceQueue::kCodec, queues.Record(DeviceQueue::kCompute));
  if (room.copied != nullptr) queues.Await(DeviceQueue::kCodec, room.copied);
  {
    const QueueTrace::Span span(copies_.trace(), DeviceQueue::kCodec, kDeviceEncodeSpan, place);
    for (const auto& [id, of_chunk] : room.places) {
      const Tensor out = room.on_device.narrow(0, of_chunk.on_device, of_chunk.bytes);
      ForEachCode(chunks_.codecs().gradient(id, step), chunks_.map().chunk(id), Axis::kRow,
                  [&](const Segment& segment, const SegmentCode& code, uint64_t offset) {
                    size_t use = 0;
                    while (uses[use].tensor != segment.tensor) ++use;
                    const Tensor from =
                        flat[use].narrow(0, static_cast<int64_t>(segment.tensor_offset),
                                         static_cast<int64_t>(segment.elements()));
                    queues.Encode(DeviceQueue::kCodec, code, from,
                                  out.slice(0, static_cast<int64_t>(offset)));
                  });
      queues.Checksum(DeviceQueue::kCodec, out,
                      room.crcs.narrow(0, of_chunk.first_crc, PiecesOf(of_chunk.bytes)));
    }
  }
  for (const Tensor& tensor : flat) {
    if (tensor.defined()) queues.KeepFor(DeviceQueue::kCodec, tensor);
  }
  return queues.Record(DeviceQueue::kCodec);
}

}  // namespace eps
