#include "base/job/layout/chunk_map.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/job/optimizers.h"

namespace eps {
namespace {

constexpr uint64_t kMinDefaultChunk = uint64_t{64} << 10;
constexpr uint64_t kMaxDefaultChunk = uint64_t{1} << 20;
constexpr uint64_t kDefaultChunksPerModel = 64;

// Bytes that the map, the codecs and the desks of a server hold for a chunk, and for each of its
// uses.
constexpr uint64_t kBytesPerChunk = 512;
constexpr uint64_t kBytesPerUse = 64;

// For each tensor the stages that use it, in relay order.
std::vector<std::vector<StageId>> StagesOfTensors(const JobSpec& spec) {
  std::vector<std::vector<StageId>> stages(spec.tensors.size());
  for (uint32_t i = 0; i < spec.stages.size(); ++i) {
    for (const TensorUse& use : spec.stages[i].uses) {
      stages[use.tensor.value()].push_back(StageId(i));
    }
  }
  return stages;
}

Segment WholeVector(const JobSpec& spec, TensorId id) {
  const TensorSpec& tensor = spec.tensors[id.value()];
  Segment segment;
  segment.tensor = id;
  segment.rows = 1;
  segment.cols = tensor.cols;
  segment.group = tensor.group;
  return segment;
}

class Builder {
 public:
  explicit Builder(const JobSpec& spec) : spec_(spec), stages_of_(StagesOfTensors(spec)) {}

  std::vector<Chunk> Build() {
    for (uint32_t i = 0; i < spec_.stages.size(); ++i) {
      std::vector<TensorId> vectors;
      for (const TensorUse& use : spec_.stages[i].uses) {
        if (stages_of_[use.tensor.value()].front() != StageId(i)) continue;
        if (spec_.tensors[use.tensor.value()].rank == 1) {
          vectors.push_back(use.tensor);
        } else {
          AddPanels(use.tensor);
        }
      }
      std::sort(vectors.begin(), vectors.end());
      const auto frozen = std::stable_partition(
          vectors.begin(), vectors.end(), [this](TensorId id) { return !spec_.IsFrozen(id); });
      AddPacked({vectors.begin(), frozen});
      AddPacked({frozen, vectors.end()});
    }
    return std::move(chunks_);
  }

 private:
  Chunk* AddChunk(TensorId first) {
    Chunk chunk;
    chunk.id = ChunkId(static_cast<uint32_t>(chunks_.size()));
    chunk.uses = stages_of_[first.value()];
    chunk.frozen = spec_.IsFrozen(first);
    chunks_.push_back(std::move(chunk));
    return &chunks_.back();
  }

  static void Append(Segment segment, Chunk* chunk) {
    segment.offset = chunk->elements;
    chunk->elements += segment.elements();
    chunk->segments.push_back(segment);
  }

  void AddPanels(TensorId id) {
    const TensorSpec& tensor = spec_.tensors[id.value()];
    const uint64_t fitting = spec_.chunk_elements / tensor.cols / kPanelRows * kPanelRows;
    const uint64_t panel_rows = std::max<uint64_t>(kPanelRows, fitting);
    for (uint64_t row = 0; row < tensor.rows; row += panel_rows) {
      Segment segment;
      segment.tensor = id;
      segment.row = static_cast<uint32_t>(row);
      segment.rows = static_cast<uint32_t>(std::min<uint64_t>(panel_rows, tensor.rows - row));
      segment.cols = tensor.cols;
      segment.group = tensor.group;
      segment.tensor_offset = row * tensor.cols;
      Append(segment, AddChunk(id));
    }
  }

  void AddPacked(const std::vector<TensorId>& vectors) {
    Chunk* chunk = nullptr;
    for (TensorId id : vectors) {
      const Segment segment = WholeVector(spec_, id);
      if (chunk == nullptr || chunk->uses != stages_of_[id.value()] ||
          chunk->elements + segment.elements() > spec_.chunk_elements) {
        chunk = AddChunk(id);
      }
      Append(segment, chunk);
    }
  }

  const JobSpec& spec_;
  const std::vector<std::vector<StageId>> stages_of_;
  std::vector<Chunk> chunks_;
};

}  // namespace

size_t StateArrays(const JobSpec& spec, const Chunk& chunk) {
  return chunk.frozen ? 1 : 1 + StateFields(spec.optimizer).size();
}

uint64_t StateBytes(const JobSpec& spec, const Chunk& chunk) {
  return chunk.elements * sizeof(float) * StateArrays(spec, chunk);
}

uint64_t DescriptionBytes(const JobSpec& spec) {
  uint64_t chunks = 0;
  for (const TensorSpec& tensor : spec.tensors) chunks += MaxChunksOf(tensor, spec.chunk_elements);
  uint64_t uses = 0;
  for (const StageSpec& stage : spec.stages) {
    for (const TensorUse& use : stage.uses) {
      uses += MaxChunksOf(spec.tensors[use.tensor.value()], spec.chunk_elements);
    }
  }
  return chunks * kBytesPerChunk + uses * kBytesPerUse;
}

ChunkMap ChunkMap::Build(const JobSpec& spec) {
  ChunkMap map;
  map.chunks_ = Builder(spec).Build();
  map.stage_chunks_.resize(spec.stages.size());
  map.stage_elements_.resize(spec.stages.size());
  for (const Chunk& chunk : map.chunks_) {
    for (StageId stage : chunk.uses) {
      map.stage_chunks_[stage.value()].push_back(chunk.id);
      map.stage_elements_[stage.value()] += chunk.elements;
    }
  }
  return map;
}

absl::Span<const Chunk> ChunkMap::ChunksOfTensor(ChunkId id) const {
  const TensorId tensor = chunk(id).segments.front().tensor;
  const auto same = [&](size_t i) { return chunks_[i].segments.front().tensor == tensor; };
  size_t begin = id.value();
  size_t end = begin + 1;
  while (begin > 0 && same(begin - 1)) --begin;
  while (end < chunks_.size() && same(end)) ++end;
  return absl::MakeConstSpan(chunks_).subspan(begin, end - begin);
}

std::vector<ShardId> ChunkMap::Place(uint32_t shards) const {
  EPS_CHECK(shards > 0);
  constexpr uint32_t kNowhere = UINT32_MAX;
  std::vector<uint32_t> shard_of(chunks_.size(), kNowhere);
  using Elements = std::vector<uint64_t>;                                           // by shard
  std::array<Elements, 2> all_of_job = {Elements(shards, 0), Elements(shards, 0)};  // by frozen
  for (const std::vector<ChunkId>& stage : stage_chunks_) {
    std::array<Elements, 2> all_of_stage = {Elements(shards, 0), Elements(shards, 0)};
    // Tensors shared with an earlier stage already have a chunk.
    for (ChunkId id : stage) {
      const Chunk& chunk = chunks_[id.value()];
      const uint32_t shard = shard_of[id.value()];
      if (shard != kNowhere) all_of_stage[chunk.frozen ? 1 : 0][shard] += chunk.elements;
    }
    for (ChunkId id : stage) {
      if (shard_of[id.value()] != kNowhere) continue;
      const Chunk& chunk = chunks_[id.value()];
      Elements& of_stage = all_of_stage[chunk.frozen ? 1 : 0];
      Elements& of_job = all_of_job[chunk.frozen ? 1 : 0];
      uint32_t best = 0;
      for (uint32_t shard = 1; shard < shards; ++shard) {
        if (std::make_pair(of_stage[shard], of_job[shard]) <
            std::make_pair(of_stage[best], of_job[best])) {
          best = shard;
        }
      }
      shard_of[id.value()] = best;
      of_stage[best] += chunk.elements;
      of_job[best] += chunk.elements;
    }
  }
  std::vector<ShardId> placement;
  placement.reserve(shard_of.size());
  for (uint32_t shard : shard_of) placement.push_back(ShardId(shard));
  return placement;
}

uint64_t DefaultChunkElements(uint64_t total_elements) {
  uint64_t size = kMinDefaultChunk;
  while (size < kMaxDefaultChunk && size * 2 * kDefaultChunksPerModel <= total_elements) size *= 2;
  return size;
}

}  // namespace eps
