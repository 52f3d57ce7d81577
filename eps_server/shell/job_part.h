#ifndef EPS_SERVER_SHELL_JOB_PART_H_
#define EPS_SERVER_SHELL_JOB_PART_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codec_table.h"

namespace eps {

// One shard's part of a job: its spec, and which chunks this shard holds. Immutable after
// FindCodecs, and thread-safe then.
class JobPart {
 public:
  // REQUIRES: `spec` is valid, and `shard` is one of `servers`.
  JobPart(JobSpec spec, std::vector<std::string> servers, ShardId shard);
  JobPart(const JobPart&) = delete;
  JobPart& operator=(const JobPart&) = delete;

  // Call once, before codecs(). Errors as CodecTable::Build and Ready.
  absl::Status FindCodecs();

  const JobSpec& spec() const { return spec_; }
  const std::string& spec_text() const { return spec_text_; }
  const ChunkMap& chunks() const { return chunks_; }
  const CodecTable& codecs() const { return *codecs_; }
  const std::vector<std::string>& servers() const { return servers_; }
  JobId id() const { return id_; }
  ShardId shard() const { return shard_; }
  const std::vector<ChunkId>& owned() const { return owned_; }  // the chunks of this shard

  // Returns whether this shard holds the chunk.
  bool Owns(ChunkId chunk) const;
  // Returns whether this shard holds a chunk of the stage. REQUIRES HasStage.
  bool OwnsSomeOf(StageId stage) const;
  bool HasStage(StageId stage) const { return stage.value() < spec_.stages.size(); }
  // Returns the bytes of a chunk's weights and optimizer state.
  uint64_t StateBytes(ChunkId chunk) const;

 private:
  const JobSpec spec_;
  const std::string spec_text_;
  const ChunkMap chunks_;
  std::optional<CodecTable> codecs_;  // set by FindCodecs
  const std::vector<std::string> servers_;
  const ShardId shard_;
  const JobId id_;
  const std::vector<ShardId> placement_;  // the shard of each chunk
  const std::vector<ChunkId> owned_;
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_JOB_PART_H_
