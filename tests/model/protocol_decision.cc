// The protocol's model: the lead's decisions, and the norms and Trusts of LAMB.

#include <algorithm>

#include "tests/model/protocol_impl.h"

namespace eps::model {

LambMessage UnpackLamb(uint64_t bits) {
  LambMessage message;
  message.kind = static_cast<LambMessage::Kind>(bits >> 62 & 1);
  message.term = bits >> 40 & 15;
  message.step = bits >> 32 & 15;
  message.of = static_cast<Lineage>(bits);
  return message;
}

// ---------------------------------------------------------------- decisions

// The lead decides on a step once it has the Stats of all shards.
void Protocol::Decide(const State& state) const {
  if (!config_.sealed || !rules_.one_decision || state.lead.phase != Phase::kServing) return;
  const uint8_t step = state.shards[0].open_step;
  if (state.lead.decided_step >= step) return;
  bool skip = false;
  for (const Shard& shard : state.shards) {
    if (!HasAll(shard) || shard.open_step != step || shard.serving != state.lead.term) return;
    if (&shard != &state.shards[0] && !Speaks(shard)) return;
    skip |= shard.poisoned != 0;
  }
  State next = state;
  next.lead.decided_step = step;
  next.lead.decided_skip = skip;
  next.lead.trust = 0;
  next.lead.owes_trust = 0;
  if (skip) std::fill(std::begin(next.lead.norms), std::end(next.lead.norms), uint8_t{0});
  LogDecision(&next, 0);
  Fold(&next);
  Emit(&next, "the lead decides on step %d: skip %d", step, skip);
}

bool Protocol::IsPermitted(const State& state) const {
  const Lead& lead = state.lead;
  if (lead.decided_step != state.shards[0].open_step) return false;
  return !NeedsTrust(lead.decided_skip != 0) || lead.trust != 0 || !rules_.update_waits_for_trust;
}

void Protocol::FollowDecision(const State& state, int i) const {
  if (!config_.sealed) return;
  const Shard& now = state.shards[i];
  if (!HasAll(now) || (now.due && rules_.update_waits_for_capture)) return;
  if (i != 0 && (!Hears(now) || !Speaks(state.shards[0]))) return;
  bool skip = now.poisoned != 0;
  if (rules_.one_decision) {
    if (state.lead.decided_step != now.open_step || now.serving != state.lead.term) return;
    skip = state.lead.decided_skip != 0;
  }
  const bool needs_trust = NeedsTrust(skip);
  if (needs_trust && rules_.update_waits_for_trust && (i != 0 || state.lead.trust == 0)) return;
  const char* violation = nullptr;
  if (needs_trust && (i != 0 || state.lead.trust == 0)) {
    violation = "a shard updated without a Trust";
  } else if (needs_trust && state.lead.trust != History(now, now.open_step)) {
    violation = kOtherTrust;
  }
  State next = state;
  if (i != 0) LogDecision(&next, i);
  CompleteStep(&next, i, skip);
  Emit(violation, &next, "shard %d completes step %d: skip %d", i, now.open_step, skip);
}

// ---------------------------------------------------------------- norms and Trusts

// Returns the history of a shard's state after a step that it has updated or has open.
Lineage Protocol::History(const Shard& shard, int step) {
  if (step < shard.open_step) return UpTo(shard.lineage, step);
  return With(shard.lineage, step, shard.era);
}

// Returns whether the lead waits for norms of its own shard's open step.
bool Protocol::AwaitsNorms(const State& state) const {
  const Lead& lead = state.lead;
  if (lead.phase != Phase::kServing || !HasAll(state.shards[0])) return false;
  if (lead.decided_step != state.shards[0].open_step) return !rules_.norms_follow_decision;
  return NeedsTrust(lead.decided_skip != 0) && lead.trust == 0;
}

// Measures a shard's part of the norms and sends them. A chunk with a contribution that is not
// finite has no gradient to measure.
void Protocol::Measure(const State& state, int i) const {
  const Shard& now = state.shards[i];
  const Lead& lead = state.lead;
  if (!config_.trust || lead.phase != Phase::kServing || now.serving != lead.term) return;
  if (!HasAll(now) || now.poisoned || !Hears(now)) return;
  const bool permitted = lead.decided_step == now.open_step && Speaks(state.shards[0]) &&
                         NeedsTrust(lead.decided_skip != 0);
  State next = state;
  if (i == 0) {
    if (!AwaitsNorms(state) || lead.norms[0] != 0) return;
    CountNorms(&next, 0, /*other=*/false);
  } else {
    if ((rules_.norms_follow_sync && !Speaks(now)) || now.measured == now.open_step) return;
    if (!permitted && rules_.norms_follow_decision) return;
    next.shards[i].measured = now.open_step;
    LambMessage norms;
    norms.term = now.serving;
    norms.step = now.open_step;
    norms.of = History(now, now.open_step);
    Add(&next, norms.Bits());
  }
  Emit(&next, "shard %d measures step %d", i, now.open_step);
}

void Protocol::HearNorms(const State& state, uint32_t index) const {
  if (IsPush(state.message[index])) return;
  const LambMessage norms = UnpackLamb(state.message[index]);
  const Shard& own = state.shards[0];
  if (norms.kind != LambMessage::Kind::kNorms || !AwaitsNorms(state)) return;
  if (rules_.norms_name_term && norms.term != state.lead.term) return;
  if (rules_.norms_name_step && norms.step != own.open_step) return;
  State next = state;
  Remove(&next, index);
  CountNorms(&next, 1, norms.of != History(own, own.open_step));
  Emit(&next, "the lead receives the norms of step %d, measured in term %d", norms.step,
       norms.term);
}

void Protocol::CountNorms(State* state, int i, bool other) const {
  uint8_t& norms = state->lead.norms[i];
  if (norms != 0 && rules_.norms_count_once) return;
  if (norms != 0) norms |= kTwice;
  norms |= kCounted;
  if (other) norms |= kOtherHistory;
  Fold(state);
}

// The lead folds the norms of all shards once it has them and the decision.
void Protocol::Fold(State* state) const {
  Lead& lead = state->lead;
  if (lead.decided_step != state->shards[0].open_step) return;
  const uint8_t both = lead.norms[0] | lead.norms[1];
  const bool all = lead.norms[0] != 0 && lead.norms[1] != 0;
  // Without norms_count_once the lead only counts messages.
  if (!all && (both & kTwice) == 0) return;
  const bool mixed = !all || both != kCounted;
  lead.trust = mixed ? kMixed : History(state->shards[0], lead.decided_step);
  lead.owes_trust = 1;
  std::fill(std::begin(lead.norms), std::end(lead.norms), uint8_t{0});
  LogTrust(state, 0, mixed);
}

void Protocol::LogTrust(State* state, int i, bool mixed) const {
  Fact fact;
  fact.kind = Fact::Kind::kTrust;
  fact.step = i == 0 ? state->lead.decided_step : state->shards[i].open_step;
  fact.flag = mixed;
  LogIt(state, i, fact);
}

// The lead sends its Trust at once when it may: a delay adds nothing, because the message may
// arrive late or be lost. Its own shard needs no message.
void Protocol::SendTrust(State* state) const {
  Lead& lead = state->lead;
  if (!lead.owes_trust || lead.phase != Phase::kServing) return;
  if (rules_.trust_synced_before_sent && !Speaks(state->shards[0])) return;
  lead.owes_trust = 0;
  LambMessage message;
  message.kind = LambMessage::Kind::kTrust;
  message.term = lead.term;
  message.step = lead.decided_step;
  message.of = lead.trust;
  Add(state, message.Bits());
}

// Shard 1 receives a Trust and updates. A Trust implies the decision not to skip.
void Protocol::HearTrust(const State& state, uint32_t index) const {
  if (IsPush(state.message[index])) return;
  const LambMessage trust = UnpackLamb(state.message[index]);
  const Shard& now = state.shards[1];
  if (trust.kind != LambMessage::Kind::kTrust || !Hears(now) || !HasAll(now)) return;
  if (now.due && rules_.update_waits_for_capture) return;
  if (rules_.trust_names_term && trust.term != now.serving) return;
  if (rules_.trust_names_step && trust.step != now.open_step) return;
  State next = state;
  Remove(&next, index);
  const bool other = trust.of != History(now, now.open_step);
  if (rules_.trust_logged_before_update) LogTrust(&next, 1, other);
  CompleteStep(&next, 1, /*skip=*/false);
  Emit(other ? kOtherTrust : nullptr, &next, "shard 1 updates step %d with the Trust of step %d",
       now.open_step, trust.step);
}

// The link between the lead and shard 1 is new: the shard registers.
void Protocol::Reconnect(State* state) const {
  if (rules_.norms_sent_again) state->shards[1].measured = 0;
  if (rules_.trust_is_repeated) state->lead.owes_trust = state->lead.trust != 0;
}

// Returns whether shard 1 lacks a contribution that is in the norms which the lead has counted.
bool Protocol::LacksMeasured(const State& state) const {
  const Lead& lead = state.lead;
  const Shard& shard = state.shards[1];
  if (!config_.trust || lead.phase != Phase::kServing || shard.serving != lead.term) return false;
  if (!Hears(shard) || shard.open_step != state.shards[0].open_step) return false;
  const bool folded = lead.decided_step == shard.open_step && lead.trust != 0;
  return (folded || lead.norms[1] != 0) && !HasAll(shard);
}

void Protocol::BreakLink(const State& state) const {
  if (state.lead.phase != Phase::kServing || !Hears(state.shards[0]) || !Hears(state.shards[1])) {
    return;
  }
  State next = state;
  ++next.link_breaks;
  State lossy = next;
  Reconnect(&next);
  Emit(&next, "the link breaks; its messages may arrive");
  if (!LoseMessages(&lossy)) return;
  Reconnect(&lossy);
  Emit(&lossy, "the link breaks; its messages are lost");
}

bool Protocol::LoseMessages(State* state) {
  const uint32_t before = state->messages;
  for (uint32_t m = 0; m < state->messages;) {
    if (IsPush(state->message[m])) {
      ++m;
    } else {
      Remove(state, m);
    }
  }
  return state->messages != before;
}

// Returns whether its receiver ignores the message for ever; removing it then changes nothing.
bool Protocol::IsDead(const State& state, const LambMessage& message) const {
  const Lead& lead = state.lead;
  if (message.kind == LambMessage::Kind::kNorms) {
    if (!rules_.norms_name_term) return false;
    if (message.term < lead.term) return true;
    if (!rules_.norms_name_step || lead.phase != Phase::kServing) return false;
    const bool is_over = message.step < state.shards[0].open_step;
    const bool is_decided = lead.decided_step == message.step;
    return message.term == lead.term && (is_over || (is_decided && !AwaitsNorms(state)));
  }
  const Shard& shard = state.shards[1];
  if (!rules_.trust_names_term) return false;
  if (message.term < shard.promised) return true;
  return rules_.trust_names_step && Hears(shard) && message.term == shard.serving &&
         message.step < shard.open_step;
}

}  // namespace eps::model
