#include "worker/client/stages/stage_sink.h"

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "compression/codecs/floats/kernels.h"

namespace eps {
namespace {

// Rounds a tile of decoded weights to bf16 in place.
void RoundToBf16(const Tile& tile, uint64_t ld, float* values) {
  std::array<uint8_t, 2 * kTileRows * kTileCols> rounded;
  float_kernels::EncodeBf16(values, ld, tile.rows, tile.cols, tile.cols, /*past_caches=*/false,
                            rounded.data());
  float_kernels::DecodeBf16(rounded.data(), tile.cols, tile.rows, tile.cols, ld, values);
}

}  // namespace

HostSink::HostSink(const JobSpec* spec, StageId stage, TensorPointers out)
    : spec_(spec), stage_(stage), out_(std::move(out)) {
  const size_t uses = spec_->stages[stage_.value()].uses.size();
  EPS_CHECK_MSG(out_.size() == uses || out_.size() == 2 * uses, out_.size() << " of " << uses);
}

absl::Status HostSink::Take(EncodedWeights weights) {
  const Chunk& chunk = *weights.chunk;
  EPS_ASSIGN_OR_RETURN(
      const std::shared_ptr<const EncodedChunk> encoded,
      weights.codec->Open(chunk, weights.axis, std::move(weights.bytes), Content::kWeights));
  const bool once = spec_->codecs.backward_weights == BackwardWeights::kDecodeOnce;
  ForEachTile(chunk, [&](const Tile& tile) {
    const Segment& segment = chunk.segments[tile.segment];
    float* tensor = TensorPointer(*spec_, stage_, out_, segment.tensor, weights.view);
    if (tensor == nullptr) return;
    float* out = tensor + segment.tensor_offset + uint64_t{tile.row} * segment.cols + tile.col;
    encoded->Read(tile, /*accumulate=*/false, segment.cols, out);
    // Vectors keep what their codec decoded, because no product contracts them.
    if (once && spec_->tensors[segment.tensor.value()].rank == 2) {
      RoundToBf16(tile, segment.cols, out);
    }
  });
  return absl::OkStatus();
}

float* TensorPointer(const JobSpec& spec, StageId stage, const TensorPointers& pointers,
                     TensorId tensor, uint32_t view) {
  const std::vector<TensorUse>& uses = spec.stages[stage.value()].uses;
  for (size_t i = 0; i < uses.size(); ++i) {
    const size_t at = view * uses.size() + i;
    if (uses[i].tensor == tensor) return at < pointers.size() ? pointers[at] : nullptr;
  }
  return nullptr;
}

}  // namespace eps
