// The model of gates: the shards, the link between them, and their faults.

#include <algorithm>

#include "tests/model/gate_impl.h"

namespace eps::gates {

// ---- Steps.

// The worker begins its step on a shard, or its contribution is counted there.
void Gates::Work(const State& now, int i) const {
  const Shard& shard = now.shards[i];
  if (shard.life != Life::kOpen || shard.open != now.step || now.step > config_.steps) return;
  Next next = {now};
  State& state = next.state;
  Shard& own = state.shards[i];
  if ((now.begun & Bit(i)) == 0) {
    if (shard.gate != kNone && shard.open > shard.gate - 1) return;
    state.begun |= Bit(i);
    const bool brings = !config_.volatile_job || now.step == config_.steps ||
                        (shard.gate != kNone && shard.open == shard.gate - 1);
    own.pushes = brings ? 1 : 2;
    return Emit(&next, true, "step %d begins on shard %d", now.step, i);
  }
  if (now.begun != kAllShards || (now.pushed & Bit(i)) != 0) return;
  state.pushed |= Bit(i);
  own.counted = 1;
  if (state.pushed == kAllShards) {
    ++state.step;
    state.begun = state.pushed = 0;
  }
  Emit(&next, true, "shard %d counts the contribution to step %d", i, now.step);
}

void Gates::Complete(const State& now, int i) const {
  const Shard& shard = now.shards[i];
  if (shard.life != Life::kOpen || !shard.counted || shard.decided < shard.open) return;
  const bool cut = (now.lead.cuts & Bit(shard.open)) != 0;
  if (cut && shard.cutting != 0) return;
  Next next = {now};
  Shard& own = next.state.shards[i];
  if (cut) own.cutting = shard.open;
  own.whole = shard.pushes == 1;
  own.pushes = 0;
  own.counted = 0;
  ++own.open;
  CheckBorders(&next, shard.open);
  Emit(&next, true, "shard %d completes step %d", i, shard.open);
}

void Gates::MakeDurable(const State& now, int i) const {
  if (now.shards[i].life == Life::kDown || now.shards[i].cutting == 0) return;
  Next next = {now};
  Shard& shard = next.state.shards[i];
  shard.durable = shard.cutting;
  shard.cutting = 0;
  Emit(&next, true, "shard %d has the cut of step %d", i, shard.durable);
}

// ---- Messages of the lead.

void Gates::TakeGate(State* state, int i, uint8_t revision, uint8_t gate) const {
  Shard& shard = state->shards[i];
  shard.gate = gate;
  shard.answer = revision;
  const bool closed = shard.life == Life::kRecovering;
  shard.first = closed ? 0 : static_cast<uint8_t>(shard.pushes == 2 ? shard.open + 1 : shard.open);
  if (i != 0) return;
  if (closed && On(GateRule::kOpenShardsAnswer)) return;
  state->lead.answered[0] = revision;
  state->lead.border[0] = shard.first;
  shard.answer = 0;
}

void Gates::OpenShard(State* state, int i) const {
  Shard& shard = state->shards[i];
  shard.life = Life::kOpen;
  if (shard.answer != 0) TakeGate(state, i, shard.answer, shard.gate);
}

void Gates::Receive(const State& now) const {
  if (now.queued == 0) return;
  Next next = {now};
  State& state = next.state;
  Shard& shard = state.shards[1];
  const Message message = Message::From(now.queue[0]);
  std::copy(now.queue + 1, now.queue + now.queued, state.queue);
  state.queue[--state.queued] = 0;
  switch (message.kind) {
    case Message::kGate:
      TakeGate(&state, 1, message.revision, message.value);
      return Emit(&next, true, "shard 1 has the gate at step %d - 1", message.value);
    case Message::kDecision:
      shard.decided = std::max(shard.decided, message.value);
      return Emit(&next, true, "shard 1 has the decision on step %d", message.value);
    case Message::kOpen:
      if (shard.life == Life::kRecovering) OpenShard(&state, 1);
      return Emit(&next, true, "shard 1 opens step %d", shard.open);
    case Message::kDrained:
      if (shard.drains) End(&next, 1);
      return Emit(&next, true, "shard 1 may end");
  }
}

// ---- Servers that drain.

bool Gates::IsAtEnd(const State& state, int shard) const {
  return state.shards[shard].open > config_.steps && Everywhere(state) >= config_.steps;
}

void Gates::AskToEnd(const State& now, int i) const {
  if (now.drains >= config_.drains) return;
  if (now.shards[i].life == Life::kDown || now.shards[i].drains) return;
  Next next = {now};
  ++next.state.drains;
  next.state.shards[i].drains = 1;
  if (i == 0) ShardDrains(&next.state, 0);
  Emit(&next, false, "server %d is asked to end", i);
}

// A shard of a job that is not open, or that is finished and cut, does not wait for the lead.
// Others wait for at most servers.drain_timeout; here that is over only if the lead is away.
void Gates::EndAlone(const State& now, int i) const {
  const Shard& shard = now.shards[i];
  if (!shard.drains || shard.life == Life::kDown) return;
  const bool at_once = shard.life != Life::kOpen || IsAtEnd(now, i);
  const bool in_time = now.shards[0].life == Life::kDown && On(GateRule::kDrainTimesOut);
  if (!at_once && !in_time) return;
  Next next = {now};
  End(&next, i);
  Emit(&next, true, "server %d ends without a word of the lead", i);
}

// The process of a shard that drains ends.
void Gates::End(Next* next, int i) const {
  if (IsRead(next->state, i)) next->violation = kExportCutOff;
  Stop(&next->state, i);
  next->state.ended |= Bit(i);
}

// The process of a shard is over, and the link with it.
void Gates::Stop(State* state, int i) const {
  Shard& shard = state->shards[i];
  shard.life = Life::kDown;
  shard.gate = kNone;
  shard.answer = shard.first = shard.cutting = shard.drains = 0;
  state->link = 0;
  std::fill(state->queue, state->queue + state->queued, uint16_t{0});
  state->queued = 0;
  if (i == 0) LoseLead(state);
}

void Gates::Restart(const State& now, int i) const {
  if (now.shards[i].life != Life::kDown) return;
  if (config_.together && (now.ended & Bit(i)) != 0 && now.shards[1 - i].drains) return;
  Next next = {now};
  State& state = next.state;
  state.ended &= static_cast<uint8_t>(~Bit(i));
  Shard& shard = state.shards[i];
  shard.life = config_.logs ? Life::kOpen : Life::kRecovering;
  shard.fresh = !config_.logs;
  // The lead begins with the gates of its record, in the same term if it has a log.
  if (i == 0 && config_.logs && HasGates(state)) Changed(&state);
  if (i == 0) ShardDrains(&state, 0);
  Emit(&next, true, "server %d starts again", i);
}

// ---- Faults, and what repairs them.

void Gates::Crash(const State& now, int i) const {
  const bool may = i == 0 ? now.lead_crashes < config_.lead_crashes : now.crashes < config_.crashes;
  if (!may || now.shards[i].life == Life::kDown) return;
  Next next = {now};
  ++(i == 0 ? next.state.lead_crashes : next.state.crashes);
  next.state.crashed = 1;
  Stop(&next.state, i);
  Emit(&next, false, "server %d crashes", i);
}

void Gates::BreakLink(const State& now) const {
  if (now.breaks >= config_.breaks || !now.link) return;
  Next next = {now};
  State& state = next.state;
  ++state.breaks;
  state.link = 0;
  std::fill(state.queue, state.queue + state.queued, uint16_t{0});
  state.queued = 0;
  Emit(&next, false, "the link breaks");
}

// Shard 1 links again and registers. A process that is new to the job begins a term.
void Gates::LinkUp(const State& now) const {
  if (now.link || now.shards[0].life == Life::kDown || now.shards[1].life == Life::kDown) return;
  Next next = {now};
  State& state = next.state;
  state.link = 1;
  ShardDrains(&state, 1);
  if (state.shards[0].fresh || state.shards[1].fresh) {
    NewTerm(&next);
    return Emit(&next, true, "shard 1 registers, and a term begins after step %d",
                state.shards[0].durable);
  }
  if (On(GateRule::kRepeatAtRegister) && (HasGates(state) || On(GateRule::kRepeatAbsence))) {
    SendGate(&state, 1);
  }
  if (state.shards[0].life == Life::kOpen) {
    if (state.shards[1].life == Life::kRecovering) Send(&state, {Message::kOpen, 0, 0});
    Send(&state, {Message::kDecision, state.lead.decided, 0});
  }
  Emit(&next, true, "shard 1 registers");
}

// All shards return to the youngest cut that every one has, in one act.
void Gates::NewTerm(Next* next) const {
  State& state = next->state;
  const uint8_t base = std::min(state.shards[0].durable, state.shards[1].durable);
  const int completed = std::max(state.shards[0].open, state.shards[1].open) - 1;
  if (base < completed && !state.crashed) next->violation = kStepRepeated;
  for (Shard& shard : state.shards) {
    const uint8_t drains = shard.drains;
    shard = Shard();
    shard.life = Life::kRecovering;
    shard.open = static_cast<uint8_t>(base + 1);
    shard.decided = shard.durable = base;
    shard.drains = drains;
  }
  Lead& lead = state.lead;
  lead.decided = lead.stats = lead.durable = base;
  lead.cuts = lead.imported = 0;
  for (int i = 0; i < kShards; ++i) lead.answered[i] = lead.border[i] = 0;
  for (uint8_t& call : lead.call) call = 0;  // refused: the job is at another border
  LoseGates(&state);
  state.step = static_cast<uint8_t>(base + 1);
  state.begun = state.pushed = 0;
  state.crashed = 0;
  std::fill(state.queue, state.queue + state.queued, uint16_t{0});
  state.queued = 0;
}

}  // namespace eps::gates
