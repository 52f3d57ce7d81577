#ifndef EPS_TESTS_MODEL_LEASE_IMPL_H_
#define EPS_TESTS_MODEL_LEASE_IMPL_H_

// The rules of leases as transitions: lease_model.cc holds the workers, the lead and the faults,
// lease_shard.cc the messages, and how shards and workers react to them.

#include "tests/model/lease_model.h"
#include "tests/model/lease_state.h"
#include "tests/model/search/search.h"

namespace eps::leases {

constexpr uint8_t Bit(int index) { return static_cast<uint8_t>(1 << index); }

// A state that is being changed, and the first rule that the change breaks.
struct Next {
  State state;
  const char* violation = nullptr;
};

// The transitions of the model. A method with the argument `now` emits each state to which its
// event leads from there, and nothing if the event cannot happen. One with the argument `next`
// changes that state; if it returns bool, whether it changed anything. Thread-compatible; borrows
// `search`.
class Leases {
 public:
  Leases(const LeaseConfig& config, model::Search<State>* search);

  State Initial() const;
  bool IsFinal(const State& state) const;
  void Events(const State& now) const;

 private:
  bool On(LeaseRule rule) const { return !config_.without[static_cast<size_t>(rule)]; }
  bool Retains() const { return On(LeaseRule::kRetain) && !config_.rollback && !config_.sealed; }

  // ---- Messages and shards.
  void Arrive(const State& now, uint16_t bits) const;
  bool Deliver(Next* next, const Message& m) const;
  bool DeliverBegin(Next* next, const Message& m) const;
  bool DeliverPush(Next* next, const Message& m) const;
  bool DeliverReport(Next* next, const Message& m) const;
  static bool DeliverGrant(Next* next, const Message& m);
  // Whether the shard does not know that the generation of the request was granted.
  bool IsUnknown(const Shard& shard, const Message& m) const;
  bool LosesWork(const State& state, const Message& m) const;
  void Complete(Next* next, int shard) const;
  bool Reply(Next* next, const Message& request, int answer) const;
  bool Hear(Next* next, const Message& request, int answer) const;
  static bool Waits(const State& state, const Message& request);
  bool CanMatterLater(const State& state, const Message& m) const;
  // Sends what can be sent at once, and drops messages that can change nothing any more.
  void SendAndTidy(State* state) const;
  bool SendOnce(State* state, int process, int part) const;
  static void FreeOldVersions(State* state);

  // ---- Workers.
  void Work(const State& now, int process, int part) const;
  void Fetch(const State& now, int process, int part) const;
  void FetchOne(const State& now, int process, int part, int shard) const;
  bool HasFlushed(const Task& task) const;
  void GoOn(const State& now, int process, int part) const;
  void MeetNewTerm(const State& now, int process, int part) const;
  static bool HoldsLease(const State& state, int process, int part);
  void Enter(State* state, int process, int part, int step) const;
  void Begin(State* state, int process, int part) const;

  // ---- The lead and the faults.
  void Decide(const State& now) const;
  void FollowDecision(const State& now, int shard) const;
  void TakeBackCredit(const State& now, int shard) const;
  void MoveLease(const State& now, int part) const;
  void Announce(State* state, int part) const;
  void Stranger(const State& now, int part) const;
  void BreakLink(const State& now) const;
  void LinkUp(const State& now) const;
  void Crash(const State& now) const;
  void NewTerm(State* state) const;
  void RollBack(Next* next) const;

  template <class... Values>
  void Emit(Next* next, bool progress, const char* what, Values... values) const {
    if (next->violation == nullptr) SendAndTidy(&next->state);
    const int numbers[4] = {static_cast<int>(values)...};
    search_->Reach(next->state, next->violation,
                   {what, {numbers[0], numbers[1], numbers[2], numbers[3]}}, progress);
  }

  const LeaseConfig config_;
  model::Search<State>* const search_;
};

void Send(State* state, const Message& message);

}  // namespace eps::leases

#endif  // EPS_TESTS_MODEL_LEASE_IMPL_H_
