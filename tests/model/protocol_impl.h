#ifndef EPS_TESTS_MODEL_PROTOCOL_IMPL_H_
#define EPS_TESTS_MODEL_PROTOCOL_IMPL_H_

// The protocol's rules as transitions: protocol_model.cc holds steps and cuts, protocol_decision.cc
// the lead's decisions and its Trusts, protocol_recovery.cc recovery and crashes, protocol_log.cc
// the contribution log.

#include "tests/model/protocol_model.h"
#include "tests/model/protocol_state.h"
#include "tests/model/search/search.h"

namespace eps::model {

constexpr uint8_t Bit(int index) { return static_cast<uint8_t>(1 << index); }

// A violation that a replay can find, too.
constexpr char kOtherTrust[] = "a shard updated with a Trust of other weights";

inline bool IsPush(uint64_t bits) { return (bits & LambMessage::kMark) == 0; }
Push Unpack(uint64_t bits);
LambMessage UnpackLamb(uint64_t bits);

// The transitions of the model. A method that is named after an event emits each state to which the
// event leads from `state`, and nothing if the event cannot happen there. Thread-compatible;
// borrows `search`.
class Protocol {
 public:
  Protocol(const ModelConfig& config, Search<State>* search);

  State Initial() const;
  bool IsFinal(const State& state) const;
  // Tries all events except crashes, which are not progress.
  void Progress(const State& state) const;
  void Crashes(const State& state) const;

 private:
  int ShardOf(int stage) const { return stage / config_.stages_per_shard; }
  int OwnOf(int stage) const { return stage % config_.stages_per_shard; }
  uint8_t AllStages() const { return static_cast<uint8_t>((1 << config_.stages_per_shard) - 1); }
  // Returns whether a shard keeps the version before the open step's.
  bool Retains() const { return rules_.retain_until_complete && !config_.one_version; }
  bool IsLive(const Shard& shard, const Cut& cut) const;
  int NewestLive(const Shard& shard) const;
  static const Cut* FindCut(const Shard& shard, int step, int term, bool term_matters);

  // ---- Workers.
  void Ask(const State& state, int part) const;
  bool AllCounted(const State& state, int part, int step, uint8_t term) const;
  bool CanRead(const Shard& shard, int step) const;
  void BeginStep(const State& state, int part, int i) const;
  void PushAll(const State& state, int part) const;

  // ---- Counting and updating.
  void Deliver(const State& state, uint32_t index) const;
  void Count(State* state, int i, const Fact& push) const;
  void CompleteStep(State* state, int i, bool skip) const;
  bool HasAll(const Shard& shard) const;

  // ---- Decisions and Trusts.
  void Decide(const State& state) const;
  void FollowDecision(const State& state, int i) const;
  bool NeedsTrust(bool skip) const {
    return config_.trust && (!skip || !rules_.skipped_step_has_no_trust);
  }
  // Returns whether shard 0 has the lead's permission to complete its open step.
  bool IsPermitted(const State& state) const;
  static Lineage History(const Shard& shard, int step);
  bool AwaitsNorms(const State& state) const;
  void Measure(const State& state, int i) const;
  void HearNorms(const State& state, uint32_t index) const;
  void CountNorms(State* state, int i, bool other) const;
  void Fold(State* state) const;
  void HearTrust(const State& state, uint32_t index) const;
  void LogTrust(State* state, int i, bool mixed) const;
  void SendTrust(State* state) const;
  void Reconnect(State* state) const;
  void BreakLink(const State& state) const;
  // Loses all norms and Trusts on their way. Returns whether there were any.
  static bool LoseMessages(State* state);
  bool LacksMeasured(const State& state) const;
  bool IsDead(const State& state, const LambMessage& message) const;

  // ---- Cuts.
  int SlotFor(const Shard& shard) const;
  bool CanRecycle(const Shard& shard, const Cut& cut) const;
  void Capture(const State& state, int i) const;
  void Land(const State& state, int i) const;
  void LandLate(const State& state, int i) const;
  void Report(const State& state, int i) const;
  void Watermark(const State& state, int i) const;

  // ---- Recovery.
  void RegisterAndStart(const State& state) const;
  static void StartTerm(State* state);
  void Promise(const State& state, int i) const;
  bool Quiesced(const Shard& shard) const;
  bool HighestCommon(const State& state, uint8_t* step, uint8_t* term) const;
  void ChooseBase(const State& state) const;
  void Restore(const State& state, int i) const;
  void Open(const State& state, int i) const;

  // ---- Crashes.
  void CrashShard(const State& state, int i) const;
  Shard FromDisk(const Shard& before, uint32_t kept) const;
  void ServeAtOnce(const Shard& before, Shard* shard) const;
  void CrashWorker(const State& state, int part) const;

  // ---- The contribution log.
  bool HasLog(int i) const { return (config_.logs & Bit(i)) != 0; }
  // Hears: the shard handles messages other than its own replay. Speaks: it may send to others.
  bool Hears(const Shard& shard) const;
  bool Speaks(const Shard& shard) const;
  void LogIt(State* state, int i, const Fact& fact) const;
  void LogDecision(State* state, int i) const;
  void LogSession(State* state) const;
  void BeginLog(State* state, int i) const;
  void Sync(const State& state, int i) const;
  // Removes the batches that a cut of `step` makes unnecessary.
  static void FreeUpTo(Log* log, int step);
  static bool CanBeKept(const Log& log, uint32_t kept);
  void ResumeFromLog(const Log& before, uint32_t kept, Shard* shard) const;
  void Replay(const State& state, int i) const;
  // Returns false if another event must happen before the fact can be applied.
  bool Apply(State* next, int i, const Fact& fact, const char** violation) const;
  bool ApplyPush(State* next, int i, const Fact& fact, const char** violation) const;
  bool ApplyDecision(State* next, int i, const Fact& fact) const;
  bool ApplyTrust(State* next, int i, const Fact& fact, const char** violation) const;
  void EndReplay(const State& state, int i) const;
  bool IsSettled(const Shard& shard, const Push& push) const;
  void TellAcks(State* state) const;
  const char* Forgotten(const State& state) const;
  void LoseWork(const State& state, int part, int i) const;
  void CopyFolder(const State& state) const;
  void Reroute(const State& state) const;

  // ---- The bag of messages, and the invariants of every state.
  static void Add(State* state, uint64_t bits);
  static void Remove(State* state, uint32_t index);
  bool IsDead(const State& state, const Push& push) const;
  void Tidy(State* state) const;
  const char* Invariant(const State& state) const;

  template <class... Values>
  void Emit(State* next, const char* what, Values... values) const {
    Emit(nullptr, next, what, values...);
  }
  template <class... Values>
  void Emit(const char* violation, State* next, const char* what, Values... values) const {
    Tidy(next);
    if (violation == nullptr) violation = Invariant(*next);
    const int numbers[3] = {static_cast<int>(values)...};
    search_->Reach(*next, violation, Event{what, {numbers[0], numbers[1], numbers[2]}});
  }

  const ModelConfig config_;
  const ModelRules rules_;
  Search<State>* const search_;
};

}  // namespace eps::model

#endif  // EPS_TESTS_MODEL_PROTOCOL_IMPL_H_
