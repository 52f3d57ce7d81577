#include "verify/wire_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/layout/codec_table.h"
#include "base/status_macros.h"

namespace eps {
namespace {

const char kBf16[] = "bf16";

// Returns the index of a tensor among the uses of a stage.
size_t UseOf(const StageSpec& stage, TensorId tensor) {
  size_t use = 0;
  while (stage.uses[use].tensor != tensor) ++use;
  return use;
}

// Returns the elements of a chunk in chunk order. `values(tensor)` returns the whole tensor's
// array.
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

// Returns whether a codec selects what it sends from all chunks of a tensor together.
bool ChoosesAmongTensors(const std::string& codec) { return absl::EndsWith(codec, ":tensor"); }

// Returns how many chunks from index `i` on belong to the same matrix; 1 for vectors.
size_t ChunksFrom(absl::Span<const Chunk> chunks, size_t i) {
  const TensorId tensor = chunks[i].segments.front().tensor;
  size_t end = i + 1;
  while (end < chunks.size() && chunks[end].segments.front().tensor == tensor) ++end;
  return end - i;
}

// Returns the pieces of a matrix joined into one chunk.
Chunk Joined(absl::Span<const Chunk> chunks) {
  Chunk joined = chunks.front();
  for (const Chunk& chunk : chunks.subspan(1)) {
    joined.segments.front().rows += chunk.segments.front().rows;
    joined.elements += chunk.elements;
  }
  return joined;
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
    // All tensors of a chunk are used by the same stages; the chunk holds vectors or one matrix.
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

void WireReference::PassGradient(Step step, uint32_t part, int loss_scale_log2,
                                 UseGradients* gradient) {
  const float scale = std::ldexp(1.0f, loss_scale_log2);
  const absl::Span<const Chunk> all = chunks_.chunks();
  for (size_t i = 0; i < all.size();) {
    if (all[i].frozen) {  // nobody sends its gradient
      ++i;
      continue;
    }
    const std::string codec = GradientCodecName(spec_, all[i].segments.front().tensor, step);
    const size_t count = ChoosesAmongTensors(codec) ? ChunksFrom(all, i) : 1;
    for (const StageId use : all[i].uses) {
      const auto of_use = [&](TensorId t) -> std::vector<float>& {
        return (*gradient)[use.value()][UseOf(spec_.stages[use.value()], t)];
      };
      const Chunk chunk = Joined(all.subspan(i, count));
      std::vector<float> elements = Gather(chunk, of_use);
      if (step.value() > spec_.codecs.warmup_steps && spec_.codecs.error_feedback) {
        std::vector<float> residual;
        for (const Chunk& piece : all.subspan(i, count)) {
          const auto before = residuals_.find({part, use, piece.id});
          if (before != residuals_.end()) {
            residual.insert(residual.end(), before->second.begin(), before->second.end());
          } else {
            residual.resize(residual.size() + piece.elements);
          }
        }
        for (float& x : residual) x /= scale;
        Pass(codec, chunk, Axis::kRow, &elements, &residual);
        for (float& x : residual) x *= scale;
        Keep(residual, all.subspan(i, count), part, use);
      } else {
        Pass(codec, chunk, Axis::kRow, &elements, nullptr);
      }
      Scatter(elements, chunk, of_use);
    }
    i += count;
  }
}

void WireReference::Keep(const std::vector<float>& residual, absl::Span<const Chunk> chunks,
                         uint32_t part, StageId use) {
  auto begin = residual.begin();
  for (const Chunk& chunk : chunks) {
    const auto end = begin + static_cast<std::ptrdiff_t>(chunk.elements);
    std::vector<float>& waiting = waiting_[{part, use, chunk.id}];
    waiting.assign(begin, end);
    begin = end;
    if (IsZero(waiting)) {
      waiting.clear();
    } else {
      Pass(spec_.codecs.residual, chunk, Axis::kRow, &waiting, nullptr);
    }
  }
}

std::map<std::string, std::vector<float>> WireReference::Residuals(uint32_t part) const {
  std::map<std::string, std::vector<float>> by_name;
  for (const auto& [key, residual] : residuals_) {
    const auto& [of_part, use, id] = key;
    if (of_part != part) continue;
    const Chunk& chunk = chunks_.chunk(id);
    for (const Segment& s : chunk.segments) {
      const TensorSpec& tensor = spec_.tensors[s.tensor.value()];
      std::vector<float>& values =
          by_name[chunk.uses.size() == 1 ? tensor.name
                                         : absl::StrCat(tensor.name, "@", use.value())];
      values.resize(tensor.elements());
      std::copy_n(residual.data() + s.offset, s.elements(), values.data() + s.tensor_offset);
    }
  }
  return by_name;
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
