#ifndef EPS_TESTS_MODEL_LEASE_MODEL_H_
#define EPS_TESTS_MODEL_LEASE_MODEL_H_

// Workers that come and go, as a state machine: the rules L1 to L13 of docs/protocol.md ("Leases"),
// with an exhaustive search over every order of messages and faults within the bounds of a
// configuration.
//
// Two shards own one stage each; the process of shard 0 is also the lead. Two parts contribute to
// both stages in every step. Two or three worker processes: the first two begin with a lease each,
// the third is a standby. A process may crash, lose its lease and go on (a zombie), or leave
// between two steps; a shard may crash, after which all shards begin a new term at step 1. A
// message waits in a bag: it may arrive late, again, never, and after the death of its sender. One
// of an earlier term is refused and is therefore dropped.
//
// A way on is a path to the end of the job that needs no fault, no message of a dead process and no
// loss of a lease. A fault is never progress; the end of a dead process's lease is.
//
// Each rule can be removed; the search must then find the failure that the rule prevents.

#include <bitset>
#include <cstddef>
#include <cstdint>

#include "tests/model/search/model_result.h"

namespace eps {

// The rules of leases, and three rules of contributions on which they rely.
enum class LeaseRule : uint8_t {
  kLease,                // L1: a part is granted only while nobody has a live lease on it
  kFence,                // L2: a shard refuses a lower generation than it has seen of the part
  kFencesEndWithTerm,    // L3: generations are compared within one term
  kProbe,                // L4: a new holder begins at the lowest step that a shard has open
  kFlush,                // L5: a part begins a step after all its pushes of the one before
  kLossFirst,            // L6: the lead has the loss before the last push is offered
  kReportBeginsNothing,  // L7
  kHaveSet,              // L8: a new holder does not repeat what is counted
  kFetchedResidual,      // L8: it fetches the residual of what it did not push itself
  kNoLostWork,           // L9: no begin rolls back
  kLeaseEnds,            // L10: the lease of a dead process ends
  kNewTermAnswers,       // L11: a new term answers what was held for an earlier one
  kCreditEnds,           // L12: a shard takes back a credit that nobody uses
  kAnnounced,            // L13: a shard believes no generation that the lead has not announced
  kHoldsUnknown,         // L13: it holds a request of one instead of refusing it
  kRepeatsGrants,        // L13: the lead announces its grants again to a shard that registers
  kRetain,               // the old version stays until every part has begun the next step
  kFirstWins,            // the first contribution for a key counts, and no other
  kFetchNamesVersion,    // "latest" is never served
};
constexpr size_t kLeaseRules = 19;

// The bounds of a search, and the rules that do not hold in it.
struct LeaseConfig {
  int steps = 2;              // 1 or 2
  int processes = 3;          // 2 or 3
  int crashes = 0;            // of worker processes
  int expiries = 0;           // leases that end although their holder lives
  int leaves = 0;             // processes that leave between two steps
  int shard_crashes = 0;      // 0 or 1
  int generations = 3;        // of each part, at most 3
  bool rollback = false;      // training.replay: rollback; otherwise resend
  bool sealed = false;        // a step updates after the lead's decision, and keeps no old version
  bool credits = false;       // a shard has room for one push, which needs its credit
  bool announced = false;     // shard 1 hears of grants by messages; otherwise it hears at once
  int strangers = 0;          // requests to shard 1 with a generation that nobody granted
  int breaks = 0;             // of the link to shard 1, which lose the messages on their way
  bool late_answers = false;  // answers wait in the bag too; otherwise each arrives at once
  std::bitset<kLeaseRules> without;
};

// Violations that the search can find.
constexpr char kNeedlessRollback[] = "needless rollback";
constexpr char kOthersResidual[] = "residual of another process";
constexpr char kVersionGone[] = "needed version is gone";
constexpr char kCountedTwice[] = "counted twice";
constexpr char kOtherWeights[] = "computed from other weights";
constexpr char kOverwritten[] = "old version overwritten";
constexpr char kTwoStepsApart[] = "shards two steps apart";
constexpr char kNeedlessRefusal[] = "the holder of a lease is refused";
// ModelResult::stuck and the trace "stuck" count the states with no way on.

// Searches breadth first on the calling thread.
ModelResult CheckLeases(const LeaseConfig& config);

}  // namespace eps

#endif  // EPS_TESTS_MODEL_LEASE_MODEL_H_
