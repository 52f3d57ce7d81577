#include "verify/wire_reference.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "spec/codec_table.h"

namespace eps {
namespace {

const char kBf16[] = "bf16";

// The place of a tensor among the uses of a stage.
size_t UseOf(const StageSpec& stage, TensorId tensor) {
  size_t use = 0;
  while (stage.uses[use].tensor != tensor) ++use;
  return use;
}

// The elements of a chunk in their order. `values(tensor)` is an array of all of a tensor.
template <class Values>
std::vector<float> Gather(const Chunk& chunk, const Values& values) {
  std::vector<float> elements(chunk.elements);
  for (const Segment& s : chunk.segments) {
    const float* const from = values(s.tensor).data() + s.tensor_offset;
    std::copy(from, from + s.elements(), elements.data() + s.offset);
  }
  return elements;
}

template <class Values>
void Scatter(const std::vector<float>& elements, const Chunk& chunk, const Values& values) {
  for (const Segment& s : chunk.segments) {
    const float* const from = elements.data() + s.offset;
    std::copy(from, from + s.elements(), values(s.tensor).data() + s.tensor_offset);
  }
}

bool IsZero(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits == 0;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireReference>> WireReference::New(const JobSpec& spec,
                                                                  const ChunkMap& chunks) {
  std::unique_ptr<WireReference> wire(new WireReference(spec, chunks));
  const CodecSpec& codecs = spec.codecs;
  const std::pair<const char*, const std::string*> names[] = {
      {"quantization.weights", &codecs.weights},
      {"quantization.gradients", &codecs.gradients},
      {"quantization.embedding_weights", &codecs.embedding.weights},
      {"quantization.embedding_gradients", &codecs.embedding.gradients},
      {"quantization.head_weights", &codecs.head.weights},
      {"quantization.head_gradients", &codecs.head.gradients},
      {"quantization.norm_weights", &codecs.norm.weights},
      {"quantization.norm_gradients", &codecs.norm.gradients},
      {"quantization.residual", &codecs.residual},
  };
  for (const auto& [key, name] : names) EPS_RETURN_IF_ERROR(wire->AddCodec(key, *name));
  for (const char* const name : {kWarmupGradients, kBf16}) {
    EPS_RETURN_IF_ERROR(wire->AddCodec(name, name));
  }
  return wire;
}

WireReference::WireReference(const JobSpec& spec, const ChunkMap& chunks)
    : spec_(spec), chunks_(chunks) {
  for (const Axis axis : {Axis::kRow, Axis::kColumn}) seen_[axis].resize(spec.tensors.size());
  for (const StageSpec& stage : spec.stages) {
    for (const TensorUse& use : stage.uses) {
      const WeightAxes axes = WeightAxesOf(spec, use, /*backward=*/true);
      seen_[axes.first][use.tensor.value()] = true;
      if (axes.has_second) seen_[axes.second][use.tensor.value()] = true;
    }
  }
}

absl::Status WireReference::AddCodec(const std::string& key, const std::string& name) {
  absl::StatusOr<std::unique_ptr<ReferenceCodec>> codec = NewReferenceCodec(name);
  if (!codec.ok()) {
    return absl::UnimplementedError(absl::StrCat("the reference does not know how ", key, "=", name,
                                                 " rounds: ", codec.status().message()));
  }
  codecs_[name] = *std::move(codec);
  return absl::OkStatus();
}

void WireReference::Pass(const std::string& codec, const Chunk& chunk, Axis axis,
                         std::vector<float>* elements, std::vector<float>* residual_or_null) const {
  const ReferenceCodec& reference = *codecs_.at(codec);
  const std::string bytes =
      reference.Encode(chunk, axis, elements->data(),
                       residual_or_null == nullptr ? nullptr : residual_or_null->data());
  reference.Decode(chunk, axis, bytes, elements->data());
}

TensorValues WireReference::Weights(const TensorValues& weights, Axis axis) const {
  const std::vector<bool>& seen = seen_.at(axis);
  TensorValues shown(weights.size());
  for (size_t t = 0; t < weights.size(); ++t) {
    if (seen[t]) shown[t].resize(weights[t].size());
  }
  for (const Chunk& chunk : chunks_.chunks()) {
    // The tensors of a chunk are used by the same stages, and all of rank 1 or one matrix.
    const TensorId first = chunk.segments.front().tensor;
    if (!seen[first.value()]) continue;
    std::vector<float> elements =
        Gather(chunk, [&](TensorId t) -> const std::vector<float>& { return weights[t.value()]; });
    Pass(WeightCodecName(spec_, first), chunk, axis, &elements, nullptr);
    if (spec_.codecs.backward_weights == BackwardWeights::kDecodeOnce &&
        spec_.tensors[first.value()].rank != 1) {
      Pass(kBf16, chunk, axis, &elements, nullptr);
    }
    Scatter(elements, chunk, [&](TensorId t) -> std::vector<float>& { return shown[t.value()]; });
  }
  return shown;
}

void WireReference::PassGradient(Step step, uint32_t part, UseGradients* gradient) {
  const bool past_warmup = step.value() > spec_.codecs.warmup_steps;
  for (const Chunk& chunk : chunks_.chunks()) {
    const std::string codec = GradientCodecName(spec_, chunk.segments.front().tensor, step);
    for (const StageId use : chunk.uses) {
      const auto of_use = [&](TensorId t) -> std::vector<float>& {
        return (*gradient)[use.value()][UseOf(spec_.stages[use.value()], t)];
      };
      std::vector<float> elements = Gather(chunk, of_use);
      if (past_warmup && spec_.codecs.error_feedback) {
        const ResidualKey key{part, use, chunk.id};
        std::vector<float>& residual = waiting_[key];
        const auto before = residuals_.find(key);
        residual = before == residuals_.end() ? std::vector<float>(chunk.elements) : before->second;
        Pass(codec, chunk, Axis::kRow, &elements, &residual);
        if (IsZero(residual)) {
          residual.clear();
        } else {
          Pass(spec_.codecs.residual, chunk, Axis::kRow, &residual, nullptr);
        }
      } else {
        Pass(codec, chunk, Axis::kRow, &elements, nullptr);
      }
      Scatter(elements, chunk, of_use);
    }
  }
}

void WireReference::KeepResiduals() {
  for (auto& [key, residual] : waiting_) {
    if (residual.empty()) {
      residuals_.erase(key);
    } else {
      residuals_[key] = std::move(residual);
    }
  }
  waiting_.clear();
}

}  // namespace eps
