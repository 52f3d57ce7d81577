#ifndef EPS_SERVER_CORE_TESTING_FAKE_OUTBOX_H_
#define EPS_SERVER_CORE_TESTING_FAKE_OUTBOX_H_

// The surroundings of one desk in a test: the facts of a small job, an outbox that records, and the
// answers of the other desks. For one thread.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"

namespace eps {

// Records what a desk does, as lines of text (event_text.h).
class FakeOutbox final : public Outbox {
 public:
  void Emit(Effect effect) override;
  OpId StartOp(Request request) override;
  TimerId StartTimer(uint64_t after_ms) override;
  void Raise(const InternalEvent& event) override;
  void ToLead(v1::ShardMessage message) override;
  // Records the message once, as one to shard 1.
  void ToOthers(const v1::ShardMessage& message) override {
    Emit(effect::ToShard{ShardId(1), message});
  }
  void Log(uint64_t step, const v1::LogFact& fact, Bytes payload, Bytes residual) override;
  void Count(const char* name, uint64_t n) override { counters[name] += n; }
  using Outbox::Count;
  using Outbox::Log;

  // Returns the lines of what was emitted since the last call.
  std::vector<std::string> Take();
  // The same, without the lines of the trace.
  std::vector<std::string> TakeUntraced();
  // Returns the events of one kind that were raised since the last call; forgets all.
  template <class Kind>
  std::vector<Kind> TakeRaised() {
    std::vector<Kind> found;
    for (const InternalEvent& event : raised) {
      if (const auto* kind = std::get_if<Kind>(&event)) found.push_back(*kind);
    }
    raised.clear();
    return found;
  }

  OpId last_op;
  TimerId last_timer;
  std::map<std::string, uint64_t> counters;
  std::vector<InternalEvent> raised;
  // Called for each raised event, in place of the router. May be null.
  std::function<void(const InternalEvent&)> on_raise;
  // Receives what ToLead sends, before it returns: stands for the lead. May be null.
  std::function<void(const v1::ShardMessage&)> on_to_lead;

 private:
  std::vector<std::string> lines_;
};

// Answers in place of the other desks, with values that the test sets.
class FakeQueries final : public DeskQueries {
 public:
  double NormOf(uint64_t) const override { return norm; }
  uint64_t RecordedStep() const override { return recorded_step; }
  uint64_t NextDecision() const override { return next_decision; }
  std::vector<v1::Have> Counted(const std::vector<bool>&) const override { return counted; }
  std::vector<Axis> AxesForUpdate(ChunkId) const override { return axes; }
  const v1::Trust* TrustOfOpenStep() const override {
    return trust.has_value() ? &*trust : nullptr;
  }
  absl::Status CheckBegin(const v1::BeginStepRequest&) const override { return check_begin; }
  bool IsUpdating() const override { return is_updating; }
  bool IsIdle() const override { return is_idle; }
  std::string RecoveryWaitsFor() const override { return "its disk"; }
  v1::LoggedSession Session() const override { return {}; }

  double norm = 0;
  uint64_t recorded_step = 0;
  uint64_t next_decision = 1;
  std::vector<v1::Have> counted;
  std::vector<Axis> axes;
  std::optional<v1::Trust> trust;
  absl::Status check_begin;
  bool is_updating = false;
  bool is_idle = true;
};

// A synthetic job of two parts, and the facts of a shard that runs its step 1.
class SmallJob {
 public:
  // Spreads the job over `shards` shards.
  explicit SmallJob(uint32_t shards = 1);

  // Change these before the first call of MakeFacts.
  JobSpec spec;
  ShardId shard;            // whose facts are made
  StateBackend::Caps caps;  // not durable
  CoreLimits limits;
  ShardFacts MakeFacts() const;
  const ChunkMap& chunks() const { return chunks_; }

 private:
  const uint32_t shards_;
  ChunkMap chunks_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_FAKE_OUTBOX_H_
