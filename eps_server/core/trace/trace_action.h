#ifndef EPS_SERVER_CORE_TRACE_TRACE_ACTION_H_
#define EPS_SERVER_CORE_TRACE_TRACE_ACTION_H_

#include <cstdint>

#include "base/ids.h"
#include "storage/cuts/cut.h"

namespace eps {

// What happened to the protocol's state: for the trace checker and for debugging.
struct TraceAction {
  enum class Kind {
    kRecovered,  // a process knows what is durable here; the cuts follow
    kFound,      // one of these cuts
    kCounted,
    kUpdateStarted,
    kUpdated,
    kStepOpened,
    kStepComplete,
    kRecorded,
    kPromised,
    kRestored,
    kResumed,   // the cut behind which a log is replayed, in the term of before
    kReplayed,  // all of it
    kCut,       // begun
    kDurable,   // on this shard
    kFailed
  };
  Kind kind;
  Term term;
  Step step;
  uint64_t subject = 0;  // chunk; of kRecovered, the term that was promised
  Version version;
  CutId cut;  // found, restored, resumed behind, begun or durable
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TRACE_TRACE_ACTION_H_
