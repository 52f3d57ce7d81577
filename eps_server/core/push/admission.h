#ifndef EPS_SERVER_CORE_PUSH_ADMISSION_H_
#define EPS_SERVER_CORE_PUSH_ADMISSION_H_

// Decides which offered contributions may send their payload (docs/protocol.md). Each part has a
// quota, so that a fast part cannot fill the memory that a slow one needs. The oldest incomplete
// stage always fits its quota, so that progress never waits for memory. Contributions to tied
// tensors are held until the last use has arrived; their memory is reserved separately.

#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codec_table.h"

namespace eps {

// Thread-compatible. Owns the accounts of all parts of one job on one shard.
class Admission {
 public:
  // The most bytes that one part may hold on this shard.
  struct Quota {
    uint64_t ahead_bytes = 0;  // all stages but the oldest incomplete one, together
    uint64_t total_bytes = 0;  // ahead_bytes + the largest stage
    uint64_t tied_bytes = 0;   // tied chunks, in addition to total_bytes
    uint64_t per_part() const { return total_bytes + tied_bytes; }
  };
  // Computes the quota from the largest encoded gradients of the owned chunks' stages, during
  // warm-up or after it, whichever are larger.
  static Quota ComputeQuota(const JobSpec& spec, const ChunkMap& chunks, const CodecTable& codecs,
                            const std::vector<ChunkId>& owned);

  Admission(Quota quota, uint32_t parts) : quota_(quota), held_(parts, 0) {}

  // Returns whether `part` has room for `bytes` of a chunk of `stage` that is not tied.
  bool Fits(PartId part, StageId stage, StageId oldest_incomplete, uint64_t bytes) const {
    const uint64_t limit = stage == oldest_incomplete ? quota_.total_bytes : quota_.ahead_bytes;
    return held_[part.value()] + bytes <= limit;
  }
  // Charges `bytes` of a chunk of `stage` to `part` and returns true if they fit its quota now.
  bool Admit(PartId part, StageId stage, StageId oldest_incomplete, bool tied, uint64_t bytes);
  // Charges bytes that were admitted earlier, without a check of the quota.
  void Charge(PartId part, bool tied, uint64_t bytes);
  // Returns bytes that were charged, after the contribution is dropped or its update is done.
  // Aborts if the part holds fewer.
  void Release(PartId part, bool tied, uint64_t bytes);

  // Returns the bytes charged to a part, without those of tied chunks.
  uint64_t held_bytes(PartId part) const { return held_[part.value()]; }
  const Quota& quota() const { return quota_; }

 private:
  const Quota quota_;
  std::vector<uint64_t> held_;  // by part, without tied chunks
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_ADMISSION_H_
