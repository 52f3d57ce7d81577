#ifndef EPS_SERVER_CORE_CUTS_RECOVERY_H_
#define EPS_SERVER_CORE_CUTS_RECOVERY_H_

// What the lead knows of the other shards' durable state: who is there, what they promised, which
// cuts they have (PROTOCOL.md 5). It outlives terms.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "eps/v1/shard.pb.h"
#include "storage/cuts/cut.h"

namespace eps {

CutId ToCutId(const v1::CutId& cut);
v1::CutId ToProto(const CutId& cut);
v1::Imported ToImported(const CutBorder& border);
// "step 40 (term 2)".
std::string CutName(const CutId& cut);

// Thread-compatible.
class Recovery {
 public:
  // `servers`: addresses in shard order, for texts.
  explicit Recovery(std::vector<std::string> servers);

  // A shard is there. True if its memory is not the one that was there before, or was never there:
  // what it knows has to be agreed on, in a new term.
  bool OnRegister(ShardId shard, uint64_t incarnation, Term promised);
  // At most so many steps may lie between two cuts for the shard; 0: any number.
  void OnLimit(ShardId shard, uint64_t most_cut_steps);
  // For all of them.
  uint64_t most_cut_steps() const;
  bool AllRegistered() const;
  // Of all shards, in their order; 0: not registered.
  std::vector<uint64_t> Incarnations() const;
  // Later than all that was promised anywhere, and than `current`.
  Term NextTerm(Term current) const;

  // A new term has begun: nobody has promised it, and nothing is durable in it.
  void Begin(Term term);
  // True when this was the last one to promise the term that was begun. Repeated messages are
  // counted once.
  bool OnPromised(ShardId shard, const v1::Promised& promised);
  // The youngest cut that every shard has; nullopt if no job had begun anywhere.
  // FailedPrecondition, with what each shard has, if there is none; Internal if it is older than
  // one that was known to be everywhere.
  absl::StatusOr<std::optional<CutId>> HighestCommon() const;

  // A shard has a cut of this term. True when it was the last one: the cut is now everywhere.
  bool OnDurable(ShardId shard, const CutId& cut);
  // The job is open behind a cut: every shard has it.
  void OnOpened(const CutId& base);
  // The youngest cut that is known to be everywhere.
  const std::optional<CutId>& watermark() const { return watermark_; }

  // "shard 1 at 10.0.0.2:7000: its promise of term 3", or empty.
  std::string WaitsFor() const;

 private:
  struct Shard {
    std::optional<uint64_t> incarnation;
    Term promised;
    std::optional<v1::Promised> answer;  // in the term that was begun
    std::optional<CutId> durable;        // the youngest one
    uint64_t most_cut_steps = 0;
  };

  std::string Name(size_t shard) const;

  const std::vector<std::string> servers_;
  std::vector<Shard> shards_;
  Term term_;
  std::optional<CutId> watermark_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_CUTS_RECOVERY_H_
