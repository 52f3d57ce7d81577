#ifndef EPS_SERVER_CORE_CUTS_RECOVERY_H_
#define EPS_SERVER_CORE_CUTS_RECOVERY_H_

// The lead's knowledge of the shards' durable state: which processes run, which terms they
// promised, and which cuts they have (docs/protocol.md). It outlives terms.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/numerics/loss_scale.h"
#include "eps/v1/shard.pb.h"
#include "storage/cuts/cut.h"

namespace eps {

// Conversions between the values of storage/cuts/cut.h and their messages.
CutId ToCutId(const v1::CutId& cut);
v1::CutId ToProto(const CutId& cut);
v1::Imported ToImported(const CutBorder& border);

// Returns the loss scale of the step after a border; nullopt without training.precision: cmp.
std::optional<LossScale> LossScaleAfter(const JobSpec& spec, const v1::Imported& border);

// Thread-compatible. Owns copies of everything it is given. Shard ids must be below servers.size().
class Recovery {
 public:
  // `servers` holds the addresses in shard order; they appear only in texts.
  explicit Recovery(std::vector<std::string> servers);

  // A process of a shard registers. Returns true if it is the first one or replaces another: its
  // memory differs, so the shards have to agree on their state in a new term.
  bool OnRegister(ShardId shard, uint64_t incarnation, Term promised);
  // Sets the most steps that may lie between two cuts of the shard; 0 sets no limit.
  void OnLimit(ShardId shard, uint64_t most_cut_steps);
  // Returns the smallest limit of all shards; 0 if none has one.
  uint64_t most_cut_steps() const;
  // Returns whether every shard has registered.
  bool AllRegistered() const;
  // Returns the incarnations in shard order; 0 for a shard that has not registered.
  std::vector<uint64_t> Incarnations() const;
  // Returns a term that is later than `current` and than every term promised by any shard.
  Term NextTerm(Term current) const;

  // Begins `term`, which no shard has promised and in which no cut is durable.
  void Begin(Term term);
  // Records a promise of the term that was begun. Returns true if it completes the promises of all
  // shards. Ignores repeated messages and other terms.
  bool OnPromised(ShardId shard, const v1::Promised& promised);
  // Returns the youngest cut that every shard has; nullopt if the job was not opened on any shard.
  // REQUIRES the promises of all shards. Errors are those of HighestCommonCut
  // (storage/cuts/common_cut.h).
  absl::StatusOr<std::optional<CutId>> HighestCommon() const;

  // Records that a cut of this term is durable on a shard. Returns true if that raises the
  // watermark.
  bool OnDurable(ShardId shard, const CutId& cut);
  // The job opened after the cut `base`, which every shard has: raises the watermark to it.
  void OnOpened(const CutId& base);
  // The youngest cut that is known to be on every shard.
  const std::optional<CutId>& watermark() const { return watermark_; }

  // Returns the first shard that is awaited, such as "shard 1 at 10.0.0.2:7000: its promise of term
  // 3"; empty if there is none.
  std::string WaitsFor() const;

 private:
  // The latest reports of one shard.
  struct Shard {
    std::optional<uint64_t> incarnation;
    Term promised;
    std::optional<v1::Promised> answer;  // its promise of the current term
    std::optional<CutId> durable;        // its youngest cut of the current term
    uint64_t most_cut_steps = 0;         // 0 sets no limit
  };

  std::string Name(size_t shard) const;

  const std::vector<std::string> servers_;
  std::vector<Shard> shards_;
  Term term_;  // the current term
  std::optional<CutId> watermark_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_CUTS_RECOVERY_H_
