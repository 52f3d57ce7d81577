#ifndef EPS_STORAGE_CUTS_CUT_H_
#define EPS_STORAGE_CUTS_CUT_H_

// A cut is a border whose state is durable on every shard. All shards cut the same borders, in
// order, and skip none (docs/durability.md).

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/numerics/loss_scale.h"

namespace eps {

// A value of "steps between cuts" that means: choose the distance so that cuts cost little.
inline constexpr uint64_t kAutoCutSteps = UINT64_MAX;

// Names a cut. It takes both members: a step that was repeated after a recovery may have been cut
// twice, and the cut of the abandoned term is invalid.
struct CutId {
  Step step;  // the last step that the cut contains; 0 means the state before training
  Term term;  // the term in which it was made

  friend bool operator==(const CutId& a, const CutId& b) {
    return a.step == b.step && a.term == b.term;
  }
  friend bool operator!=(const CutId& a, const CutId& b) { return !(a == b); }
  // Orders by age: of two cuts of one step, the one of the later term is younger.
  friend bool operator<(const CutId& a, const CutId& b) {
    return std::tie(a.step, a.term) < std::tie(b.step, b.term);
  }
};

// Returns a name for messages.
inline std::string NameOf(const CutId& id) {
  return "cut of step " + std::to_string(id.step.value()) + ", term " +
         std::to_string(id.term.value());
}

// The job's state at a border except for the chunks; equal on all shards.
struct CutBorder {
  CutId id;
  Version version;         // of every chunk that is not frozen
  uint64_t update = 0;     // the optimizer's step count t
  double lagged_norm = 0;  // the gradient's norm at step id.step, for training.clip: lagged
  std::optional<LossScale> loss_scale;  // of the step after id.step, with training.precision: cmp
  bool opened = false;  // false if the state was imported and training had not begun
};

// The quantization error of one contribution (error feedback), as the shard keeps it.
struct CutResidual {
  ChunkId chunk;
  StageId use;
  PartId part;
  Bytes bytes;
};

// The content of a cut besides the chunks. `records` are v1::StepRecord messages in order, on the
// lead only. A restored cut carries all records up to its border.
struct CutContent {
  std::vector<CutResidual> residuals;  // in any order
  std::vector<std::string> records;
};

// One message to a shard that the log has to keep. Only the core interprets it.
struct LogEntry {
  Step step;         // a cut of this step or a later one makes the entry obsolete
  std::string text;  // a small header
  Bytes payload;
  Bytes residual;
};

// Names the process whose memory a contribution log can rebuild.
struct LogId {
  Term term;
  uint64_t incarnation = 0;
};

// A log that an earlier process left: its messages of that term after the cut `base`.
struct FoundLog {
  LogId id;
  CutId opened;  // the cut at which the term began
  CutId base;    // the youngest cut of this shard
};

// The durable state that a backend found when it was opened.
struct RecoveredState {
  std::vector<CutBorder> cuts;  // ascending; complete on this shard
  std::string damage;           // names the file of a cut that is left out; empty if none is
  Term promised;                // no earlier term may be served again; 0 if none was promised
  std::optional<FoundLog> log;  // the log of the promised term
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_CUT_H_
