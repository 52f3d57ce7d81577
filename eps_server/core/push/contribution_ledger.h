#ifndef EPS_SERVER_CORE_PUSH_CONTRIBUTION_LEDGER_H_
#define EPS_SERVER_CORE_PUSH_CONTRIBUTION_LEDGER_H_

// Makes each contribution count exactly once: records which contributions of the open step this
// shard has counted. Keys name no worker; the first contribution for a key wins (docs/protocol.md).

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/job/layout/chunk_map.h"
#include "base/numerics/reduction_tree.h"
#include "compression/codec.h"
#include "optimizer/update_request.h"

namespace eps {

// Thread-compatible. Borrows `spec` and `chunks`, which must outlive it; shares the data of the
// contributions. The caller must pass valid places (IsValid) and owned chunks.
class ContributionLedger {
 public:
  ContributionLedger(const JobSpec& spec, const ChunkMap& chunks,
                     const std::vector<ChunkId>& owned);

  // Identifies the bytes of a contribution and the process that sent them.
  struct Origin {
    uint64_t nonce = 0;
    uint64_t digest = 0;
  };
  // The place of a contribution in the open step: a chunk, one of its uses, and a range of parts.
  struct Place {
    ChunkId chunk;
    StageId use;
    TreeRange parts;
  };

  // The answer to a contribution that is offered.
  enum class Verdict {
    kNew,
    kDuplicate,  // already counted, from this or another process
    kConflict,   // already counted from the same process with other bytes
    kOverlap,    // some of its parts are counted; send only the others
  };
  // Compares a contribution with those counted so far. REQUIRES IsValid(place).
  Verdict Check(const Place& place, const Origin& origin) const;
  // Returns whether the place names an owned chunk that is not frozen, a stage that uses it, and a
  // node of the tree of parts.
  bool IsValid(const Place& place) const;

  // Counts a contribution. REQUIRES Check(place, origin) == kNew. `tokens` is the number of tokens
  // in the loss of its parts. `data` is null for a contribution that is not finite: it counts like
  // any other, but the chunk then has no gradient in this step.
  void Count(const Place& place, const Origin& origin, uint64_t tokens,
             std::shared_ptr<const EncodedChunk> data);

  // Returns whether every use of the chunk has all parts; true for a frozen chunk, which expects
  // none.
  bool Complete(ChunkId chunk) const;
  // Returns whether one of the contributions to the chunk is not finite.
  bool Nonfinite(ChunkId chunk) const;
  // Returns the data of a complete chunk and gives it up; its contributions stay counted. Aborts on
  // a second call in a step. REQUIRES Complete(chunk) and !Nonfinite(chunk).
  std::vector<UpdateInput> Take(ChunkId chunk);
  // Frees the data of a chunk that needs no Take; its contributions stay counted.
  void Drop(ChunkId chunk);

  // Returns the tokens of all parts of a complete chunk; nullopt if its uses disagree on them.
  std::optional<uint64_t> Tokens(ChunkId chunk) const;

  // Returns the highest stage that lacks a contribution on this shard: progress waits for it.
  // StageId(0) if none does.
  StageId OldestIncompleteStage() const;
  // Returns the first missing (use, part) of a chunk, for status texts. REQUIRES !Complete(chunk).
  Place FirstMissing(ChunkId chunk) const;

  // Returns the counted places that include one of `parts`.
  std::vector<Place> Counted(const std::vector<bool>& parts) const;

  // Forgets all contributions. Call when the next step opens.
  void Reset();

 private:
  // One counted contribution.
  struct Entry {
    TreeRange parts;
    Origin origin;
    uint64_t tokens = 0;
    std::shared_ptr<const EncodedChunk> data;  // null if not finite, taken or dropped
  };
  // The contributions to a chunk in one of its uses.
  struct UseState {
    std::map<uint32_t, Entry> entries;  // by first part
    uint32_t counted_parts = 0;
  };
  // The contributions to one owned chunk.
  struct ChunkEntries {
    ChunkId chunk;
    std::vector<UseState> uses;  // parallel to Chunk::uses
    uint32_t missing = 0;        // parts that are missing, summed over all uses
    bool nonfinite = false;
  };

  const UseState* Find(ChunkId chunk, StageId use) const;
  uint32_t UseIndex(ChunkId chunk, StageId use) const;

  const ChunkMap& chunks_;
  const uint32_t parts_;
  std::vector<int32_t> local_;           // chunk id -> index in entries_, -1 if not owned
  std::vector<ChunkEntries> entries_;    // owned chunks, ascending
  std::vector<uint64_t> stage_missing_;  // by stage: parts that are missing on this shard
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_CONTRIBUTION_LEDGER_H_
