// The model of gates: the programs that drive the job, the operator, and their requests.

#include <algorithm>

#include "base/check.h"
#include "tests/model/gate_impl.h"

namespace eps::gates {

// Returns the gate of the first checkpoint after a border; kNone after the last one.
uint8_t Gates::NextSave(int after) const {
  for (int border = after + 1; border < config_.steps; ++border) {
    if ((config_.saves & Bit(border)) != 0) return static_cast<uint8_t>(border + 1);
  }
  return kNone;
}

// ---- Requests.

void Gates::Ask(State* state, int holder, uint8_t gate) const {
  Holder& asks = state->holders[holder];
  asks.phase = Phase::kAsks;
  asks.gate = gate;
  asks.sure = asks.exported = asks.lost_gate = 0;
  ++asks.serial;
  const Request request = {static_cast<uint8_t>(holder), asks.serial, gate};
  uint16_t* const end = state->request + state->requests;
  uint16_t* const at = std::lower_bound(state->request, end, request.Bits());
  EPS_CHECK(state->requests < kMaxRequests);
  std::copy_backward(at, end, end + 1);
  *at = request.Bits();
  ++state->requests;
}

// The answer of the lead: every shard has the change, and the first border at which all can stop.
void Gates::Answer(State* state, int holder, int first) const {
  Holder& asks = state->holders[holder];
  if (asks.phase != Phase::kAsks || asks.serial != state->lead.serial[holder]) return;
  if (asks.gate == kNone) {
    asks.phase = Phase::kFree;
    return;
  }
  if (holder == kOperator) {
    const int border = std::max(state->lead.gate[kOperator] - 1, first);
    asks.phase = Phase::kHolds;
    asks.gate = static_cast<uint8_t>(border + 1);
    return;
  }
  if (first > asks.gate - 1 && On(GateRule::kHolderMovesOn)) {
    return Ask(state, holder, NextSave(first - 1));
  }
  asks.phase = Phase::kHolds;
  asks.sure = 1;
}

void Gates::HearRequests(const State& now) const {
  if (now.shards[0].life == Life::kDown) return;
  for (int i = 0; i < now.requests; ++i) HearRequest(now, i);
}

void Gates::HearRequest(const State& now, int index) const {
  const Request request = Request::From(now.request[index]);
  const Holder& holder = now.holders[request.holder];
  const bool progress = holder.phase == Phase::kAsks && holder.serial == request.serial;
  Next next = {now};
  State& state = next.state;
  Lead& lead = state.lead;
  std::copy(now.request + index + 1, now.request + now.requests, state.request + index);
  state.request[--state.requests] = 0;
  if (now.losses < config_.losses) {
    Next lost = next;
    ++lost.state.losses;
    Emit(&lost, false, "request %d of holder %d is lost", request.serial, request.holder);
  }
  const bool is_driver = request.holder != kOperator;
  if (is_driver && On(GateRule::kRequestNamesLease) && now.lease != request.holder + 1) {
    if (progress) state.holders[request.holder].phase = Phase::kDead;  // it is told
    return Emit(&next, progress, "request %d of holder %d is refused", request.serial,
                request.holder);
  }
  const bool late = request.serial < lead.serial[request.holder];
  if (!late || !On(GateRule::kRequestsInOrder)) {
    const bool again = request.serial == lead.serial[request.holder];
    lead.serial[request.holder] = request.serial;
    uint8_t gate = request.gate;
    if (gate == kLeadChooses) {
      const int decided = On(GateRule::kPauseUndecided) ? now.lead.decided : now.shards[0].open - 1;
      gate = static_cast<uint8_t>(std::min(decided + 1, config_.steps) + 1);
      if (again && lead.gate[kOperator] != kNone) gate = lead.gate[kOperator];
    }
    SetGate(&state, request.holder, gate);
    Changed(&state);
    lead.call[request.holder] = lead.revision;
  }
  Next twice = next;
  Emit(&next, progress, "the lead hears request %d of holder %d", request.serial, request.holder);
  if (now.duplicates == config_.duplicates) return;
  ++twice.state.duplicates;
  std::copy(now.request, now.request + now.requests, twice.state.request);
  twice.state.requests = now.requests;
  Emit(&twice, false, "the lead hears request %d of holder %d, which arrives again", request.serial,
       request.holder);
}

// A holder whose request or answer is gone, or whose gate may be, asks again.
void Gates::AskAgain(const State& now, int i) const {
  const Holder& holder = now.holders[i];
  Next next = {now};
  State& state = next.state;
  if (holder.phase == Phase::kAsks && now.lead.call[i] == 0) {
    for (int r = 0; r < now.requests; ++r) {
      const Request request = Request::From(now.request[r]);
      if (request.holder == i && request.serial == holder.serial) return;
    }
    --state.holders[i].serial;
    Ask(&state, i, holder.gate);
    return Emit(&next, true, "holder %d repeats its request %d", i, holder.serial);
  }
  if (!holder.lost_gate || !On(GateRule::kHolderSetsAgain)) return;
  Ask(&state, i, holder.phase == Phase::kFree ? kNone : holder.gate);
  Emit(&next, true, "holder %d sets its gate again", i);
}

// The process or the term of the lead is over.
void Gates::LoseGates(State* state) const {
  for (int driver = 0; driver < config_.drivers; ++driver) {
    Holder& holder = state->holders[driver];
    holder.sure = holder.exported = 0;
    holder.lost_gate = holder.phase == Phase::kHolds || holder.phase == Phase::kFree;
  }
}

// ---- Drivers.

// A driver reads the border that it holds from every shard, and moves its gate.
void Gates::Drive(const State& now, int driver) const {
  const Holder& holder = now.holders[driver];
  if (holder.phase != Phase::kHolds) return;
  if (now.lease != driver + 1) {
    Next next = {now};
    next.state.holders[driver].phase = Phase::kDead;
    return Emit(&next, true, "driver %d hears that its lease is over", driver);
  }
  for (int shard = 0; shard < kShards; ++shard) Export(now, driver, shard);
  if (holder.exported != kAllShards) return;
  Next next = {now};
  Ask(&next.state, driver, NextSave(holder.gate - 1));
  Emit(&next, true, "driver %d has the checkpoint of step %d", driver, holder.gate - 1);
}

void Gates::Export(const State& now, int driver, int i) const {
  const Holder& holder = now.holders[driver];
  const Shard& shard = now.shards[i];
  if (holder.exported & Bit(i) || shard.life != Life::kOpen || shard.open != holder.gate) return;
  Next next = {now};
  if (!shard.whole && holder.sure) next.violation = kExportNotWhole;
  next.state.holders[driver].exported |= Bit(i);
  Emit(&next, true, "driver %d reads step %d from shard %d", driver, holder.gate - 1, i);
}

// Returns whether a driver still has to read from the shard the border at which it stands.
bool Gates::IsRead(const State& state, int shard) const {
  for (int driver = 0; driver < config_.drivers; ++driver) {
    const Holder& holder = state.holders[driver];
    if (holder.phase == Phase::kHolds && holder.sure && state.shards[shard].open == holder.gate &&
        (holder.exported & Bit(shard)) == 0) {
      return true;
    }
  }
  return false;
}

// A shard has completed a step: no holder may rely on an earlier border.
void Gates::CheckBorders(Next* next, int completed) const {
  for (int i = 0; i < kHolders; ++i) {
    const Holder& holder = next->state.holders[i];
    if (holder.phase != Phase::kHolds || completed <= holder.gate - 1) continue;
    if (i == kOperator) next->violation = kPausePassed;
    if (i != kOperator && holder.sure) next->violation = kBorderPassed;
  }
}

void Gates::Claim(const State& now, int driver) const {
  if (now.lease != 0 || now.holders[driver].phase != Phase::kAbsent) return;
  if (now.shards[0].life == Life::kDown) return;
  if (driver > 0 && now.holders[driver - 1].phase == Phase::kAbsent) return;
  Next next = {now};
  next.state.lease = static_cast<uint8_t>(driver + 1);
  Ask(&next.state, driver, NextSave(now.shards[0].open - 1));
  Emit(&next, true, "driver %d claims the job", driver);
}

// The lease of a driver ends, and its gate with it.
void Gates::EndLease(const State& now, int driver) const {
  const Holder& holder = now.holders[driver];
  if (now.lease != driver + 1 || now.shards[0].life == Life::kDown) return;
  const bool dead = holder.phase == Phase::kDead;
  if (dead ? !On(GateRule::kDriverLeaseEnds) : now.expiries >= config_.expiries) return;
  Next next = {now};
  State& state = next.state;
  state.lease = 0;
  state.holders[driver].sure = 0;
  if (!dead) ++state.expiries;
  state.lead.call[driver] = 0;
  if (On(GateRule::kLeaseEndsGate) && state.lead.gate[driver] != kNone) {
    SetGate(&state, driver, kNone);
    Changed(&state);
  }
  Emit(&next, dead, "the lease of driver %d ends", driver);
}

void Gates::CrashDriver(const State& now, int driver) const {
  const Holder& holder = now.holders[driver];
  if (now.driver_crashes >= config_.driver_crashes) return;
  if (holder.phase == Phase::kAbsent || holder.phase == Phase::kDead) return;
  Next next = {now};
  ++next.state.driver_crashes;
  next.state.holders[driver] = Holder();
  next.state.holders[driver].phase = Phase::kDead;
  Emit(&next, false, "driver %d dies", driver);
}

// ---- The operator.

void Gates::Operate(const State& now) const {
  const Holder& holder = now.holders[kOperator];
  Next next = {now};
  if (holder.phase == Phase::kAbsent && now.pauses < config_.pauses) {
    ++next.state.pauses;
    const bool chosen = config_.pause_at >= 0;
    Ask(&next.state, kOperator, chosen ? static_cast<uint8_t>(config_.pause_at + 1) : kLeadChooses);
    return Emit(&next, false, "the operator pauses the job");
  }
  if (holder.phase != Phase::kHolds) return;
  if (config_.upgrade) {
    for (const Shard& shard : now.shards) {
      if (shard.life == Life::kDown || shard.drains) return;
    }
  }
  Ask(&next.state, kOperator, kNone);
  Emit(&next, true, "the operator resumes the job");
}

}  // namespace eps::gates
