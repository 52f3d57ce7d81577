#include "storage/cuts/residual_budget.h"

#include "base/check.h"
#include "compression/codec_table.h"

namespace eps {

uint64_t ResidualBudget(const JobSpec& spec, const ChunkMap& chunks,
                        const std::vector<ChunkId>& owned, bool durable) {
  if (spec.codecs.residual_home != ResidualHome::kServer && !durable) return 0;
  const auto codecs = CodecTable::Build(spec, chunks);
  EPS_CHECK_MSG(codecs.ok(), codecs.status().ToString());
  const Step after_warmup(spec.codecs.warmup_steps + 1);
  uint64_t bytes = 0;
  for (ChunkId id : owned) {
    const Codec* codec = codecs->residual_or_null(id, after_warmup);
    if (codec == nullptr) continue;
    const Chunk& chunk = chunks.chunk(id);
    bytes += codec->MaxEncodedSize(chunk, Axis::kRow) * chunk.uses.size() * spec.training.parts;
  }
  return bytes;
}

}  // namespace eps
