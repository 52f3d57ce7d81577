#include "worker/exec/queues/device_arrivals.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "compression/codec.h"
#include "worker/exec/torch_guard.h"

namespace eps {
namespace {

// Fills a slot.
class SlotSink final : public StageSink {
 public:
  SlotSink(const ArrivalLayout* layout, DeviceSlots::Slot* slot) : layout_(*layout), slot_(slot) {}

  absl::Status Take(EncodedWeights weights) override {
    const Chunk& chunk = *weights.chunk;
    const size_t expected = weights.codec->MaxEncodedSize(chunk, weights.axis);
    if (weights.bytes.size() != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          weights.codec->name(), ": ", weights.bytes.size(), " bytes, expected ", expected));
    }
    const std::vector<DeviceSlots::Slot::Piece> pieces = PiecesOf(weights);
    return CatchTorch(
        "copying weights to the device",
        [&] { slot_->Arrive(weights.bytes, layout_.OffsetOf(chunk.id, weights.view), pieces); },
        kPinnedMemoryKeys);
  }

 private:
  std::vector<DeviceSlots::Slot::Piece> PiecesOf(const EncodedWeights& weights) const {
    std::vector<DeviceSlots::Slot::Piece> pieces;
    ForEachCode(*weights.codec, *weights.chunk, weights.axis,
                [&](const Segment& segment, const SegmentCode& code, uint64_t offset) {
                  const uint64_t to = PlaceOf(segment.tensor, weights.view);
                  const uint64_t element = c10::elementSize(layout_.decoded().type());
                  pieces.push_back({offset, to + segment.tensor_offset * element, code});
                });
    return pieces;
  }

  uint64_t PlaceOf(TensorId tensor, uint32_t view) const {
    const std::vector<TensorUse>& uses = layout_.stage().uses;
    const auto it = std::find_if(uses.begin(), uses.end(),
                                 [tensor](const TensorUse& use) { return use.tensor == tensor; });
    EPS_CHECK_MSG(it != uses.end(), "tensor " << tensor << " is not of this stage");
    const auto use = static_cast<size_t>(it - uses.begin());
    const StageLayout& decoded = layout_.decoded();
    EPS_CHECK(view == 0 || decoded.has_second_copy(use));
    return view == 0 ? decoded.offset(use) : decoded.second_offset(use);
  }

  const ArrivalLayout& layout_;
  DeviceSlots::Slot* const slot_;
};

}  // namespace

ArrivalLayout::ArrivalLayout(const JobChunks& chunks, StageId stage, bool backward,
                             at::ScalarType type)
    : stage_(chunks.spec().stages[stage.value()]), decoded_(chunks.spec(), stage_, backward, type) {
  const auto add = [&](ChunkId id, Axis axis, uint32_t view) {
    offsets_[{id.value(), view}] = encoded_bytes_;
    encoded_bytes_ += AlignedSize(chunks.codecs().weights(id), chunks.map().chunk(id), axis);
  };
  for (const ChunkId id : chunks.map().ChunksOfStage(stage)) {
    const WeightAxes axes = chunks.codecs().axes(stage, id, backward);
    add(id, axes.first, 0);
    if (axes.has_second) add(id, axes.second, 1);
  }
}

std::unique_ptr<DeviceArrivals> DeviceArrivals::New(const JobChunks& chunks, bool has_codecs) {
  const JobSpec& spec = chunks.spec();
  if (spec.codecs.backward_weights == BackwardWeights::kDecodeOnce) return nullptr;
  std::unique_ptr<DeviceArrivals> arrivals(new DeviceArrivals());
  SlotSizes& sizes = arrivals->sizes_;
  const bool narrow = has_codecs && spec.training.precision == Precision::kBf16;
  sizes.type = narrow ? at::kBFloat16 : at::kFloat;
  sizes.decoded = LargestStage(spec, sizes.type);
  for (const Chunk& chunk : chunks.map().chunks()) {
    const Codec& codec = chunks.codecs().weights(chunk.id);
    if (!HasKernels(codec)) return nullptr;
    sizes.decodes |= codec.traits().id != (narrow ? CodecId::kBf16 : CodecId::kFp32);
  }
  if (sizes.decodes && !has_codecs) return nullptr;
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    for (const bool backward : {false, true}) {
      const auto [it, fresh] =
          arrivals->layouts_.emplace(std::make_pair(StageId(s), backward),
                                     ArrivalLayout(chunks, StageId(s), backward, sizes.type));
      sizes.encoded = std::max(sizes.encoded, it->second.encoded_bytes());
    }
  }
  return arrivals;
}

std::shared_ptr<StageSink> DeviceArrivals::NewSink(StageId stage, bool backward,
                                                   DeviceSlots::Slot* slot) const {
  return std::make_shared<SlotSink>(&layouts_.at({stage, backward}), slot);
}

}  // namespace eps
