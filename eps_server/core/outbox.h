#ifndef EPS_SERVER_CORE_OUTBOX_H_
#define EPS_SERVER_CORE_OUTBOX_H_

// What every desk of a shard may do. The router implements it; tests use testing/fake_outbox.h.

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "eps/v1/log.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/events.h"
#include "eps_server/core/internal_events.h"

namespace eps {

// For one thread.
class Outbox {
 public:
  virtual ~Outbox() = default;

  virtual void Emit(Effect effect) = 0;
  // Begins an operation of the backend. The desk receives its OpDone under the id returned here.
  virtual OpId StartOp(Request request) = 0;
  // Starts a timer and returns its id, which no later timer reuses.
  virtual TimerId StartTimer(uint64_t after_ms) = 0;
  // Delivers the event to the desks that it concerns before it returns.
  virtual void Raise(const InternalEvent& event) = 0;
  // Sends a message to the lead; on the lead itself, delivers it before returning.
  virtual void ToLead(v1::ShardMessage message) = 0;
  // Sends a message to every shard but the lead. For the lead only.
  virtual void ToOthers(const v1::ShardMessage& message) = 0;
  // Appends a fact about `step` to the contribution log. Does nothing on a shard that writes none
  // (ShardFacts::logging()).
  virtual void Log(uint64_t step, const v1::LogFact& fact, Bytes payload, Bytes residual) = 0;
  // Adds to a counter of the status page.
  virtual void Count(const char* name, uint64_t n) = 0;

  void Log(uint64_t step, const v1::LogFact& fact) { Log(step, fact, Bytes(), Bytes()); }
  void Count(const char* name) { Count(name, 1); }
  void Close(StreamId stream, const absl::Status& status) { Emit(effect::Close{stream, status}); }
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_OUTBOX_H_
