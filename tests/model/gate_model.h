#ifndef EPS_TESTS_MODEL_GATE_MODEL_H_
#define EPS_TESTS_MODEL_GATE_MODEL_H_

// Gates, their holders, and servers that drain, as a state machine: the rules G1 to G22 of
// docs/protocol.md ("Gates"), with an exhaustive search over every order of messages and faults
// within the bounds of a configuration.
//
// Two shards complete steps together; the process of shard 0 is also the lead, whose own shard
// hears from it at once. The link between lead and shard 1 delivers in order, late, and breaks;
// what is on its way then is lost. One worker computes the only part. Holders are a program that
// writes checkpoints (a driver; two of them one after the other), an operator who pauses the job,
// and servers that drain. Their requests to the lead arrive late, in any order, twice, or never. A
// shard may crash, with a contribution log or without. A recovery is one act, except that each
// shard then opens by itself.
//
// A way on is a path to a state in which the job is done, every driver that lives has written its
// checkpoints and nobody waits, without another fault and without a message of a dead driver. A
// fault, a pause and a server's drain are never progress; a resume, the restart of a server and the
// end of a dead driver's lease are.
//
// Rules G1 to G15 are those of this build. G16 to G22 are those of drivers with a lease and of a
// durable pause, which the build does not have yet. Each rule can be removed; the search must then
// find the failure that the rule prevents.

#include <bitset>
#include <cstddef>
#include <cstdint>

#include "tests/model/search/model_result.h"

namespace eps {

// The rules of gates, in the order of docs/protocol.md.
enum class GateRule : uint8_t {
  kHolders,             // G1: a holder moves and lifts its own gate only
  kLowestHolds,         // G2
  kAbsence,             // G3: "no gate" is not a gate at step 0
  kAllAnswer,           // G4: the lead answers when every shard has the change
  kAnswerNamesChange,   // G5: a shard's answer names the change that it has
  kOpenShardsAnswer,    // G6: a shard that recovers does not answer before it is open
  kHolderMovesOn,       // G7: a holder takes the first border that it is told
  kRepeatAtRegister,    // G8: the lead repeats the gate to a shard that registers
  kRepeatAbsence,       // G9: it does so if there is none, too
  kRepeatBeforeOpen,    // G10: it repeats the gate to each shard before a term opens
  kHolderSetsAgain,     // G11: a holder sets its gate again after the lead's process or term ended
  kCutAtGate,           // G12: the border of a gate gets a cut
  kDrainUndecided,      // G13: a server drains at a border that is not decided yet
  kEndAtCommonCut,      // G13: it ends when every shard has the cut
  kReaderKeepsServer,   // G14: it stays while another holder may read its border
  kLeadEndsLast,        // G14: the lead ends after the others
  kDrainLifts,          // G15: its gate ends when it registers and drains no more
  kDrainTimesOut,       // G15: it ends without a word of a lead that is away
  kPauseIsDurable,      // G16
  kPauseUndecided,      // G17: a pause takes a border that is not decided yet
  kDrainAtPause,        // G18: a server of a paused job drains at the pause's border
  kPauseKeepsNoServer,  // G19: nobody reads that border because of the pause
  kLeaseEndsGate,       // G20: a driver's gate ends with its lease
  kDriverLeaseEnds,     // G20: the lease of a dead driver ends
  kRequestNamesLease,   // G21: the lead refuses a request whose lease is over
  kRequestsInOrder,     // G22: the lead ignores a request that is older than one of its holder's
};
constexpr size_t kGateRules = 26;

// The bounds of a search, and the rules that do not hold in it.
struct GateConfig {
  int steps = 3;              // at most 5
  int ahead = 1;              // decisions before their step: 1 or 2; 0: sealed
  uint8_t saves = 0;          // a bit for each border at which a driver writes a checkpoint
  int drivers = 0;            // processes that drive the job, one after the other: 0 to 2
  int pauses = 0;             // 0 or 1
  int pause_at = -1;          // its border; -1: the lead chooses it
  int drains = 0;             // servers that are asked to end
  int crashes = 0;            // of shards other than the lead
  int lead_crashes = 0;       // of shard 0
  int breaks = 0;             // of the link
  int driver_crashes = 0;     // of drivers
  int expiries = 0;           // leases that end although their driver lives
  int duplicates = 0;         // requests that arrive twice
  int losses = 0;             // requests that never arrive
  bool logs = false;          // both shards have a contribution log
  bool volatile_job = false;  // nothing is durable, and workers keep the residuals
  bool together = false;      // servers that drained start again after all of them have ended
  bool upgrade = false;       // the operator resumes after every server is back
  std::bitset<kGateRules> without;
};

// Violations that the search can find.
constexpr char kBorderPassed[] = "a held border is passed";
constexpr char kPausePassed[] = "a paused job goes on";
constexpr char kExportNotWhole[] = "an export lacks residuals";
constexpr char kExportCutOff[] = "a server ends while its border is read";
constexpr char kStepRepeated[] = "a drained server repeats a step";
// ModelResult::stuck and the trace "stuck" count the states with no way on.

// Searches breadth first on the calling thread.
ModelResult CheckGates(const GateConfig& config);

}  // namespace eps

#endif  // EPS_TESTS_MODEL_GATE_MODEL_H_
