// The protocol's model: the contribution log, and work that is lost with a worker.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tests/model/protocol_impl.h"

namespace eps::model {
namespace {

Fact FactOf(uint16_t bits) {
  Fact fact;
  fact.kind = static_cast<Fact::Kind>(bits & 7);
  fact.step = bits >> 3 & 7;
  fact.own = bits >> 6 & 1;
  fact.part = bits >> 7 & 1;
  fact.flag = bits >> 8 & 1;
  fact.decided = bits >> 9 & 7;
  return fact;
}

// Two contributions to the same step commute.
bool MaySwap(const Fact& a, const Fact& b) {
  return a.kind == Fact::Kind::kPush && b.kind == Fact::Kind::kPush && a.step == b.step;
}

// Gives equivalent logs the same representation: sorts contributions to one step within a batch,
// and joins adjacent batches that hold only one and the same step.
void Normalize(Log* log) {
  int first_step = 0;  // of the current batch; 0 if it holds several steps
  for (int f = 0; f < log->facts; ++f) {
    const int step = FactOf(log->fact[f]).step;
    if ((log->batches >> f & 1) != 0) {
      int end = f + 1;
      while (end < log->known && (log->batches >> end & 1) == 0) ++end;
      bool same = true;
      for (int other = f; other < end; ++other) same &= FactOf(log->fact[other]).step == step;
      if (same && first_step == step && f != log->durable) {
        log->batches = static_cast<uint16_t>(log->batches & ~(1u << f));
      }
      first_step = same ? step : 0;
    }
    for (int at = f; at > 0; --at) {
      const bool border = (log->batches >> at & 1) != 0 || at == log->known || at == log->durable;
      if (border || !MaySwap(FactOf(log->fact[at - 1]), FactOf(log->fact[at]))) break;
      if (log->fact[at - 1] < log->fact[at]) break;
      std::swap(log->fact[at - 1], log->fact[at]);
    }
  }
}

}  // namespace

bool Protocol::Hears(const Shard& shard) const {
  return !shard.replaying || !rules_.replay_before_serving;
}

// A shard may wait until all that it logged is durable, not only what it had logged before: no
// other process knows of the later facts yet, so they could as well have been logged later.
bool Protocol::Speaks(const Shard& shard) const {
  if (!Hears(shard)) return false;
  return !rules_.tell_after_sync || (!shard.log.fresh && shard.log.known == shard.log.facts);
}

// ---------------------------------------------------------------- logging

void Protocol::LogIt(State* state, int i, const Fact& fact) const {
  Shard& shard = state->shards[i];
  if (!HasLog(i) || shard.replaying) return;
  EPS_CHECK(shard.log.facts < kMaxFacts);
  shard.log.fact[shard.log.facts++] = fact.Bits();
  Normalize(&shard.log);
}

void Protocol::LogDecision(State* state, int i) const {
  Fact fact;
  fact.kind = Fact::Kind::kDecision;
  fact.step = state->lead.decided_step;
  fact.flag = state->lead.decided_skip;
  LogIt(state, i, fact);
}

// Only the lead's session matters: those of other shards hold nothing that the model has.
void Protocol::LogSession(State* state) const {
  Shard& lead = state->shards[0];
  if (lead.replaying) lead.owes_session = 1;
  Fact fact;
  fact.kind = Fact::Kind::kSession;
  fact.step = lead.open_step;
  if (rules_.session_has_decision) {
    fact.flag = state->lead.decided_skip;
    fact.decided = state->lead.decided_step;
    fact.own = state->lead.trust != 0 && rules_.session_has_trust;
    fact.part = fact.own && state->lead.trust == kMixed;
  }
  LogIt(state, 0, fact);
}

void Protocol::BeginLog(State* state, int i) const {
  Shard& shard = state->shards[i];
  const uint8_t before = shard.log.term;
  shard.log = Log();
  shard.log.term = before;  // until the next Sync
  shard.log.era = shard.era;
  shard.log.fresh = 1;
  if (i == 0) LogSession(state);
}

void Protocol::Sync(const State& state, int i) const {
  const Log& now = state.shards[i].log;
  if (state.shards[i].serving == 0 || (!now.fresh && now.known == now.facts)) return;
  State next = state;
  Shard& shard = next.shards[i];
  if (now.fresh) {
    shard.log.fresh = 0;
    shard.log.term = shard.serving;
    return Emit(&next, "shard %d has begun a log of term %d", i, shard.serving);
  }
  shard.log.batches = static_cast<uint16_t>(now.batches | 1u << now.known);
  shard.log.known = shard.log.durable = now.facts;
  Normalize(&shard.log);
  Emit(&next, "shard %d syncs its log of %d facts", i, now.facts);
}

// Batches are removed as a whole, so the rest may begin with facts that the cut already holds.
void Protocol::FreeUpTo(Log* log, int step) {
  int freed = 0;
  for (int begin = 0; begin < log->durable;) {
    int end = begin;
    int last_step = 0;
    do {
      last_step = std::max<int>(last_step, FactOf(log->fact[end++]).step);
    } while (end < log->durable && (log->batches >> end & 1) == 0);
    if (last_step > step) break;
    begin = freed = end;
  }
  std::copy(log->fact + freed, std::end(log->fact), log->fact);
  std::fill(std::end(log->fact) - freed, std::end(log->fact), uint16_t{0});
  log->facts = static_cast<uint8_t>(log->facts - freed);
  log->batches = static_cast<uint16_t>(log->batches >> freed);
  log->durable = static_cast<uint8_t>(log->durable - freed);
  log->known = static_cast<uint8_t>(log->known - freed);
  log->next = static_cast<uint8_t>(std::max(log->next - freed, 0));
}

// ---------------------------------------------------------------- replaying

// Returns whether a crash may leave this subset of the facts that were not synced: it must be a
// prefix in some order in which they could have been logged. `kept` has one bit per such fact.
bool Protocol::CanBeKept(const Log& log, uint32_t kept) {
  for (int f = log.durable; f < log.facts; ++f) {
    if ((kept >> (f - log.durable) & 1) == 0) continue;
    for (int before = log.durable; before < f; ++before) {
      if ((kept >> (before - log.durable) & 1) != 0) continue;
      if (!MaySwap(FactOf(log.fact[before]), FactOf(log.fact[f]))) return false;
    }
  }
  return true;
}

// If the log is of the promised term, the shard resumes in that term from its youngest cut.
void Protocol::ResumeFromLog(const Log& before, uint32_t kept, Shard* shard) const {
  if (before.term == 0 || before.fresh) return;
  if (before.term != shard->promised && rules_.log_of_promised_term) return;
  const Cut* const cut = FindCut(*shard, NewestLive(*shard), 0, /*term_matters=*/false);
  if (cut == nullptr) return;
  shard->log = before;
  Log& log = shard->log;
  log.facts = log.durable;
  std::fill(log.fact + log.facts, std::end(log.fact), uint16_t{0});
  for (int f = before.durable; f < before.facts; ++f) {
    if ((kept >> (f - before.durable) & 1) != 0) log.fact[log.facts++] = before.fact[f];
  }
  log.batches = static_cast<uint16_t>(log.batches & ((1u << log.durable) - 1));
  if (log.facts > log.durable) log.batches = static_cast<uint16_t>(log.batches | 1u << log.durable);
  log.known = log.facts;
  if (rules_.log_synced_before_read) log.durable = log.facts;
  log.next = 0;
  Normalize(&log);
  shard->replaying = 1;
  shard->down = 0;
  shard->loaded = 1;
  shard->serving = log.term;
  shard->era = log.era;
  shard->open_step = static_cast<uint8_t>(cut->step + 1);
  shard->lineage = cut->lineage;
  shard->watermark = shard->base;
}

void Protocol::Replay(const State& state, int i) const {
  const Shard& now = state.shards[i];
  if (!now.replaying) return;
  // The consequences of replayed facts come first.
  const bool permitted = i == 0 && HasAll(now) && IsPermitted(state);
  if (permitted && (!now.due || (!now.flush.active && SlotFor(now) >= 0))) return;
  if (now.log.next == now.log.facts) return EndReplay(state, i);
  const Fact fact = FactOf(now.log.fact[now.log.next]);
  State next = state;
  ++next.shards[i].log.next;
  const char* violation = nullptr;
  if (!Apply(&next, i, fact, &violation)) return;
  Emit(violation, &next, "shard %d replays fact %d, of step %d", i, now.log.next, fact.step);
}

bool Protocol::Apply(State* next, int i, const Fact& fact, const char** violation) const {
  switch (fact.kind) {
    case Fact::Kind::kPush:
      return ApplyPush(next, i, fact, violation);
    case Fact::Kind::kDecision:
      return ApplyDecision(next, i, fact);
    case Fact::Kind::kTrust:
      return ApplyTrust(next, i, fact, violation);
    default:
      next->lead.knows = 1;
      if (fact.decided <= next->lead.decided_step) return true;
      next->lead.decided_step = fact.decided;
      next->lead.decided_skip = fact.flag;
      next->lead.trust = 0;
      if (fact.own) next->lead.trust = History(next->shards[0], fact.decided);
      if (fact.part) next->lead.trust = kMixed;
      return true;
  }
}

bool Protocol::ApplyPush(State* next, int i, const Fact& fact, const char** violation) const {
  Shard& shard = next->shards[i];
  if (fact.step < shard.open_step && rules_.replay_skips_old) return true;
  if (fact.step > shard.open_step) return false;
  const uint8_t counted = shard.counted[fact.own];
  if (fact.step < shard.open_step || (counted & Bit(fact.part)) != 0) {
    *violation = "a contribution was counted twice";
    return true;
  }
  const bool completes = (counted | Bit(fact.part)) == kAllParts;
  if (completes && shard.due && rules_.update_waits_for_capture && !config_.sealed) return false;
  if (!rules_.replay_names_origin) shard.nameless[fact.own] |= Bit(fact.part);
  Count(next, i, fact);
  return true;
}

bool Protocol::ApplyDecision(State* next, int i, const Fact& fact) const {
  Shard& shard = next->shards[i];
  if (i == 0) {
    next->lead.decided_step = fact.step;  // FollowDecision completes the step
    next->lead.decided_skip = fact.flag;
    next->lead.trust = 0;
    return true;
  }
  if (fact.step < shard.open_step) return true;
  if (fact.step > shard.open_step || !HasAll(shard) || shard.due) return false;
  CompleteStep(next, i, fact.flag != 0);
  return true;
}

bool Protocol::ApplyTrust(State* next, int i, const Fact& fact, const char** violation) const {
  Shard& shard = next->shards[i];
  if (i == 0) {
    next->lead.trust = fact.flag ? kMixed : History(shard, fact.step);
    return true;  // FollowDecision completes the step
  }
  if (fact.step < shard.open_step) return true;
  if (fact.step > shard.open_step || !HasAll(shard) || shard.due) return false;
  if (fact.flag) *violation = kOtherTrust;
  CompleteStep(next, i, /*skip=*/false);
  return true;
}

// A shard reconnects to the lead as after a broken link; the lead receives messages from all shards
// that reconnect.
void Protocol::EndReplay(const State& state, int i) const {
  State next = state;
  Lead& lead = next.lead;
  next.shards[i].replaying = 0;
  next.shards[i].log.next = 0;
  if (i == 0) {
    if (next.shards[0].owes_session && rules_.session_follows_replay) LogSession(&next);
    next.shards[0].owes_session = 0;
    lead.phase = Phase::kServing;
    for (int s = 0; s < kShards; ++s) {
      Shard& shard = next.shards[s];
      if (!shard.loaded) shard.down = 1;  // registers again: it is not the process in the log
      if (shard.serving == lead.term) lead.opened |= Bit(s);
      const bool left = shard.promised > lead.term && rules_.register_names_promise;
      if (left) lead.phase = Phase::kLost;
    }
    if (!lead.knows) lead.phase = Phase::kLost;
    if (lead.opened != kAllShards && lead.phase == Phase::kServing) {
      lead.phase = Phase::kRestoring;
      lead.restored = kAllShards;
    } else {
      lead.opened = 0;
    }
    lead.knows = 0;
  }
  Reconnect(&next);
  for (int s = 0; s < kShards; ++s) {  // reports that the lead may have missed or forgotten
    Shard& shard = next.shards[s];
    if ((i != 0 && s != i) || shard.serving == 0 || NewestLive(shard) <= shard.base) continue;
    shard.report_step = static_cast<uint8_t>(NewestLive(shard));
    shard.report_term = shard.serving;
  }
  Emit(&next, "shard %d has replayed its log up to step %d", i, next.shards[i].open_step);
}

// ---------------------------------------------------------------- acknowledgements

// Returns whether the count of the push is durable, so that no process sends it again.
bool Protocol::IsSettled(const Shard& shard, const Push& push) const {
  if (!rules_.replay_names_origin) return false;
  if (NewestLive(shard) >= push.step) return true;
  for (int f = 0; f < shard.log.durable; ++f) {
    const Fact fact = FactOf(shard.log.fact[f]);
    if (fact.kind == Fact::Kind::kPush && fact.step == push.step && fact.own == OwnOf(push.stage) &&
        fact.part == push.part) {
      return true;
    }
  }
  return false;
}

// Acknowledgements arrive at once. Delaying them adds nothing: a worker without an acknowledgement
// can do nothing that it could not do with it.
void Protocol::TellAcks(State* state) const {
  if (config_.logs == 0) return;
  for (int part = 0; part < kParts; ++part) {
    Worker& worker = state->workers[part];
    if (worker.term == 0 || worker.step > config_.steps) continue;
    if (!worker.sent && !rules_.have_set_is_answered) continue;
    for (int stage = 0; stage < kShards * config_.stages_per_shard; ++stage) {
      const Shard& shard = state->shards[ShardOf(stage)];
      if (shard.serving != worker.term || !Speaks(shard)) continue;
      const bool counted =
          shard.open_step == worker.step && (shard.counted[OwnOf(stage)] & Bit(part)) != 0;
      if (counted || shard.open_step > worker.step) worker.acked |= Bit(stage);
    }
  }
}

const char* Protocol::Forgotten(const State& state) const {
  if (config_.logs == 0) return nullptr;
  for (int part = 0; part < kParts; ++part) {
    const Worker& worker = state.workers[part];
    if (worker.term == 0 || worker.step > config_.steps) continue;
    for (int stage = 0; stage < kShards * config_.stages_per_shard; ++stage) {
      const int i = ShardOf(stage);
      const Shard& shard = state.shards[i];
      if (shard.serving != worker.term || !Hears(shard) || shard.open_step > worker.step) continue;
      const bool began = worker.sent || (worker.begun & Bit(i)) != 0;
      if (began && shard.open_step < worker.step) return "a shard forgot which step it had open";
      const bool counted =
          shard.open_step == worker.step && (shard.counted[OwnOf(stage)] & Bit(part)) != 0;
      if ((worker.acked & Bit(stage)) != 0 && !counted) {
        return "an acknowledged contribution is lost";
      }
    }
  }
  return nullptr;
}

// Starts a recovery if a worker needs weights that are gone: of the step that it begins, or of the
// step at which it joined.
void Protocol::LoseWork(const State& state, int part, int i) const {
  const Worker& worker = state.workers[part];
  const Shard& shard = state.shards[i];
  if (!config_.one_version || worker.term == 0 || worker.sent) return;
  if (shard.serving != worker.term || !Speaks(shard) || (worker.begun & Bit(i)) != 0) return;
  if (state.lead.phase != Phase::kServing || state.lead.term != worker.term) return;
  const bool ahead = worker.joined && shard.open_step > worker.step && !config_.sealed;
  const bool gone = shard.open_step == worker.step && shard.updated != 0;
  if (!ahead && !gone) return;
  State next = state;
  StartTerm(&next);
  Emit(&next, "part %d asks for weights of step %d that shard %d no longer has", part, worker.step,
       i);
}

// ---------------------------------------------------------------- a copied folder

void Protocol::CopyFolder(const State& state) const {
  const Shard& now = state.shards[1];
  if (rules_.one_process_per_log || state.copied || now.down) return;
  State next = state;
  next.twin = FromDisk(now, /*kept=*/0);
  if (!next.twin.replaying) return;
  next.copied = 1;
  Emit(&next, "a process is started on a copy of the folder of shard %d", 1);
}

// Both processes identify as shard 1, so its peers accept answers from either.
void Protocol::Reroute(const State& state) const {
  if (!state.copied || state.shard_crashes >= config_.shard_crashes) return;
  State next = state;
  ++next.shard_crashes;
  std::swap(next.shards[1], next.twin);
  Emit(&next, "messages now reach the other process of shard %d", 1);
}

}  // namespace eps::model
