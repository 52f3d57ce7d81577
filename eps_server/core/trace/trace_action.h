#ifndef EPS_SERVER_CORE_TRACE_TRACE_ACTION_H_
#define EPS_SERVER_CORE_TRACE_TRACE_ACTION_H_

#include <cstdint>

#include "base/ids.h"
#include "storage/cuts/cut.h"

namespace eps {

// One change of the protocol's state, for the trace checker and for debugging. A plain value.
struct TraceAction {
  enum class Kind {
    kRecovered,  // the process has read its durable state; its cuts follow as kFound
    kFound,      // a durable cut of this shard
    kCounted,
    kUpdateStarted,
    kUpdated,
    kStepOpened,
    kStepComplete,
    kRecorded,
    kPromised,
    kRestored,
    kResumed,   // the replay of a log begins at this cut, in the term of the earlier process
    kReplayed,  // the replay of the log is complete
    kCut,       // the cut begins
    kDurable,   // the cut is durable on this shard
    kFailed
  };
  Kind kind;
  Term term;
  Step step;
  uint64_t subject = 0;  // the chunk; for kRecovered, the promised term
  Version version;
  CutId cut;  // the cut that was found, restored, resumed from, begun or made durable
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TRACE_TRACE_ACTION_H_
