#ifndef EPS_SERVER_CORE_PUSH_CONTRIBUTION_LEDGER_H_
#define EPS_SERVER_CORE_PUSH_CONTRIBUTION_LEDGER_H_

// Exactly once, as a class: which contributions of the open step this shard has counted. Keys name
// no worker; the first contribution for a key wins (PROTOCOL.md section 1).

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "compression/codec.h"
#include "base/job/chunk_map.h"
#include "base/job/reduction_tree.h"
#include "storage/state_backend.h"

namespace eps {

// Thread-compatible. `spec` and `chunks` are borrowed and outlive it.
class ContributionLedger {
 public:
  ContributionLedger(const JobSpec& spec, const ChunkMap& chunks,
                     const std::vector<ChunkId>& owned);

  // What identifies the bytes of a contribution and the process that sent them.
  struct Origin {
    uint64_t nonce = 0;
    uint64_t digest = 0;
  };
  struct Place {
    ChunkId chunk;
    StageId use;
    TreeRange parts;
  };

  enum class Verdict {
    kNew,
    kDuplicate,  // counted, from this or another process
    kConflict,   // counted from this very process with other bytes
    kOverlap,    // some of its parts are counted: only the rest may be sent
  };
  // REQUIRES the place is valid: an owned chunk, a stage that uses it, a node of the tree of parts.
  Verdict Check(const Place& place, const Origin& origin) const;
  bool IsValid(const Place& place) const;

  // REQUIRES Check(place, origin) == kNew. `tokens`: those that counted in the loss of the parts.
  // `data` is null for a contribution that is not finite: it counts like any other, but the chunk's
  // gradient cannot be had any more.
  void Count(const Place& place, const Origin& origin, uint64_t tokens,
             std::shared_ptr<const EncodedChunk> data);

  // Every use of the chunk has every part.
  bool Complete(ChunkId chunk) const;
  // Whether one of the contributions to the chunk is not finite.
  bool Nonfinite(ChunkId chunk) const;
  // The data of a complete chunk, once; the ledger goes on knowing that it was counted.
  // REQUIRES !Nonfinite(chunk).
  std::vector<UpdateInput> Take(ChunkId chunk);
  // Lets go of the data of a chunk that Take is not called for; it stays counted.
  void Drop(ChunkId chunk);

  // Tokens of all parts of a complete chunk; nullopt if its uses do not agree on them.
  std::optional<uint64_t> Tokens(ChunkId chunk) const;

  // The highest stage of which this shard still misses a contribution: what progress waits for.
  // StageId(0) when nothing is missing.
  StageId OldestIncompleteStage() const;
  // The first missing (use, part) of a chunk, for status texts. REQUIRES !Complete(chunk).
  Place FirstMissing(ChunkId chunk) const;

  // Every chunk has the part in all its uses.
  bool Complete(PartId part) const;
  // All counted places that touch one of `parts`.
  std::vector<Place> Counted(const std::vector<bool>& parts) const;

  // Forgets everything: the next step opens.
  void Reset();

 private:
  struct Entry {
    TreeRange parts;
    Origin origin;
    uint64_t tokens = 0;
    std::shared_ptr<const EncodedChunk> data;
  };
  struct UseState {
    std::vector<Entry> entries;  // by first part
    uint32_t counted_parts = 0;
  };
  struct ChunkEntries {
    ChunkId chunk;
    std::vector<UseState> uses;  // as Chunk::uses
    uint32_t missing = 0;        // parts, over all uses
    bool nonfinite = false;
  };

  const UseState* Find(ChunkId chunk, StageId use) const;
  uint32_t UseIndex(ChunkId chunk, StageId use) const;

  const ChunkMap& chunks_;
  const uint32_t parts_;
  std::vector<int32_t> local_;           // chunk id -> index in entries_, -1: not ours
  std::vector<ChunkEntries> entries_;    // owned chunks, ascending
  std::vector<uint64_t> stage_missing_;  // parts missing, by stage
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_CONTRIBUTION_LEDGER_H_
