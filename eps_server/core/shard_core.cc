#include "eps_server/core/shard_core.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/job/optimizers.h"
#include "compression/codec_table.h"
#include "eps_server/core/push/admission.h"
#include "eps_server/core/shard_router.h"
#include "storage/cuts/drives/memory_share.h"

namespace eps {
namespace {

constexpr uint64_t kLeaseChanges = 8;  // in a step, at most; a step has them rarely
constexpr uint64_t kPage = 4096;       // of memory
constexpr uint64_t kFactBytes = 512;   // of a log entry, apart from what grows with the job

}  // namespace

ShardCore::ShardCore(Options options) : life_(std::make_unique<ShardLife>()) {
  life_->options = options;
  if (options.caps.durable && options.shard == ShardId(0)) {
    life_->recovery = std::make_unique<Recovery>(options.servers);
  }
  term_ = std::make_unique<ShardRouter>(life_->options, life_.get());
}

ShardCore::~ShardCore() = default;

void ShardCore::Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out) {
  const auto handle = [&](const Event& next) {
    term_->Handle(next, now_ms, out);
    while (term_->is_over()) term_ = term_->NextTerm(out);
  };
  handle(event);
  while (const std::optional<Event> deferred = term_->TakeDeferred()) handle(*deferred);
}

void ShardCore::FillStatus(uint64_t now_ms, v1::StatusReply* status) const {
  term_->FillStatus(now_ms, status);
}

v1::JobState ShardCore::state() const { return term_->state(); }

uint64_t ShardCore::ContributionBudget(const JobSpec& spec, const ChunkMap& chunks,
                                       const std::vector<ChunkId>& owned,
                                       uint64_t gradients_in_memory) {
  uint64_t budget = GradientBudget(spec, chunks, owned);
  if (spec.training.mode != Mode::kSealed) return budget;
  const size_t arrays = 1 + StateFields(spec.optimizer).size();
  const std::vector<bool> in_memory = ChunksInMemory(chunks, owned, arrays, gradients_in_memory);
  for (size_t i = 0; i < owned.size(); ++i) {
    const Chunk& chunk = chunks.chunk(owned[i]);
    if (in_memory[i] && !chunk.frozen) budget += chunk.elements * sizeof(float);
  }
  return budget;
}

uint64_t ShardCore::GradientBudget(const JobSpec& spec, const ChunkMap& chunks,
                                   const std::vector<ChunkId>& owned) {
  const auto codecs = CodecTable::Build(spec, chunks);
  EPS_CHECK_MSG(codecs.ok(), codecs.status().ToString());
  const Admission::Quota quota = Admission::ComputeQuota(spec, chunks, *codecs, owned);
  return quota.per_part() * spec.training.parts;
}

uint64_t ShardCore::FetchBudget(const JobSpec& spec, const ChunkMap& chunks,
                                const std::vector<ChunkId>& owned, uint32_t jit_depth) {
  const auto codecs = CodecTable::Build(spec, chunks);
  EPS_CHECK_MSG(codecs.ok(), codecs.status().ToString());
  std::vector<uint64_t> stages(spec.stages.size(), 0);
  for (const ChunkId id : owned) {
    const Chunk& chunk = chunks.chunk(id);
    const Codec& codec = codecs->weights(id);
    const auto pages = [&](Axis axis) {
      return (codec.MaxEncodedSize(chunk, axis) + kPage - 1) / kPage * kPage;
    };
    for (const StageId stage : chunk.uses) {
      const WeightAxes axes = codecs->axes(stage, id, /*backward=*/true);
      stages[stage.value()] += pages(axes.first) + (axes.has_second ? pages(axes.second) : 0);
    }
  }
  std::sort(stages.rbegin(), stages.rend());
  stages.resize(std::min<size_t>(stages.size(), size_t{jit_depth} + 3));
  return std::accumulate(stages.begin(), stages.end(), uint64_t{0});
}

LogRoom ShardCore::LogNeeds(const JobSpec& spec, const ChunkMap& chunks,
                            const std::vector<ChunkId>& owned, uint64_t shards) {
  const auto codecs = CodecTable::Build(spec, chunks);
  LogRoom room;
  const Step after_warmup(spec.codecs.warmup_steps + 1);
  const uint64_t parts = spec.training.parts;
  for (const ChunkId id : owned) {
    const Chunk& chunk = chunks.chunk(id);
    if (chunk.frozen) continue;
    uint64_t bytes = 0;
    for (const Step step : {Step(1), after_warmup}) {
      const Codec* const residual = codecs->residual_or_null(id, step);
      uint64_t wanted = codecs->gradient(id, step).MaxEncodedSize(chunk, Axis::kRow);
      if (residual != nullptr) wanted += residual->MaxEncodedSize(chunk, Axis::kRow);
      bytes = std::max(bytes, wanted);
    }
    room.AddEntries(chunk.uses.size() * parts, kFactBytes + bytes);
  }
  // Reports of shards and workers, decisions, and a session, which repeats some of them.
  const uint64_t stats_bytes = kFactBytes + 24 * chunks.chunks().size();
  const uint64_t small_bytes = kFactBytes + 64 * (parts + shards);
  room.AddEntries(shards, stats_bytes);
  room.AddEntries(8 + 2 * parts, small_bytes);
  // A session after each cut, and after each change of leases or fences.
  room.AddEntries(1 + std::min<uint64_t>(parts, kLeaseChanges),
                  StepDesk::kStatsKept * stats_bytes + 8 * small_bytes);
  return room;
}

}  // namespace eps
