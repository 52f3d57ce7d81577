#include "tests/model/gate_model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "tests/model/gate_impl.h"

namespace eps {
namespace gates {

Gates::Gates(const GateConfig& config, model::Search<State>* search)
    : config_(config), search_(search) {
  // A message has room for no more.
  EPS_CHECK(config.steps >= 1 && config.steps <= 5 && config.ahead >= 0 && config.ahead <= 2);
  EPS_CHECK(config.drivers <= kDrivers && config.pauses <= 1);
  const bool faults = config.drains + config.crashes + config.lead_crashes > 0;
  EPS_CHECK(!(config.volatile_job && faults));
}

State Gates::Initial() const {
  Next next;
  if (config_.drivers > 0) {
    next.state.lease = 1;
    Ask(&next.state, 0, NextSave(0));
  }
  Settle(&next);
  return next.state;
}

bool Gates::IsFinal(const State& state) const {
  for (const Shard& shard : state.shards) {
    if (shard.life != Life::kOpen || shard.open != config_.steps + 1 || shard.drains) return false;
  }
  for (const Holder& holder : state.holders) {
    if (holder.phase == Phase::kAsks || holder.phase == Phase::kHolds) return false;
  }
  return true;
}

void Gates::Events(const State& now) const {
  for (int shard = 0; shard < kShards; ++shard) {
    Work(now, shard);
    Complete(now, shard);
    MakeDurable(now, shard);
    AskToEnd(now, shard);
    EndAlone(now, shard);
    Restart(now, shard);
    Crash(now, shard);
    Import(now, shard);
  }
  Receive(now);
  HearShard(now);
  BreakLink(now);
  LinkUp(now);
  HearRequests(now);
  for (int driver = 0; driver < config_.drivers; ++driver) {
    Drive(now, driver);
    Claim(now, driver);
    EndLease(now, driver);
    CrashDriver(now, driver);
  }
  for (int holder = 0; holder < kHolders; ++holder) AskAgain(now, holder);
  Operate(now);
}

// ---- What the lead hears.

// Everything that shard 1 sent until now arrives. Its request to drain is part of that.
void Gates::HearShard(const State& now) const {
  const Shard& shard = now.shards[1];
  if (!now.link || shard.life == Life::kDown || now.shards[0].life == Life::kDown) return;
  Next next = {now};
  State& state = next.state;
  Lead& lead = state.lead;
  const bool sealed = config_.ahead == 0;
  lead.stats = static_cast<uint8_t>(sealed && shard.counted ? shard.open : shard.open - 1);
  lead.durable = shard.durable;
  if (shard.answer != 0 && (shard.first != 0 || !On(GateRule::kOpenShardsAnswer))) {
    const bool names = On(GateRule::kAnswerNamesChange);
    lead.answered[1] = names ? shard.answer : lead.revision;
    lead.border[1] = shard.first;
    state.shards[1].answer = 0;
  }
  if (shard.drains && lead.drain[1] == kNone) ShardDrains(&state, 1);
  Emit(&next, true, "the lead hears of shard 1 at step %d", shard.open);
}

// The lead hears in a recovery that a shard has the state with which the term opens.
void Gates::Import(const State& now, int shard) const {
  if (now.shards[0].life != Life::kRecovering || now.shards[1].life != Life::kRecovering) return;
  if (now.shards[0].fresh || now.shards[1].fresh || (now.lead.imported & Bit(shard)) != 0) return;
  if (shard == 1 && !now.link) return;
  Next next = {now};
  State& state = next.state;
  state.lead.imported |= Bit(shard);
  if (On(GateRule::kRepeatBeforeOpen) && HasGates(state)) SendGate(&state, shard);
  if (state.lead.imported == kAllShards) {
    OpenShard(&state, 0);
    Send(&state, {Message::kOpen, 0, 0});
  }
  Emit(&next, true, "the lead hears that shard %d has the state after step %d", shard,
       now.shards[shard].open - 1);
}

// ---- Gates.

bool Gates::HasGates(const State& state) {
  const Lead& lead = state.lead;
  return std::any_of(lead.gate, lead.gate + kHolders, [](uint8_t gate) { return gate != kNone; }) ||
         lead.drain[0] != kNone || lead.drain[1] != kNone;
}

uint8_t Gates::InForce(const State& state) const {
  uint8_t gate = kNone;
  const auto take = [this, &gate](uint8_t other) {
    if (other == kNone) return;
    const bool lower = On(GateRule::kLowestHolds) ? other < gate : other > gate;
    if (gate == kNone || lower) gate = other;
  };
  for (const uint8_t other : state.lead.gate) take(other);
  for (const uint8_t other : state.lead.drain) take(other);
  if (!On(GateRule::kAbsence) && gate == 1) return kNone;
  return gate;
}

void Gates::SetGate(State* state, int holder, uint8_t gate) const {
  if (!On(GateRule::kHolders)) std::fill(state->lead.gate, state->lead.gate + kHolders, kNone);
  state->lead.gate[holder] = gate;
}

void Gates::Changed(State* state) const {
  ++state->lead.revision;
  SendGate(state, 1);
  SendGate(state, 0);
}

void Gates::SendGate(State* state, int shard) const {
  const uint8_t gate = InForce(*state);
  if (shard == 0) return TakeGate(state, 0, state->lead.revision, gate);
  Send(state, {Message::kGate, gate, state->lead.revision});
}

void Gates::Send(State* state, const Message& message) const {
  if (!state->link) return;
  EPS_CHECK(state->queued < kMaxQueue);
  state->queue[state->queued++] = message.Bits();
}

void Gates::AnswerHolders(State* state) const {
  Lead& lead = state->lead;
  const int shards = On(GateRule::kAllAnswer) ? kShards : 1;
  for (int holder = 0; holder < kHolders; ++holder) {
    if (lead.call[holder] == 0) continue;
    int first = 0;
    bool missing = false;
    for (int shard = 0; shard < shards; ++shard) {
      missing |= lead.answered[shard] < lead.call[holder];
      first = std::max<int>(first, lead.border[shard]);
    }
    if (missing) continue;
    lead.call[holder] = 0;
    Answer(state, holder, first);
  }
}

// ---- Servers that drain.

uint8_t Gates::DrainGate(const State& state) const {
  for (const uint8_t drain : state.lead.drain) {
    if (drain != kNone) return drain;
  }
  if (On(GateRule::kDrainAtPause) && state.lead.gate[kOperator] != kNone) {
    return state.lead.gate[kOperator];
  }
  const int step = On(GateRule::kDrainUndecided) ? state.lead.decided + 1 : state.shards[0].open;
  return static_cast<uint8_t>(std::min(step, config_.steps) + 1);
}

// A shard registers, and says whether it drains.
void Gates::ShardDrains(State* state, int shard) const {
  uint8_t& gate = state->lead.drain[shard];
  state->lead.told &= static_cast<uint8_t>(~Bit(shard));
  if (state->shards[shard].drains) {
    if (gate != kNone || state->shards[0].life != Life::kOpen) return;
    gate = DrainGate(*state);
    return Changed(state);
  }
  if (gate == kNone || !On(GateRule::kDrainLifts)) return;
  gate = kNone;
  Changed(state);
}

uint8_t Gates::Everywhere(const State& state) {
  return std::min(state.shards[0].durable, state.lead.durable);
}

bool Gates::MayEnd(const State& state, int shard) const {
  const Lead& lead = state.lead;
  const int border = lead.drain[shard] - 1;
  const uint8_t own = shard == 0 ? state.shards[0].durable : lead.durable;
  if ((On(GateRule::kEndAtCommonCut) ? Everywhere(state) : own) < border) return false;
  for (int holder = 0; holder < kHolders && On(GateRule::kReaderKeepsServer); ++holder) {
    if (holder == kOperator && On(GateRule::kPauseKeepsNoServer)) continue;
    if (lead.gate[holder] != kNone && lead.gate[holder] - 1 <= border) return false;
  }
  if (shard != 0 || !On(GateRule::kLeadEndsLast)) return true;
  return lead.drain[1] == kNone || !state.link;
}

void Gates::LetEnd(Next* next) const {
  for (int shard = kShards - 1; shard >= 0; --shard) {
    State& state = next->state;
    if (state.shards[0].life == Life::kDown || state.lead.drain[shard] == kNone) continue;
    if ((state.lead.told & Bit(shard)) != 0 || !MayEnd(state, shard)) continue;
    state.lead.told |= Bit(shard);
    if (shard == 1) {
      Send(&state, {Message::kDrained, 0, 0});
    } else if (state.shards[0].drains) {
      End(next, 0);
    }
  }
}

// ---- Decisions, and the end of the lead's process.

void Gates::Decide(State* state) const {
  Lead& lead = state->lead;
  Shard& own = state->shards[0];
  if (own.life != Life::kOpen) return;
  const bool sealed = config_.ahead == 0;
  const int stats = std::min<int>(sealed && own.counted ? own.open : own.open - 1, lead.stats);
  while (lead.decided < config_.steps && lead.decided < stats + config_.ahead) {
    const int step = ++lead.decided;
    bool cut = step == config_.steps;
    if (On(GateRule::kCutAtGate)) {
      for (const uint8_t gate : lead.gate) cut |= gate == step + 1;
      for (const uint8_t gate : lead.drain) cut |= gate == step + 1;
    }
    if (cut && !config_.volatile_job) lead.cuts |= Bit(step);
    own.decided = lead.decided;
    Send(state, {Message::kDecision, lead.decided, 0});
  }
}

// The memory of the lead is gone. A log, or the recovery that follows, brings back its knowledge of
// steps.
void Gates::LoseLead(State* state) const {
  Lead& lead = state->lead;
  const Lead before = lead;
  lead = Lead();
  if (config_.logs) {
    lead.decided = before.decided;
    lead.cuts = before.cuts;
    lead.stats = before.stats;
    lead.durable = before.durable;
  }
  if (On(GateRule::kPauseIsDurable)) {
    lead.gate[kOperator] = before.gate[kOperator];
    lead.serial[kOperator] = before.serial[kOperator];
  }
  LoseGates(state);
}

// Does at once what the lead does without an event.
void Gates::Settle(Next* next) const {
  if (next->state.shards[0].life == Life::kDown) return;
  Decide(&next->state);
  AnswerHolders(&next->state);
  LetEnd(next);
}

}  // namespace gates

ModelResult CheckGates(const GateConfig& config) {
  const auto start = std::chrono::steady_clock::now();
  model::Search<gates::State> search;
  const gates::Gates protocol(config, &search);
  search.Reach(protocol.Initial(), nullptr, model::Event{"start", {}});
  gates::State state;
  while (search.Next(&state)) {
    if (protocol.IsFinal(state)) search.Final();
    protocol.Events(state);
  }
  search.CountNoWayOn();
  search.result.states = search.states();
  search.result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(search.result);
}

}  // namespace eps
