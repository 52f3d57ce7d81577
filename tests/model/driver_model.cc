#include "tests/model/driver_model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "tests/model/driver_state.h"
#include "tests/model/search/search.h"

namespace eps {
namespace drivers {
namespace {

constexpr uint8_t Bit(int index) { return static_cast<uint8_t>(1 << index); }

// A state that is being changed, and the first rule that the change breaks.
struct Next {
  State state;
  const char* violation = nullptr;
};

// The transitions of the model. A method with the argument `now` emits each state to which its
// event leads from there, and nothing if the event cannot happen. One with the argument `next` or
// `state` changes that state. Thread-compatible; borrows `search`.
class Drivers {
 public:
  Drivers(const DriverConfig& config, model::Search<State>* search);

  bool IsFinal(const State& state) const;
  void Events(const State& now) const;

 private:
  bool On(DriverRule rule) const { return !config_.without[static_cast<size_t>(rule)]; }
  static bool Lives(const Driver& driver) {
    return driver.phase != Phase::kAbsent && driver.phase != Phase::kDead;
  }

  // ---- A driver, from its start to its end.
  void Start(const State& now, int driver) const;
  void Claim(const State& now, int driver) const;
  void Proceed(const State& now, int driver) const;
  void Write(const State& now, int driver) const;
  void Rename(const State& now, int driver) const;
  static void Leave(State* state, int driver);
  static void SendToShards(State* state, Message::Kind kind, int driver);

  // ---- Messages.
  static void Send(State* state, const Message& message);
  void Arrive(const State& now, uint16_t bits) const;
  bool Deliver(Next* next, const Message& message) const;
  bool DeliverToShard(Next* next, const Message& message) const;
  bool Acknowledge(State* state, const Message& message) const;
  void Open(Next* next) const;
  void Tidy(State* state) const;

  // ---- The job, and the faults.
  void Train(const State& now) const;
  void Crash(const State& now, int driver) const;
  void EndLease(const State& now, int driver) const;
  void CrashLead(const State& now) const;
  void CrashShard(const State& now, int shard) const;
  void RollBack(const State& now) const;

  template <class... Values>
  void Emit(Next* next, bool progress, const char* what, Values... values) const {
    Tidy(&next->state);
    const int numbers[4] = {static_cast<int>(values)...};
    search_->Reach(next->state, next->violation,
                   {what, {numbers[0], numbers[1], numbers[2], numbers[3]}}, progress);
  }

  const DriverConfig config_;
  model::Search<State>* const search_;
};

Drivers::Drivers(const DriverConfig& config, model::Search<State>* search)
    : config_(config), search_(search) {
  EPS_CHECK(config.drivers >= 2 && config.drivers <= kDrivers);
  EPS_CHECK(config.steps >= 1 && config.steps <= 3);
  EPS_CHECK(config.crashes + config.expiries < config.drivers);
}

bool Drivers::IsFinal(const State& state) const {
  return state.opened && state.step == config_.steps && state.latest.step == config_.steps;
}

void Drivers::Events(const State& now) const {
  for (int i = 0; i < now.messages; ++i) Arrive(now, now.message[i]);
  for (int driver = 0; driver < config_.drivers; ++driver) {
    Start(now, driver);
    Claim(now, driver);
    Proceed(now, driver);
    Write(now, driver);
    Rename(now, driver);
    Crash(now, driver);
    EndLease(now, driver);
  }
  Train(now);
  CrashLead(now);
  for (int shard = 0; shard < kShards; ++shard) CrashShard(now, shard);
  RollBack(now);
}

// ---- A driver, from its start to its end.

void Drivers::Start(const State& now, int driver) const {
  if (now.drivers[driver].phase != Phase::kAbsent) return;
  if (driver > 0 && now.drivers[driver - 1].phase == Phase::kAbsent) return;
  const bool locks = On(DriverRule::kLock) && !config_.no_locks;
  if (locks && now.lock != 0) return;
  Next next = {now};
  if (locks) next.state.lock = static_cast<uint8_t>(1 + driver);
  next.state.drivers[driver].phase = Phase::kReady;
  Emit(&next, true, "driver %d starts", driver);
}

void Drivers::Claim(const State& now, int driver) const {
  if (now.drivers[driver].phase != Phase::kReady) return;
  if (now.lease != 0 && On(DriverRule::kLease)) return;
  Next next = {now};
  State& state = next.state;
  Driver& own = state.drivers[driver];
  if (!now.excused) next.violation = kNeedlessClaim;
  state.excused = 0;
  state.lease = static_cast<uint8_t>(1 + driver);
  own.generation = ++state.generation;
  own.phase = Phase::kCreates;
  SendToShards(&state, Message::kCreate, driver);
  Emit(&next, true, "driver %d claims the job with generation %d", driver, own.generation);
}

// A driver whose last request every shard has answered sends the next one.
void Drivers::Proceed(const State& now, int driver) const {
  const Driver& own = now.drivers[driver];
  const bool creates = own.phase == Phase::kCreates;
  const bool imports = own.phase == Phase::kImports || own.phase == Phase::kFinishes;
  if (!creates && !imports) return;
  Next next = {now};
  Driver& changed = next.state.drivers[driver];
  if (now.opened) {
    changed.phase = Phase::kDrives;
    return Emit(&next, true, "driver %d finds the job open", driver);
  }
  const bool waits = !creates || On(DriverRule::kCreateFences);
  if (own.phase == Phase::kFinishes || (waits && own.acks != kAllShards)) return;
  changed.phase = creates ? Phase::kImports : Phase::kFinishes;
  SendToShards(&next.state, creates ? Message::kImport : Message::kFinish, driver);
  Emit(&next, true, "driver %d imports (0) or finishes (1): %d", driver, !creates);
}

// A driver writes the border that it finds, and asks the lead whether it may publish it.
void Drivers::Write(const State& now, int driver) const {
  const Driver& own = now.drivers[driver];
  Next next = {now};
  Driver& changed = next.state.drivers[driver];
  if (own.phase == Phase::kDrives && now.step > 0) {
    if (now.step == own.step && now.step != config_.steps) return;  // it has that one
    changed.phase = Phase::kWritten;
    changed.step = now.step;
    return Emit(&next, true, "driver %d writes step %d", driver, now.step);
  }
  if (own.phase != Phase::kWritten) return;
  if (On(DriverRule::kAskBeforeRename) && now.lease != driver + 1) {
    Leave(&next.state, driver);
    return Emit(&next, true, "driver %d hears that its lease is over", driver);
  }
  changed.phase = Phase::kAllowed;
  Emit(&next, true, "driver %d may publish step %d", driver, own.step);
}

void Drivers::Rename(const State& now, int driver) const {
  const Driver& own = now.drivers[driver];
  if (own.phase != Phase::kAllowed) return;
  Next next = {now};
  State& state = next.state;
  Driver& changed = state.drivers[driver];
  changed.phase = Phase::kDrives;
  if (now.lease != driver + 1 && ++changed.beyond > 1) next.violation = kPublishesOn;
  if (own.generation < now.published && !config_.no_locks) next.violation = kTwoPublish;
  state.published = std::max(now.published, own.generation);
  const Mark mark = {own.generation, own.step};
  if (mark < now.latest && !On(DriverRule::kLatestInOrder)) next.violation = kLatestBack;
  if (!(mark < now.latest)) state.latest = mark;
  Message report;
  report.kind = Message::kReport;
  report.driver = static_cast<uint8_t>(driver);
  report.generation = own.generation;
  report.step = own.step;
  Send(&state, report);
  Emit(&next, true, "driver %d publishes step %d", driver, own.step);
}

void Drivers::Leave(State* state, int driver) {
  state->drivers[driver].phase = Phase::kDead;
  if (state->lock == driver + 1) state->lock = 0;  // the kernel's, at the end of the process
}

// ---- Messages.

void Drivers::SendToShards(State* state, Message::Kind kind, int driver) {
  Driver& own = state->drivers[driver];
  own.acks = 0;
  Message message;
  message.kind = kind;
  message.driver = static_cast<uint8_t>(driver);
  message.generation = own.generation;
  for (int shard = 0; shard < kShards; ++shard) {
    message.shard = static_cast<uint8_t>(shard);
    Send(state, message);
  }
}

void Drivers::Send(State* state, const Message& message) {
  uint16_t* const end = state->message + state->messages;
  uint16_t* const at = std::lower_bound(state->message, end, message.Bits());
  if (at != end && *at == message.Bits()) return;  // one message may arrive twice
  EPS_CHECK(state->messages < kMaxMessages);
  std::copy_backward(at, end, end + 1);
  *at = message.Bits();
  ++state->messages;
}

void Drivers::Arrive(const State& now, uint16_t bits) const {
  const Message message = Message::From(bits);
  Next next = {now};
  if (!Deliver(&next, message)) return;
  constexpr const char* kTexts[] = {"CreateJob of driver %d reaches shard %d",
                                    "ImportState of driver %d reaches shard %d",
                                    "the end of the import of driver %d reaches shard %d",
                                    "a report of driver %d, of step %d, reaches the lead"};
  const bool report = message.kind == Message::kReport;
  Emit(&next, Lives(now.drivers[message.driver]), kTexts[message.kind], message.driver,
       report ? message.step : message.shard);
}

bool Drivers::Deliver(Next* next, const Message& message) const {
  State& state = next->state;
  if (message.kind != Message::kReport) return DeliverToShard(next, message);
  const Mark mark = {message.generation, message.step};
  const bool back = mark < state.reported;
  if (back && On(DriverRule::kReportsInOrder)) return false;
  if (back) next->violation = kReportBack;
  const bool changed = state.reported < mark || back;
  state.reported = mark;
  return changed;
}

// Returns whether anything has changed.
bool Drivers::DeliverToShard(Next* next, const Message& message) const {
  State& state = next->state;
  Shard& shard = state.shards[message.shard];
  if (On(DriverRule::kShardsFence) && message.generation < shard.fence) return false;
  bool changed = shard.fence < message.generation;
  shard.fence = std::max(shard.fence, message.generation);
  if (state.opened) return changed;  // refused
  if (message.kind == Message::kImport) {
    changed |= shard.content != message.generation;
    // Another driver's import begins again.
    if (shard.content != message.generation) shard.finished = 0;
    shard.content = message.generation;
  }
  if (message.kind == Message::kFinish && shard.content != 0) {
    changed |= !shard.finished;
    shard.finished = 1;
  }
  changed |= Acknowledge(&state, message);
  if (state.shards[0].finished && state.shards[1].finished) Open(next);
  return changed;
}

bool Drivers::Acknowledge(State* state, const Message& message) const {
  Driver& driver = state->drivers[message.driver];
  constexpr Phase kWaits[] = {Phase::kCreates, Phase::kImports, Phase::kFinishes};
  if (driver.phase != kWaits[message.kind] || driver.generation != message.generation) return false;
  const bool news = (driver.acks & Bit(message.shard)) == 0;
  driver.acks |= Bit(message.shard);
  return news;
}

void Drivers::Open(Next* next) const {
  State& state = next->state;
  state.opened = 1;
  if (state.shards[0].content != state.shards[1].content) next->violation = kMixedState;
  for (const Driver& driver : state.drivers) {
    const bool relies = driver.phase == Phase::kImports || driver.phase == Phase::kFinishes;
    const bool newest = driver.generation == state.generation;
    if (relies && newest && state.shards[0].content != driver.generation &&
        state.shards[1].content != driver.generation) {
      next->violation = kFencedState;
    }
  }
}

// Drops messages that can change nothing any more.
void Drivers::Tidy(State* state) const {
  int kept = 0;
  for (int i = 0; i < state->messages; ++i) {
    const Message message = Message::From(state->message[i]);
    const bool report = message.kind == Message::kReport;
    const bool fenced = !report && On(DriverRule::kShardsFence) && config_.shard_crashes == 0 &&
                        message.generation < state->shards[message.shard].fence;
    const bool over = !report && state->opened;
    const bool known = report && On(DriverRule::kReportsInOrder) &&
                       !(state->reported < Mark{message.generation, message.step});
    if (!fenced && !over && !known) state->message[kept++] = state->message[i];
  }
  std::fill(state->message + kept, state->message + state->messages, uint16_t{0});
  state->messages = static_cast<uint8_t>(kept);
}

// ---- The job, and the faults.

void Drivers::Train(const State& now) const {
  if (!now.opened || now.step == config_.steps) return;
  Next next = {now};
  ++next.state.step;
  Emit(&next, true, "the job completes step %d", next.state.step);
}

void Drivers::Crash(const State& now, int driver) const {
  if (now.crashes >= config_.crashes || !Lives(now.drivers[driver])) return;
  Next next = {now};
  ++next.state.crashes;
  Leave(&next.state, driver);
  Emit(&next, false, "driver %d crashes", driver);
}

void Drivers::EndLease(const State& now, int driver) const {
  if (now.lease != driver + 1) return;
  const bool lives = Lives(now.drivers[driver]);
  if (lives ? now.expiries >= config_.expiries : !On(DriverRule::kLeaseEnds)) return;
  Next next = {now};
  next.state.lease = 0;
  next.state.excused = 1;
  if (lives) ++next.state.expiries;
  Emit(&next, !lives, "the lease of driver %d ends", driver);
}

void Drivers::CrashLead(const State& now) const {
  if (now.lead_crashes >= config_.lead_crashes) return;
  Next next = {now};
  ++next.state.lead_crashes;
  if (!On(DriverRule::kLeaseIsDurable)) next.state.lease = 0;
  if (!On(DriverRule::kGenerationIsDurable)) {
    next.state.generation = next.state.lease = 0;
    next.state.excused = 1;
  }
  Emit(&next, false, "the lead crashes");
}

// A shard that crashes while the job imports loses what it has, and everybody imports again.
void Drivers::CrashShard(const State& now, int i) const {
  if (now.shard_crashes >= config_.shard_crashes || now.opened) return;
  Next next = {now};
  State& state = next.state;
  ++state.shard_crashes;
  const uint8_t fence = state.shards[i].fence;
  state.shards[i] = Shard();
  if (On(DriverRule::kFenceIsDurable)) state.shards[i].fence = fence;
  for (int driver = 0; driver < kDrivers; ++driver) {
    Driver& own = state.drivers[driver];
    if (own.phase != Phase::kImports && own.phase != Phase::kFinishes) continue;
    own.phase = Phase::kImports;
    SendToShards(&state, Message::kImport, driver);
  }
  Emit(&next, false, "shard %d crashes", i);
}

void Drivers::RollBack(const State& now) const {
  if (now.rollbacks >= config_.rollbacks || now.step < 2) return;
  Next next = {now};
  ++next.state.rollbacks;
  next.state.step = 1;
  Emit(&next, false, "the job returns to step 1");
}

}  // namespace
}  // namespace drivers

ModelResult CheckDrivers(const DriverConfig& config) {
  const auto start = std::chrono::steady_clock::now();
  model::Search<drivers::State> search;
  const drivers::Drivers protocol(config, &search);
  search.Reach(drivers::State(), nullptr, model::Event{"start", {}});
  drivers::State state;
  while (search.Next(&state)) {
    if (protocol.IsFinal(state)) {
      search.Final();
    } else {
      protocol.Events(state);
    }
  }
  search.CountNoWayOn();
  search.result.states = search.states();
  search.result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(search.result);
}

}  // namespace eps
