#include "worker/relay/testing/send_stage.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "compression/codec_table.h"

namespace eps {
namespace {

CodecTable CodecsOf(const JobSpec& spec, const ChunkMap& chunks) {
  absl::StatusOr<CodecTable> codecs = CodecTable::Build(spec, chunks);
  EPS_CHECK_MSG(codecs.ok(), codecs.status());
  return *std::move(codecs);
}

EncodedWeights CopyOf(const Chunk& chunk, const Codec& codec, Axis axis, uint32_t view,
                      const Tensors& tensors) {
  std::vector<float> elements;
  for (const Segment& segment : chunk.segments) {
    const std::vector<float>& from = tensors[segment.tensor.value()];
    const auto begin = from.begin() + static_cast<ptrdiff_t>(segment.tensor_offset);
    elements.insert(elements.end(), begin, begin + static_cast<ptrdiff_t>(segment.elements()));
  }
  EncodeOptions options;
  options.axis = axis;
  return {&chunk, &codec, axis, view, EncodeChunk(codec, chunk, options, elements.data())};
}

// Returns the elements of a chunk of a stage's gradient, with the loss of `codec`.
std::vector<float> Receive(const JobSpec& spec, StageId stage, const Chunk& chunk,
                           const Codec& codec, const GradientSource& gradient) {
  std::vector<float> elements;
  Bytes bytes;
  if (const absl::optional<EncodedGradient> encoded = gradient.Encoded(chunk)) {
    bytes = encoded->bytes;
    EPS_CHECK_MSG(Crc32c(bytes.view()) == encoded->crc32c, "chunk " << chunk.id);
  } else {
    for (const Segment& segment : chunk.segments) {
      const float* const from = gradient.tensor(segment.tensor) + segment.tensor_offset;
      elements.insert(elements.end(), from, from + segment.elements());
    }
    bytes = EncodeChunk(codec, chunk, EncodeOptions(), elements.data());
  }
  const auto opened = codec.Open(chunk, Axis::kRow, bytes, Content::kGradient);
  EPS_CHECK_MSG(opened.ok(), spec.stages[stage.value()].name << ": " << opened.status());
  elements.resize(chunk.elements);
  DecodeChunk(**opened, chunk, elements.data());
  return elements;
}

}  // namespace

absl::Status SendStage(const JobSpec& spec, const ChunkMap& chunks, Wire wire, const Visit& visit,
                       const Tensors& first, const Tensors& second, StageSink* sink) {
  const CodecTable codecs = CodecsOf(spec, chunks);
  const Codec& fp32 = **FindCodec("fp32");
  for (const ChunkId id : chunks.ChunksOfStage(visit.stage)) {
    const Chunk& chunk = chunks.chunk(id);
    const Codec& codec = wire == Wire::kOfJob ? codecs.weights(id) : fp32;
    const WeightAxes axes = codecs.axes(visit.stage, id, visit.backward);
    EPS_RETURN_IF_ERROR(sink->Take(CopyOf(chunk, codec, axes.first, 0, first)));
    if (!axes.has_second) continue;
    EPS_RETURN_IF_ERROR(sink->Take(CopyOf(chunk, codec, axes.second, 1, second)));
  }
  return absl::OkStatus();
}

Tensors ReceiveGradient(const JobSpec& spec, const ChunkMap& chunks, Wire wire, StageId stage,
                        const GradientSource& gradient) {
  const CodecTable codecs = CodecsOf(spec, chunks);
  const Codec& fp32 = **FindCodec("fp32");
  const std::vector<TensorUse>& uses = spec.stages[stage.value()].uses;
  Tensors tensors;
  for (const TensorUse& use : uses) {
    tensors.emplace_back(spec.tensors[use.tensor.value()].elements());
  }
  for (const ChunkId id : chunks.ChunksOfStage(stage)) {
    const Chunk& chunk = chunks.chunk(id);
    if (chunk.frozen) continue;
    const Codec& codec = wire == Wire::kOfJob ? codecs.gradient(id, Step(1)) : fp32;
    const std::vector<float> elements = Receive(spec, stage, chunk, codec, gradient);
    for (const Segment& segment : chunk.segments) {
      size_t use = 0;
      while (uses[use].tensor != segment.tensor) ++use;
      std::copy_n(elements.begin() + static_cast<ptrdiff_t>(segment.offset), segment.elements(),
                  tensors[use].begin() + static_cast<ptrdiff_t>(segment.tensor_offset));
    }
  }
  return tensors;
}

}  // namespace eps
