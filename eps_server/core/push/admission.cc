#include "eps_server/core/push/admission.h"

#include <algorithm>

#include "base/check.h"

namespace eps {

Admission::Quota Admission::ComputeQuota(const JobSpec& spec, const ChunkMap& chunks,
                                         const CodecTable& codecs,
                                         const std::vector<ChunkId>& owned) {
  const Step warmup(1);
  const Step after(spec.codecs.warmup_steps + 1);
  std::vector<uint64_t> stage_bytes(spec.stages.size(), 0);
  Quota quota;
  for (ChunkId id : owned) {
    const Chunk& chunk = chunks.chunk(id);
    if (chunk.frozen) continue;
    const Codec* residual = codecs.residual_or_null(id, after);
    const auto most = [&](const Codec& codec) {
      return codec.MaxEncodedSize(chunk, Axis::kRow) + codec.IndexSize(chunk);
    };
    const uint64_t bytes =
        std::max(most(codecs.gradient(id, warmup)),
                 most(codecs.gradient(id, after)) + (residual == nullptr ? 0 : most(*residual)));
    if (chunk.uses.size() > 1) {
      quota.tied_bytes += bytes * chunk.uses.size();
      continue;
    }
    stage_bytes[chunk.uses.front().value()] += bytes;
  }
  std::sort(stage_bytes.rbegin(), stage_bytes.rend());
  const uint64_t largest = stage_bytes[0];
  quota.ahead_bytes = stage_bytes.size() > 1 ? stage_bytes[1] : 0;
  quota.total_bytes = largest + quota.ahead_bytes;
  return quota;
}

bool Admission::Admit(PartId part, StageId stage, StageId oldest_incomplete, bool tied,
                      uint64_t bytes) {
  if (tied) return true;  // bounded: each use of the chunk counts once
  if (!Fits(part, stage, oldest_incomplete, bytes)) return false;
  held_[part.value()] += bytes;
  return true;
}

void Admission::Charge(PartId part, bool tied, uint64_t bytes) {
  if (!tied) held_[part.value()] += bytes;
}

void Admission::Release(PartId part, bool tied, uint64_t bytes) {
  if (tied) return;
  uint64_t& held = held_[part.value()];
  EPS_CHECK_MSG(held >= bytes, "part " << part << " releases " << bytes << " of " << held);
  held -= bytes;
}

}  // namespace eps
