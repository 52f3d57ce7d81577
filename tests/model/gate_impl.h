#ifndef EPS_TESTS_MODEL_GATE_IMPL_H_
#define EPS_TESTS_MODEL_GATE_IMPL_H_

// The rules of gates as transitions: gate_model.cc holds the lead, gate_shard.cc the shards, the
// link and the faults of both, gate_holder.cc the holders of gates and their requests.

#include "tests/model/gate_model.h"
#include "tests/model/gate_state.h"
#include "tests/model/search/search.h"

namespace eps::gates {

constexpr uint8_t Bit(int index) { return static_cast<uint8_t>(1 << index); }

// A state that is being changed, and the first rule that the change breaks.
struct Next {
  State state;
  const char* violation = nullptr;
};

// The transitions of the model. A method with the argument `now` emits each state to which its
// event leads from there, and nothing if the event cannot happen. One with the argument `next`
// changes that state. Thread-compatible; borrows `search`.
class Gates {
 public:
  Gates(const GateConfig& config, model::Search<State>* search);

  State Initial() const;
  bool IsFinal(const State& state) const;
  void Events(const State& now) const;

 private:
  bool On(GateRule rule) const { return !config_.without[static_cast<size_t>(rule)]; }

  // ---- Shards and the link (gate_shard.cc).
  void Work(const State& now, int shard) const;
  void Complete(const State& now, int shard) const;
  void MakeDurable(const State& now, int shard) const;
  void Receive(const State& now) const;
  void TakeGate(State* state, int shard, uint8_t revision, uint8_t gate) const;
  void OpenShard(State* state, int shard) const;
  void AskToEnd(const State& now, int shard) const;
  void EndAlone(const State& now, int shard) const;
  bool IsAtEnd(const State& state, int shard) const;
  void End(Next* next, int shard) const;
  void Stop(State* state, int shard) const;
  void Restart(const State& now, int shard) const;
  void Crash(const State& now, int shard) const;
  void BreakLink(const State& now) const;
  void LinkUp(const State& now) const;
  void NewTerm(Next* next) const;

  // ---- The lead (gate_model.cc).
  void HearShard(const State& now) const;
  void Import(const State& now, int shard) const;
  void SetGate(State* state, int holder, uint8_t gate) const;
  void ShardDrains(State* state, int shard) const;
  void Changed(State* state) const;
  void SendGate(State* state, int shard) const;
  void Send(State* state, const Message& message) const;
  uint8_t InForce(const State& state) const;
  static bool HasGates(const State& state);
  uint8_t DrainGate(const State& state) const;
  void Decide(State* state) const;
  void AnswerHolders(State* state) const;
  void LetEnd(Next* next) const;
  bool MayEnd(const State& state, int shard) const;
  static uint8_t Everywhere(const State& state);
  void LoseLead(State* state) const;
  void Settle(Next* next) const;

  // ---- Holders (gate_holder.cc).
  uint8_t NextSave(int after) const;
  void Ask(State* state, int holder, uint8_t gate) const;
  void Answer(State* state, int holder, int first) const;
  void HearRequests(const State& now) const;
  void HearRequest(const State& now, int index) const;
  void AskAgain(const State& now, int holder) const;
  void Drive(const State& now, int driver) const;
  void Export(const State& now, int driver, int shard) const;
  void Claim(const State& now, int driver) const;
  void EndLease(const State& now, int driver) const;
  void CrashDriver(const State& now, int driver) const;
  void Operate(const State& now) const;
  void LoseGates(State* state) const;
  void CheckBorders(Next* next, int completed) const;
  bool IsRead(const State& state, int shard) const;

  template <class... Values>
  void Emit(Next* next, bool progress, const char* what, Values... values) const {
    if (next->violation == nullptr) Settle(next);
    const int numbers[4] = {static_cast<int>(values)...};
    search_->Reach(next->state, next->violation,
                   {what, {numbers[0], numbers[1], numbers[2], numbers[3]}}, progress);
  }

  const GateConfig config_;
  model::Search<State>* const search_;
};

}  // namespace eps::gates

#endif  // EPS_TESTS_MODEL_GATE_IMPL_H_
