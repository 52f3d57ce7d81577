#ifndef EPS_TESTS_MODEL_DRIVER_MODEL_H_
#define EPS_TESTS_MODEL_DRIVER_MODEL_H_

// Programs that drive one job, as a state machine: the rules D1 to D9 of docs/protocol.md
// ("Drivers"), with an exhaustive search over every order of messages and faults within the bounds
// of a configuration.
//
// Each of two or three driver processes takes the lock of the output folder, claims the job from
// the lead, imports the weights into two shards if nobody has, and then writes the checkpoint of
// every border that it finds: it exports, asks the lead, renames, moves `latest`, and reports. A
// process may crash, or be stopped and lose its lease, and go on at any point. A message to a shard
// or the lead waits in a bag: it may arrive late, again, never, and after the death of its sender.
// Lead and shards may crash; the lead keeps its record.
//
// A way on is a path to a state in which the last border is published, without another fault and
// without a message of a dead driver.

#include <bitset>
#include <cstddef>
#include <cstdint>

#include "tests/model/search/model_result.h"

namespace eps {

// The rules of drivers, in the order of docs/protocol.md.
enum class DriverRule : uint8_t {
  kLease,                // D1: a claim succeeds only while nobody has a live lease
  kLeaseIsDurable,       // D1: the lead's process may end and keep it
  kLeaseEnds,            // D1: the lease of a dead driver ends
  kGenerationIsDurable,  // D2: each claim adds 1, whatever happened before
  kShardsFence,          // D3: a shard refuses a lower generation than it has seen
  kCreateFences,         // D4: CreateJob is answered when every shard has the generation
  kFenceIsDurable,       // D5: a shard keeps it when its process ends
  kLock,                 // D6: a driver takes the lock of the folder before it claims
  kAskBeforeRename,      // D7: it asks the lead before it renames
  kLatestInOrder,        // D8: `latest` moves only to a (generation, step) that is not lower
  kReportsInOrder,       // D9: and so does the checkpoint in the lead's record
};
constexpr size_t kDriverRules = 11;

// The bounds of a search, and the rules that do not hold in it.
struct DriverConfig {
  int drivers = 2;        // 2 or 3
  int steps = 2;          // 1 to 3
  int crashes = 0;        // of drivers
  int expiries = 0;       // leases that end although their driver lives
  int lead_crashes = 0;   // of the process of the lead, which is no shard here
  int shard_crashes = 0;  // while the job imports
  int rollbacks = 0;      // returns of the open job to its first border
  bool no_locks = false;  // the folder is on a file system without locks
  std::bitset<kDriverRules> without;
};

// Violations that the search can find.
constexpr char kNeedlessClaim[] = "a driver is replaced without a fault";
constexpr char kMixedState[] = "a job opens with the states of two drivers";
constexpr char kFencedState[] = "a job opens with the state of a fenced driver";
constexpr char kTwoPublish[] = "two drivers publish";
constexpr char kPublishesOn[] = "a fenced driver goes on to publish";
constexpr char kLatestBack[] = "latest moves back";
constexpr char kReportBack[] = "the recorded checkpoint moves back";
// ModelResult::stuck and the trace "stuck" count the states with no way on.

// Searches breadth first on the calling thread.
ModelResult CheckDrivers(const DriverConfig& config);

}  // namespace eps

#endif  // EPS_TESTS_MODEL_DRIVER_MODEL_H_
