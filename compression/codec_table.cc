#include "compression/codec_table.h"

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/job/layout/codec_table.h"
#include "base/status_macros.h"
#include "compression/plugin/codec_plugin.h"

namespace eps {
namespace {

absl::StatusOr<const Codec*> FindFor(absl::string_view key, absl::string_view name) {
  absl::StatusOr<const Codec*> codec = FindCodec(name);
  if (codec.ok()) return codec;
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", codec.status().message()));
}

// Returns the configuration key that selects a tensor's codec.
std::string KeyOf(const JobSpec& spec, TensorId tensor, absl::string_view direction) {
  switch (KindOf(spec, tensor)) {
    case TensorKind::kNorm:
      return absl::StrCat("quantization.norm_", direction);
    case TensorKind::kEmbedding:
      return absl::StrCat("quantization.embedding_", direction);
    case TensorKind::kHead:
      return absl::StrCat("quantization.head_", direction);
    case TensorKind::kBlock:
      break;
  }
  return absl::StrCat("quantization.", direction);
}

// Returns an error unless the codec encodes every element.
absl::Status CheckDense(absl::string_view key, const Codec& codec) {
  if (codec.traits().fixed_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      key, "=", codec.name(), ": this codec omits elements, so it is for gradients only"));
}

}  // namespace

absl::Status LoadPluginCodecs(const JobSpec& spec, const std::string& path) {
  for (const std::string& name : CodecNamesOf(spec)) {
    EPS_RETURN_IF_ERROR(LoadCodecOf(name, path));
  }
  return absl::OkStatus();
}

absl::StatusOr<CodecTable> CodecTable::Build(const JobSpec& spec, const ChunkMap& chunks) {
  CodecTable table;
  table.spec_ = &spec;
  table.chunks_ = &chunks;
  table.warmup_steps_ = spec.codecs.warmup_steps;
  table.keeps_residuals_ = spec.codecs.error_feedback;
  EPS_ASSIGN_OR_RETURN(table.residual_, FindFor("quantization.residual", spec.codecs.residual));
  EPS_RETURN_IF_ERROR(CheckDense("quantization.residual", *table.residual_));
  EPS_ASSIGN_OR_RETURN(const Codec* stash, FindFor("worker.stash_codec", spec.codecs.stash));
  if (!stash->traits().fixed_size || stash->traits().block > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker.stash_codec=", stash->name(),
                     ": stage inputs are stashed element by element; use fp32, bf16, fp16, "
                     "fp8_e4m3 or fp8_e5m2"));
  }
  const Step first(1);
  const Step last(spec.codecs.warmup_steps + 1);
  for (const Chunk& chunk : chunks.chunks()) {
    // All tensors of a chunk have one kind: a chunk holds one matrix, or only vectors.
    const TensorId tensor = chunk.segments.front().tensor;
    const std::string weights_key = KeyOf(spec, tensor, "weights");
    const std::string gradients_key = KeyOf(spec, tensor, "gradients");
    EPS_ASSIGN_OR_RETURN(const Codec* weights, FindFor(weights_key, WeightCodecName(spec, tensor)));
    EPS_RETURN_IF_ERROR(CheckDense(weights_key, *weights));
    EPS_ASSIGN_OR_RETURN(const Codec* gradient,
                         FindFor(gradients_key, GradientCodecName(spec, tensor, last)));
    EPS_ASSIGN_OR_RETURN(const Codec* warmup,
                         FindFor(gradients_key, GradientCodecName(spec, tensor, first)));
    table.weights_.push_back(weights);
    table.gradients_.push_back(gradient);
    table.warmup_gradients_.push_back(warmup);
  }
  return table;
}

absl::Status CodecTable::Ready() const {
  std::set<const Codec*> codecs(weights_.begin(), weights_.end());
  codecs.insert(gradients_.begin(), gradients_.end());
  codecs.insert(warmup_gradients_.begin(), warmup_gradients_.end());
  for (const Codec* const codec : codecs) EPS_RETURN_IF_ERROR(codec->Ready());
  return absl::OkStatus();
}

WeightAxes CodecTable::axes(StageId stage, ChunkId chunk, bool backward) const {
  WeightAxes axes;
  const TensorId tensor = chunks_->chunk(chunk).segments.front().tensor;
  for (const TensorUse& use : spec_->stages[stage.value()].uses) {
    if (use.tensor == tensor) axes = WeightAxesOf(*spec_, use, backward);
  }
  axes.has_second = axes.has_second && weights(chunk).traits().block > 1;
  return axes;
}

}  // namespace eps
