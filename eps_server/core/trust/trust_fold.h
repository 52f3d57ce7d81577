#ifndef EPS_SERVER_CORE_TRUST_TRUST_FOLD_H_
#define EPS_SERVER_CORE_TRUST_TRUST_FOLD_H_

// The norms of one step, as the lead collects them: they become the trust ratios of all tensors.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "eps/v1/shard.pb.h"
#include "optimizer/update_request.h"

namespace eps {

// Thread-compatible. Borrows spec and chunks, which must outlive it. The result does not depend on
// the order in which messages arrive, nor on how chunks are dealt to shards.
class TrustFold {
 public:
  TrustFold(const JobSpec& spec, const ChunkMap& chunks);

  // Forgets all norms and collects those of `step`.
  void Begin(uint64_t step);
  // Counts the chunks of a message. Ignores a message of another step, and a chunk that has been
  // counted. InvalidArgument, with the chunk, for one that is frozen or unknown, or that has
  // another number of segments.
  absl::Status OnNorms(const v1::TensorNorms& norms);
  // Returns the ratios once every chunk is counted: the sums of a tensor are added in the order of
  // its chunks. nullopt before, and without a step.
  std::optional<v1::Trust> Fold() const;
  uint64_t step() const { return step_; }  // 0 before the first Begin
  // The first chunk whose norms are missing.
  std::optional<ChunkId> Missing() const;

 private:
  const JobSpec& spec_;
  const ChunkMap& chunks_;
  uint64_t step_ = 0;
  std::vector<std::vector<SegmentSquares>> squares_;  // by chunk; empty: not counted
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TRUST_TRUST_FOLD_H_
