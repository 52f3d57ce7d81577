// The protocol's model: recovery between two terms, and crashes.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tests/model/protocol_impl.h"

namespace eps::model {

// ---- Recovery. Quiesce needs no event: after its promise a shard starts no flush, so "no flush is
// active" stays true and the lead may check it at any time.
void Protocol::RegisterAndStart(const State& state) const {
  bool any_down = false;
  for (const Shard& shard : state.shards) any_down |= shard.down != 0;
  if (state.lead.phase == Phase::kReplaying) return;  // there is no lead to start one
  if (!any_down && state.lead.phase != Phase::kLost) return;
  State next = state;
  StartTerm(&next);
  const bool needless = config_.logs == kAllShards && state.eras == 1;
  Emit(needless ? "the job rolled back although every shard has its log" : nullptr, &next,
       "recovery: term %d", next.lead.term);
}

void Protocol::StartTerm(State* state) {
  uint8_t promised = 0;
  for (Shard& shard : state->shards) {
    shard.down = 0;
    promised = std::max(promised, shard.promised);
  }
  state->lead = Lead();
  state->lead.phase = Phase::kPromising;
  state->lead.term = static_cast<uint8_t>(promised + 1);
  ++state->eras;
  EPS_CHECK(state->eras < kSkipped);  // a lineage has no room for more eras
}

void Protocol::Promise(const State& state, int i) const {
  const Shard& now = state.shards[i];
  if (state.lead.phase != Phase::kPromising || (state.lead.promised & Bit(i)) != 0) return;
  if (now.down || !Hears(now)) return;
  // The lead promises first: with a log it could otherwise resume in the term that it has not
  // ended.
  const bool lead_waits = i != 0 && (state.lead.promised & Bit(0)) == 0;
  if (config_.logs != 0 && lead_waits && rules_.lead_promises_first) return;
  State next = state;
  next.shards[i].promised = state.lead.term;
  next.shards[i].serving = 0;
  next.shards[i].replaying = 0;
  if (rules_.log_of_promised_term && rules_.term_is_durable) next.shards[i].log = Log();
  next.lead.promised |= Bit(i);
  Emit(&next, "shard %d promises term %d", i, state.lead.term);
}

bool Protocol::Quiesced(const Shard& shard) const {
  return !shard.flush.active || !rules_.restore_waits_for_quiesce;
}

// Returns the highest (step, term) that every shard has; false if there is none.
bool Protocol::HighestCommon(const State& state, uint8_t* step, uint8_t* term) const {
  bool found = false;
  for (const Cut& cut : state.shards[0].slots) {
    if (!IsLive(state.shards[0], cut)) continue;
    const Cut* const other = FindCut(state.shards[1], cut.step, cut.term, rules_.cut_names_term);
    if (other == nullptr || !IsLive(state.shards[1], *other)) continue;
    if (found && std::make_pair(cut.step, cut.term) < std::make_pair(*step, *term)) continue;
    found = true;
    *step = cut.step;
    *term = cut.term;
  }
  return found;
}

void Protocol::ChooseBase(const State& state) const {
  if (state.lead.phase != Phase::kPromising || state.lead.promised == 0) return;
  if (rules_.all_promise && state.lead.promised != kAllShards) return;
  for (int i = 0; i < kShards; ++i) {
    if ((state.lead.promised & Bit(i)) != 0 && !Quiesced(state.shards[i])) return;
    if (state.shards[i].down) return;
  }
  State next = state;
  next.lead.phase = Phase::kRestoring;
  const char* violation = nullptr;
  if (!HighestCommon(state, &next.lead.base_step, &next.lead.base_term)) {
    violation = "no cut is on all shards: the job is lost";
  } else if (next.lead.base_step < state.committed) {
    violation = "rolled back below the watermark";
  }
  if (!rules_.base_is_common) violation = nullptr;
  Emit(violation, &next, "the lead chooses the cut of step %d of term %d", next.lead.base_step,
       next.lead.base_term);
}

void Protocol::Restore(const State& state, int i) const {
  const Lead& lead = state.lead;
  const Shard& now = state.shards[i];
  if (lead.phase != Phase::kRestoring || (lead.restored & Bit(i)) != 0 || now.down) return;
  if (!Quiesced(now)) return;
  const Cut* found = FindCut(now, lead.base_step, lead.base_term, rules_.cut_names_term);
  if (!rules_.base_is_common) {
    found = FindCut(now, NewestLive(now), 0, /*term_matters=*/false);
  }
  State next = state;
  Shard& shard = next.shards[i];
  if (found == nullptr) {
    Emit("the base is gone", &next, "shard %d restores", i);
    return;
  }
  const Cut base = *found;
  for (Cut& cut : shard.slots) {
    const bool newer = cut.step > base.step || (cut.step == base.step && cut.term != base.term);
    if (!cut.valid || (newer && rules_.restore_kills_newer)) cut = Cut();
  }
  if (shard.flush.active) shard.late = shard.flush;
  shard.flush = Flush();
  if (!shard.loaded || rules_.restore_reloads_all) {
    shard.open_step = static_cast<uint8_t>(base.step + 1);
    shard.lineage = base.lineage;
    shard.due = 0;
  }
  shard.updated = 0;
  shard.poisoned = 0;
  shard.begun = 0;
  shard.measured = 0;
  std::fill(std::begin(shard.counted), std::end(shard.counted), uint8_t{0});
  std::fill(std::begin(shard.nameless), std::end(shard.nameless), uint8_t{0});
  shard.loaded = 1;
  shard.promised = lead.term;
  shard.opened = lead.term;
  shard.serving = 0;
  shard.base = base.step;
  shard.watermark = base.step;
  shard.era = state.eras;
  next.lead.restored |= Bit(i);
  next.lead.durable[i] = base.step;
  Emit(&next, "shard %d restores the cut of step %d of term %d", i, base.step, base.term);
}

void Protocol::Open(const State& state, int i) const {
  const Lead& lead = state.lead;
  if (lead.phase != Phase::kRestoring || lead.restored != kAllShards) return;
  if ((lead.opened & Bit(i)) != 0 || state.shards[i].down || state.shards[i].replaying) return;
  if (state.shards[i].promised > lead.term) return;  // keeps its promise to a newer term
  State next = state;
  next.shards[i].serving = lead.term;
  next.lead.opened |= Bit(i);
  if (HasLog(i)) BeginLog(&next, i);
  if (next.lead.opened == kAllShards) {
    next.lead.phase = Phase::kServing;
    next.lead.promised = next.lead.restored = next.lead.opened = 0;
    next.lead.base_step = next.lead.base_term = 0;
  }
  Emit(&next, "shard %d opens term %d", i, lead.term);
}

// ---- Crashes.
void Protocol::CrashShard(const State& state, int i) const {
  const Shard& before = state.shards[i];
  for (uint32_t kept = 0; kept >> (before.log.facts - before.log.durable) == 0; ++kept) {
    if (!CanBeKept(before.log, kept)) continue;
    State next = state;
    ++next.shard_crashes;
    Shard& shard = next.shards[i];
    shard = FromDisk(before, kept);
    if (i == 0) {
      next.lead = Lead();
      next.lead.phase = shard.replaying ? Phase::kReplaying : Phase::kLost;
      next.lead.term = shard.serving;
      for (uint8_t& durable : next.lead.durable) durable = shard.replaying ? shard.base : 0;
    }
    if (!rules_.fresh_process_refuses) ServeAtOnce(before, &shard);
    Emit(&next, "shard %d crashes with %d facts in its log", i, shard.log.facts);
    if (LoseMessages(&next)) {
      Emit(&next, "shard %d crashes with %d facts in its log; messages are lost", i,
           shard.log.facts);
    }
    if (!shard.replaying) return;
  }
}

// Returns a new process on the disk contents that the previous one left.
Shard Protocol::FromDisk(const Shard& before, uint32_t kept) const {
  Shard shard;
  std::copy(std::begin(before.slots), std::end(before.slots), std::begin(shard.slots));
  shard.base = before.base;
  shard.promised = rules_.term_is_durable ? before.promised : 1;
  shard.opened = rules_.term_is_durable ? before.opened : 1;
  shard.report_step = before.report_step;
  shard.report_term = before.report_term;
  shard.down = 1;
  shard.loaded = 0;
  shard.serving = 0;
  shard.era = 0;
  shard.open_step = 0;
  ResumeFromLog(before.log, kept, &shard);
  return shard;
}

// The violation of fresh_process_refuses: a new process continues in its term from its newest cut.
void Protocol::ServeAtOnce(const Shard& before, Shard* shard) const {
  const int newest = NewestLive(*shard);
  if (newest < 0) return;
  shard->down = 0;
  shard->loaded = 1;
  shard->serving = shard->promised;
  shard->era = before.era;
  shard->open_step = static_cast<uint8_t>(newest + 1);
  shard->lineage = FindCut(*shard, newest, 0, /*term_matters=*/false)->lineage;
}

// The worker's messages may still arrive, as those of a zombie, or be lost.
void Protocol::CrashWorker(const State& state, int part) const {
  const Worker& worker = state.workers[part];
  if (worker.term == 0) return;
  State next = state;
  ++next.worker_crashes;
  next.workers[part] = Worker();
  Emit(&next, "part %d's worker crashes; its messages may arrive", part);
  uint32_t kept = 0;
  for (uint32_t m = 0; m < state.messages; ++m) {
    const bool stays = !IsPush(state.message[m]) || Unpack(state.message[m]).part != part;
    if (stays) next.message[kept++] = state.message[m];
  }
  if (kept == state.messages) return;
  for (uint32_t m = kept; m < state.messages; ++m) next.message[m] = 0;
  next.messages = kept;
  Emit(&next, "part %d's worker crashes; its messages are lost", part);
}

}  // namespace eps::model
