#ifndef EPS_SERVER_CORE_PUSH_ADMISSION_H_
#define EPS_SERVER_CORE_PUSH_ADMISSION_H_

// Which offered contributions may send their payload (PROTOCOL.md section 6). Each part has a
// quota, so that a fast part cannot fill the memory that a slow one needs; the oldest incomplete
// stage is always admitted, so that progress never waits for memory. Contributions to tied tensors
// are held until the last use has come; they are reserved apart.

#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"
#include "compression/codec_table.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"

namespace eps {

// Thread-compatible.
class Admission {
 public:
  // Bytes that one part may hold on this shard at most.
  struct Quota {
    uint64_t ahead_bytes = 0;  // of stages other than the oldest incomplete one, all together
    uint64_t total_bytes = 0;  // ahead_bytes + the largest stage
    uint64_t tied_bytes = 0;   // of tied chunks, beside total_bytes
    uint64_t per_part() const { return total_bytes + tied_bytes; }
  };
  // From the largest encoded gradients of the owned chunks' stages, in warm-up or after it.
  static Quota ComputeQuota(const JobSpec& spec, const ChunkMap& chunks, const CodecTable& codecs,
                            const std::vector<ChunkId>& owned);

  Admission(Quota quota, uint32_t parts) : quota_(quota), held_(parts, 0) {}

  // Whether `bytes` of a chunk of `stage` fit for `part` now; if so they are charged.
  bool Admit(PartId part, StageId stage, StageId oldest_incomplete, bool tied, uint64_t bytes);
  // Charges what was admitted before, whatever is held.
  void Charge(PartId part, bool tied, uint64_t bytes);
  // Gives back what was charged: the contribution is gone, or in an update that is done.
  void Release(PartId part, bool tied, uint64_t bytes);

  uint64_t held_bytes(PartId part) const { return held_[part.value()]; }
  const Quota& quota() const { return quota_; }

 private:
  const Quota quota_;
  std::vector<uint64_t> held_;  // by part, tied holdings apart
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_ADMISSION_H_
