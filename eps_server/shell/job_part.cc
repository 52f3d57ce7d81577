#include "eps_server/shell/job_part.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace eps {
namespace {

std::vector<ChunkId> ChunksOf(const std::vector<ShardId>& placement, ShardId shard) {
  std::vector<ChunkId> owned;
  for (size_t i = 0; i < placement.size(); ++i) {
    if (placement[i] == shard) owned.push_back(ChunkId(static_cast<uint32_t>(i)));
  }
  return owned;
}

}  // namespace

JobPart::JobPart(JobSpec spec, std::vector<std::string> servers, ShardId shard)
    : spec_(std::move(spec)),
      spec_text_(spec_.ToText()),
      chunks_(ChunkMap::Build(spec_)),
      servers_(std::move(servers)),
      shard_(shard),
      id_(spec_.id()),
      placement_(chunks_.Place(static_cast<uint32_t>(servers_.size()))),
      owned_(ChunksOf(placement_, shard_)) {}

absl::Status JobPart::FindCodecs() {
  EPS_ASSIGN_OR_RETURN(CodecTable codecs, CodecTable::Build(spec_, chunks_));
  EPS_RETURN_IF_ERROR(codecs.Ready());
  codecs_.emplace(std::move(codecs));
  return absl::OkStatus();
}

bool JobPart::Owns(ChunkId chunk) const {
  return chunk.value() < placement_.size() && placement_[chunk.value()] == shard_;
}

bool JobPart::OwnsSomeOf(StageId stage) const {
  const auto chunks = chunks_.ChunksOfStage(stage);
  return std::any_of(chunks.begin(), chunks.end(), [this](ChunkId chunk) { return Owns(chunk); });
}

uint64_t JobPart::StateBytes(ChunkId chunk) const {
  return eps::StateBytes(spec_, chunks_.chunk(chunk));
}

}  // namespace eps
