#include "planner/workload.h"

#include "base/ids.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/visits.h"
#include "base/job/models/model_family.h"
#include "base/job/optimizers.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "compression/codec_table.h"

namespace eps::planner {
namespace {

constexpr double kBitsPerByte = 8;

// Returns the encoded size of a chunk: exact if the codec has a fixed size, else expected.
Bytes EncodedBytes(const Codec& codec, const Chunk& chunk, Axis axis) {
  if (codec.traits().fixed_size) {
    return Bytes(static_cast<double>(codec.MaxEncodedSize(chunk, axis)));
  }
  return Bytes(static_cast<double>(chunk.elements) * codec.traits().bits_per_element /
               kBitsPerByte);
}

// Returns the stash bytes for one token's input of a stage. The codec fp32 keeps 16-bit values.
absl::StatusOr<Bytes> StashBytesPerToken(const JobSpec& spec) {
  EPS_ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(spec.codecs.stash));
  const bool halved = spec.codecs.stash == "fp32" && spec.training.precision != Precision::kFp32;
  const double bytes = codec->traits().bits_per_element / kBitsPerByte / (halved ? 2 : 1);
  return Bytes(bytes * FamilyOf(spec.model.type).width(spec.model));
}

}  // namespace

Bytes Workload::fetched_by_worker() const {
  Bytes bytes;
  for (const StageWork& stage : stages) bytes += stage.fetch_forward + stage.fetch_backward;
  return bytes;
}

Bytes Workload::pushed_of_part() const {
  Bytes bytes;
  for (const StageWork& stage : stages) bytes += stage.push;
  return bytes;
}

Bytes Workload::residual_of_part() const {
  Bytes bytes;
  for (const StageWork& stage : stages) bytes += stage.residual;
  return bytes;
}

double Workload::fetched_chunks(uint32_t parts) const {
  double count = 0;
  for (const StageWork& stage : stages) {
    count += stage.chunks_of(stage.fetch_forward, 0) + stage.chunks_of(stage.fetch_backward, parts);
  }
  return count;
}

double Workload::pushed_chunks_of_part() const {
  double count = 0;
  for (const StageWork& stage : stages) count += stage.chunks;
  return count;
}

Bytes FetchedBytes(const Workload& work, uint32_t workers) {
  return static_cast<double>(workers) * work.fetched_by_worker();
}

Bytes PushedBytes(const Workload& work) {
  return static_cast<double>(work.parts) * work.pushed_of_part();
}

Bytes ResidualBytes(const Workload& work) {
  return static_cast<double>(work.parts) * work.residual_of_part();
}

absl::StatusOr<Workload> WorkloadOf(const JobSpec& spec) {
  const ChunkMap chunks = ChunkMap::Build(spec);
  EPS_ASSIGN_OR_RETURN(const CodecTable codecs, CodecTable::Build(spec, chunks));
  EPS_ASSIGN_OR_RETURN(const Bytes stash_per_token, StashBytesPerToken(spec));
  const Step after_warmup(spec.codecs.warmup_steps + 1);
  const ModelFamily& family = FamilyOf(spec.model.type);
  const TrainingSpec& t = spec.training;
  const double sequences = static_cast<double>(t.micro_batch_size) * t.micro_batches;

  Workload work;
  work.parameters = spec.total_elements();
  work.parts = t.parts;
  work.micro_batches = t.micro_batches;
  work.tokens = spec.tokens_per_step();
  work.precision = t.precision;
  work.sealed = t.mode == Mode::kSealed;
  work.measures = RowOf(spec.optimizer.name).adapts;
  uint64_t state = 0;
  for (const Chunk& chunk : chunks.chunks()) state += StateBytes(spec, chunk);
  work.state_per_parameter =
      Bytes(static_cast<double>(state) / static_cast<double>(work.parameters));
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    const StageId id(s);
    const bool last = s + 1 == spec.stages.size();
    const bool fetched_for_backward = FetchesWeights(spec, {id, /*backward=*/true});
    StageWork stage;
    stage.name = spec.stages[s].name;
    stage.elements = chunks.StageElements(id);
    stage.chunks = static_cast<uint32_t>(chunks.ChunksOfStage(id).size());
    for (const ChunkId chunk_id : chunks.ChunksOfStage(id)) {
      const Chunk& chunk = chunks.chunk(chunk_id);
      const Codec& weights = codecs.weights(chunk_id);
      const WeightAxes forward = codecs.axes(id, chunk_id, /*backward=*/false);
      const WeightAxes backward = codecs.axes(id, chunk_id, /*backward=*/true);
      // The last stage runs its forward and its backward pass in a row, so one fetch serves both.
      stage.fetch_forward += EncodedBytes(weights, chunk, last ? backward.first : forward.first);
      if (!last && fetched_for_backward) {
        stage.fetch_backward += EncodedBytes(weights, chunk, backward.first);
      }
      if (backward.has_second && fetched_for_backward) {
        stage.fetch_backward += EncodedBytes(weights, chunk, backward.second);
      }
      if (chunk.frozen) continue;
      stage.push += EncodedBytes(codecs.gradient(chunk_id, after_warmup), chunk, Axis::kRow);
      const Codec* const residual = codecs.residual_or_null(chunk_id, after_warmup);
      if (residual != nullptr && spec.codecs.residual_home == ResidualHome::kServer) {
        stage.residual += EncodedBytes(*residual, chunk, Axis::kRow);
      }
    }
    const StageShape shape = {s, spec.stages.size(), stage.elements,
                              static_cast<double>(t.seq_len)};
    stage.forward = sequences * Flops(family.ForwardFlops(spec.model, shape));
    // Every stage except the last recomputes its forward pass before its backward pass.
    const double backward_passes = last ? 2 : 3;
    stage.backward = backward_passes * stage.forward;
    stage.forward_activations = sequences * Bytes(family.ActivationBytes(spec.model, shape));
    stage.backward_activations = backward_passes * stage.forward_activations;
    if (s > 0) stage.stash = sequences * t.seq_len * stash_per_token;
    work.model_flops += static_cast<double>(t.parts) * 3.0 * stage.forward;
    work.stages.push_back(std::move(stage));
  }
  return work;
}

}  // namespace eps::planner
