#ifndef EPS_STORAGE_CUTS_CUT_H_
#define EPS_STORAGE_CUTS_CUT_H_

// A cut is a border whose state is durable on every shard: the same borders on all of them, in
// order, never skipped (PROTOCOL.md 5).

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"

namespace eps {

// For "steps between cuts": as far apart as they have to be to cost little.
inline constexpr uint64_t kAutoCutSteps = UINT64_MAX;

// Two cuts are the same only if both agree: a step that was repeated after a recovery may have been
// cut twice, and the cut of the term that lost is dead.
struct CutId {
  Step step;  // the last step that is in it; 0: before training
  Term term;  // in which it was made

  friend bool operator==(const CutId& a, const CutId& b) {
    return a.step == b.step && a.term == b.term;
  }
  friend bool operator!=(const CutId& a, const CutId& b) { return !(a == b); }
  // By age: of two cuts with one step, that of the later term is the younger one.
  friend bool operator<(const CutId& a, const CutId& b) {
    return std::tie(a.step, a.term) < std::tie(b.step, b.term);
  }
};

// The job's state at a border, apart from what chunks hold: equal on all shards.
struct CutBorder {
  CutId id;
  Version version;         // of every chunk
  uint64_t update = 0;     // the optimizer's t
  double lagged_norm = 0;  // of the gradient of step id.step, for training.clip: lagged
  bool opened = false;     // the job had begun; false: its state was just imported
};

// What one contribution's codec left out (error feedback), as the shard keeps it.
struct CutResidual {
  ChunkId chunk;
  StageId use;
  PartId part;
  Bytes bytes;
};

// What a cut holds beside the chunks. `records` are v1::StepRecord messages, in order: in a request
// those since the cut before it, on the lead; out of a restored cut all of them up to the border.
struct CutContent {
  std::vector<CutResidual> residuals;  // in any order
  std::vector<std::string> records;
};

struct CutRequest {
  CutBorder border;
  CutContent content;
};

// One thing that a shard was told and that counts: what it says of it is the core's business.
struct LogEntry {
  Step step;         // a cut of this step, or a later one, makes it needless
  std::string text;  // small
  Bytes payload;
  Bytes residual;
};

// Whose memory a contribution log stands for.
struct LogId {
  Term term;
  uint64_t incarnation = 0;
};

// A log that a process left: what it was told in that term, behind the cut `base`.
struct FoundLog {
  LogId id;
  CutId opened;  // behind which the term began
  CutId base;    // the youngest cut of this shard
};

// What was found durable when a backend was opened.
struct RecoveredState {
  std::vector<CutBorder> cuts;  // ascending, complete on this shard
  Term promised;                // no earlier term may be served again; 0: none yet
  std::optional<FoundLog> log;  // of the promised term
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_CUT_H_
