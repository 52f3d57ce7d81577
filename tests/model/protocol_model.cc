#include "tests/model/protocol_model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "tests/model/protocol_impl.h"

namespace eps {
namespace model {

Push Unpack(uint64_t bits) {
  Push push;
  push.term = bits >> 40 & 15;
  push.era = bits >> 36 & 15;
  push.step = bits >> 32 & 15;
  push.part = bits >> 31 & 1;
  push.stage = bits >> 29 & 3;
  push.poisoned = bits >> 28 & 1;
  push.mixed = bits >> 27 & 1;
  push.lineage = static_cast<Lineage>(bits);
  return push;
}

Protocol::Protocol(const ModelConfig& config, Search<State>* search)
    : config_(config), rules_(config.rules), search_(search) {
  EPS_CHECK(config.stages_per_shard <= kMaxStagesPerShard && config.steps <= kMaxSteps);
  EPS_CHECK(config.steps % config.cut_interval == 0);
  // A cut does not hold the previous version.
  EPS_CHECK(config.logs == 0 || config.one_version);
  // Each crash leads to at most one recovery, and a lineage has room for eras up to 7.
  EPS_CHECK(config.shard_crashes <= 6);
  EPS_CHECK(config.sealed || !config.trust);
  EPS_CHECK(config.trust || config.link_breaks == 0);
}

State Protocol::Initial() const {
  State state;
  for (Shard& shard : state.shards) {
    shard.slots[0].valid = 1;  // cut 0 exists before any push
    shard.slots[0].term = 1;
  }
  for (int i = 0; i < kShards; ++i) {
    if (!HasLog(i)) continue;
    BeginLog(&state, i);
    Log& log = state.shards[i].log;
    log.term = 1;
    log.fresh = 0;
    log.durable = log.known = log.facts;
    log.batches = log.facts > 0;
  }
  return state;
}

bool Protocol::IsFinal(const State& state) const {
  for (const Shard& shard : state.shards) {
    if (shard.serving == 0 || shard.serving != state.lead.term) return false;
    if (shard.replaying || shard.flush.active || shard.late.active ||
        NewestLive(shard) != config_.steps) {
      return false;
    }
  }
  return true;
}

// Tries all events except crashes, which are not progress.
void Protocol::Progress(const State& state) const {
  for (int part = 0; part < kParts; ++part) {
    Ask(state, part);
    for (int shard = 0; shard < kShards; ++shard) {
      BeginStep(state, part, shard);
      LoseWork(state, part, shard);
    }
    PushAll(state, part);
  }
  for (uint32_t i = 0; i < state.messages; ++i) {
    Deliver(state, i);
    HearNorms(state, i);
    HearTrust(state, i);
  }
  Decide(state);
  RegisterAndStart(state);
  ChooseBase(state);
  for (int i = 0; i < kShards; ++i) {
    FollowDecision(state, i);
    Measure(state, i);
    Capture(state, i);
    Land(state, i);
    LandLate(state, i);
    Report(state, i);
    Watermark(state, i);
    Promise(state, i);
    Restore(state, i);
    Open(state, i);
    Sync(state, i);
    Replay(state, i);
  }
}

void Protocol::Crashes(const State& state) const {
  if (state.shard_crashes < config_.shard_crashes) {
    for (int i = 0; i < kShards; ++i) CrashShard(state, i);
  }
  if (state.worker_crashes < config_.worker_crashes) {
    for (int part = 0; part < kParts; ++part) CrashWorker(state, part);
  }
  if (state.link_breaks < config_.link_breaks) BreakLink(state);
  CopyFolder(state);
  Reroute(state);
}

// A slot is valid if its step is at most the base or its cut is of the current term: cuts of an
// abandoned term beyond the base must not be restored.
bool Protocol::IsLive(const Shard& shard, const Cut& cut) const {
  if (!cut.valid) return false;
  return !rules_.durable_only_in_term || cut.step <= shard.base || cut.term == shard.opened;
}

int Protocol::NewestLive(const Shard& shard) const {
  int newest = -1;
  for (const Cut& cut : shard.slots) {
    if (IsLive(shard, cut)) newest = std::max<int>(newest, cut.step);
  }
  return newest;
}

const Cut* Protocol::FindCut(const Shard& shard, int step, int term, bool term_matters) {
  for (const Cut& cut : shard.slots) {
    if (cut.valid && cut.step == step && (cut.term == term || !term_matters)) return &cut;
  }
  return nullptr;
}

// ---- Workers.

// A worker without a term, or whose term has ended (STALE), asks all shards where to begin.
void Protocol::Ask(const State& state, int part) const {
  const uint8_t term = state.shards[0].serving;
  int step = kMaxSteps + 1;
  for (const Shard& shard : state.shards) {
    if (shard.serving == 0 || shard.serving != term || !Speaks(shard)) return;
    step = std::min<int>(step, shard.open_step);
  }
  if (state.workers[part].term == term) return;
  if (step > config_.steps && !config_.one_version) return;
  State next = state;
  next.workers[part] = Worker();
  next.workers[part].term = term;
  next.workers[part].step = static_cast<uint8_t>(step);
  next.workers[part].joined = config_.one_version;
  Emit(&next, "part %d asks where to begin", part);
}

bool Protocol::AllCounted(const State& state, int part, int step, uint8_t term) const {
  if (config_.logs != 0) {
    return state.workers[part].acked == (1 << kShards * config_.stages_per_shard) - 1;
  }
  for (const Shard& shard : state.shards) {
    if (shard.serving != term) return false;
    if (shard.open_step > step) continue;
    for (int own = 0; own < config_.stages_per_shard; ++own) {
      if ((shard.counted[own] & Bit(part)) == 0) return false;
    }
  }
  return true;
}

// Returns whether the shard can give a part the weights that step `step` reads.
bool Protocol::CanRead(const Shard& shard, int step) const {
  if (!rules_.fetch_names_version) return true;
  if (shard.open_step == step) return shard.updated == 0 || Retains();
  // The previous version is needed until every part has begun the next step here (docs/protocol.md,
  // "Complete").
  return shard.open_step == step + 1 && Retains() && shard.begun != kAllParts;
}

// A BeginStep on one shard, and the fetches from it.
void Protocol::BeginStep(const State& state, int part, int i) const {
  State next = state;
  Worker& worker = next.workers[part];
  Shard& shard = next.shards[i];
  if (worker.term == 0 || shard.serving != worker.term || !Speaks(shard)) return;
  if (worker.step > config_.steps) return;
  const bool all_counted = AllCounted(state, part, worker.step, worker.term);
  if (worker.sent || (all_counted && rules_.have_set_is_answered)) {
    if (worker.step >= config_.steps || shard.open_step <= worker.step) return;
    if (rules_.begin_after_acks && !all_counted) return;
    const uint8_t term = worker.term;
    const auto step = static_cast<uint8_t>(worker.step + 1);
    worker = Worker();
    worker.term = term;
    worker.step = step;
  }
  if ((worker.begun & Bit(i)) != 0 || !CanRead(shard, worker.step)) return;
  if (shard.open_step < worker.step && rules_.fetch_names_version) return;
  Lineage read = UpTo(shard.lineage, worker.step - 1);
  if (!rules_.fetch_names_version) {
    read = shard.updated != 0 ? With(shard.lineage, shard.open_step, shard.era) : shard.lineage;
  }
  if (worker.begun != 0 && worker.lineage != read) worker.mixed = 1;
  worker.lineage = read;
  worker.begun |= Bit(i);
  if (shard.open_step == worker.step && !config_.one_version) shard.begun |= Bit(part);
  Emit(&next, "part %d begins step %d on shard %d", part, worker.step, i);
}

// Sends the gradients of all stages of a step; they arrive in any order.
void Protocol::PushAll(const State& state, int part) const {
  if (state.workers[part].sent || state.workers[part].begun != kAllShards) return;
  State next = state;
  Worker& worker = next.workers[part];
  for (int stage = 0; stage < kShards * config_.stages_per_shard; ++stage) {
    Push push;
    push.term = worker.term;
    push.era = state.shards[0].era;
    for (const Shard& shard : state.shards) {
      if (shard.serving == worker.term) push.era = shard.era;
    }
    push.step = worker.step;
    push.part = static_cast<uint8_t>(part) & 1;
    push.stage = static_cast<uint8_t>(stage) & 3;
    push.poisoned = part == 0 && stage == 0 && worker.step == config_.poisoned_step;
    push.mixed = worker.mixed & 1;
    push.lineage = worker.lineage;
    Add(&next, push.Bits());
  }
  worker.sent = 1;
  worker.begun = 0;
  worker.mixed = 0;
  worker.lineage = 0;
  Emit(&next, "part %d pushes step %d", part, worker.step);
}

// ---- Counting and updating.
void Protocol::Deliver(const State& state, uint32_t index) const {
  if (!IsPush(state.message[index])) return;
  const Push push = Unpack(state.message[index]);
  const int i = ShardOf(push.stage);
  const int own = OwnOf(push.stage);
  const Shard& now = state.shards[i];
  if (now.serving == 0 || !Hears(now) || push.step != now.open_step) return;
  if (rules_.push_names_term && push.term != now.serving) return;
  if ((now.updated & Bit(own)) != 0) return;
  const bool again = (now.counted[own] & Bit(push.part)) != 0;
  const bool known = rules_.first_contribution_wins && (now.nameless[own] & Bit(push.part)) == 0;
  if (again && known) return;
  const bool completes = (now.counted[own] | Bit(push.part)) == kAllParts;
  // An update past a cut waits until the cut is captured.
  if (completes && now.due && rules_.update_waits_for_capture && !config_.sealed) return;
  State next = state;
  Shard& shard = next.shards[i];
  if (rules_.first_contribution_wins && !HasLog(i)) Remove(&next, index);
  const char* violation = nullptr;
  if (push.mixed || push.lineage != shard.lineage) {
    violation = "a contribution computed from other weights was counted";
  }
  if (push.era != shard.era) violation = "contributions of two terms were mixed";
  if (again) violation = "a contribution was counted twice";
  Fact fact;
  fact.kind = Fact::Kind::kPush;
  fact.step = push.step;
  fact.own = static_cast<uint8_t>(own);
  fact.part = push.part;
  fact.flag = push.poisoned;
  LogIt(&next, i, fact);
  Count(&next, i, fact);
  Emit(violation, &next, "shard %d counts part %d of step %d", i, push.part, push.step);
}

void Protocol::Count(State* state, int i, const Fact& push) const {
  Shard& shard = state->shards[i];
  shard.counted[push.own] |= Bit(push.part);
  if (push.flag) shard.poisoned = 1;
  if (shard.counted[push.own] != kAllParts || config_.sealed) return;
  shard.updated |= Bit(push.own);
  if (shard.updated == AllStages()) CompleteStep(state, i, /*skip=*/false);
}

void Protocol::CompleteStep(State* state, int i, bool skip) const {
  Shard* const shard = &state->shards[i];
  const int step = shard->open_step;
  if (skip && !rules_.skip_advances_step) {
    // The open step stays open, with the same batch.
  } else {
    shard->lineage = With(shard->lineage, step, skip ? shard->era | kSkipped : shard->era);
    ++shard->open_step;
    if (step % config_.cut_interval == 0) {
      shard->due = 1;
      if (i == 0 && rules_.session_is_logged) LogSession(state);
    }
  }
  shard->updated = 0;
  shard->poisoned = 0;
  shard->begun = 0;
  std::fill(std::begin(shard->counted), std::end(shard->counted), uint8_t{0});
  std::fill(std::begin(shard->nameless), std::end(shard->nameless), uint8_t{0});
}

bool Protocol::HasAll(const Shard& shard) const {
  for (int own = 0; own < config_.stages_per_shard; ++own) {
    if (shard.counted[own] != kAllParts) return false;
  }
  return shard.serving != 0;
}

// ---- Cuts.

// Returns the slot for the next cut, or -1 if the cut has to wait.
int Protocol::SlotFor(const Shard& shard) const {
  if (!rules_.slot_of_cut_not_step) {
    const int slot = (shard.open_step - 1) % kSlots;
    return CanRecycle(shard, shard.slots[slot]) ? slot : -1;
  }
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!IsLive(shard, shard.slots[slot])) return slot;
  }
  const int oldest = shard.slots[0].step <= shard.slots[1].step ? 0 : 1;
  return CanRecycle(shard, shard.slots[oldest]) ? oldest : -1;
}

// The watermark's cut may be the only one that all shards share, so its slot must stay.
bool Protocol::CanRecycle(const Shard& shard, const Cut& cut) const {
  return !IsLive(shard, cut) || !rules_.recycle_below_watermark || cut.step < shard.watermark;
}

void Protocol::Capture(const State& state, int i) const {
  const Shard& now = state.shards[i];
  if (!now.due || now.flush.active || now.serving == 0) return;
  const int slot = SlotFor(now);
  if (slot < 0) return;
  State next = state;
  Shard& shard = next.shards[i];
  shard.due = 0;
  shard.slots[slot] = Cut();
  shard.flush.active = 1;
  shard.flush.slot = static_cast<uint8_t>(slot);
  // A border that was passed over no longer exists; the newest one is captured.
  shard.flush.step = static_cast<uint8_t>(shard.open_step - 1);
  shard.flush.term = shard.serving;
  shard.flush.lineage = shard.lineage;
  if (!rules_.log_moves_with_cut) FreeUpTo(&shard.log, shard.flush.step);
  Emit(&next, "shard %d captures the cut of step %d", i, shard.flush.step);
}

static void LandInto(Shard* shard, const Flush& flush) {
  Cut& cut = shard->slots[flush.slot];
  cut.valid = 1;
  cut.step = flush.step;
  cut.term = flush.term;
  cut.lineage = flush.lineage;
}

// The shard writes data, syncs, writes the record and syncs; a crash before that leaves the slot
// torn. Facts logged earlier supply what the cut lacks.
void Protocol::Land(const State& state, int i) const {
  const Shard& now = state.shards[i];
  if (!now.flush.active) return;
  const bool log_waits = now.replaying || now.log.fresh || now.log.known < now.log.facts;
  if (log_waits && rules_.cut_waits_for_log) return;
  State next = state;
  Shard& shard = next.shards[i];
  LandInto(&shard, shard.flush);
  shard.report_step = shard.flush.step;
  shard.report_term = shard.flush.term;
  if (rules_.log_moves_with_cut) FreeUpTo(&shard.log, shard.flush.step);
  shard.flush = Flush();
  Emit(&next, "shard %d's cut of step %d is durable", i, shard.report_step);
}

void Protocol::LandLate(const State& state, int i) const {
  if (!state.shards[i].late.active) return;
  State next = state;
  Shard& shard = next.shards[i];
  LandInto(&shard, shard.late);
  shard.late = Flush();
  Emit(&next, "an earlier flush of shard %d reaches the disk", i);
}

void Protocol::Report(const State& state, int i) const {
  const Shard& now = state.shards[i];
  if (now.report_term == 0 || state.lead.phase != Phase::kServing || !Speaks(now)) return;
  State next = state;
  next.shards[i].report_step = 0;
  next.shards[i].report_term = 0;
  if (!rules_.durable_names_term || now.report_term == state.lead.term) {
    uint8_t& durable = next.lead.durable[i];
    durable = std::max(durable, now.report_step);
  }
  Emit(&next, "the lead receives shard %d's report of the cut of step %d", i, now.report_step);
}

static uint8_t CommonStep(const Lead& lead) {
  return *std::min_element(std::begin(lead.durable), std::end(lead.durable));
}

void Protocol::Watermark(const State& state, int i) const {
  const uint8_t common = CommonStep(state.lead);
  const Shard& now = state.shards[i];
  if (state.lead.phase != Phase::kServing || now.serving != state.lead.term) return;
  if (now.watermark >= common || !Hears(now)) return;
  if (i != 0 && !Speaks(state.shards[0])) return;
  State next = state;
  next.shards[i].watermark = common;
  next.committed = std::max(next.committed, common);
  Emit(&next, "shard %d receives watermark %d", i, common);
}

// ---- The bag of messages, and the invariants of every state.
void Protocol::Add(State* state, uint64_t bits) {
  uint64_t* const end = state->message + state->messages;
  uint64_t* const at = std::lower_bound(state->message, end, bits);
  if (at != end && *at == bits) return;  // a duplicate adds nothing: one message may arrive twice
  EPS_CHECK(state->messages < kMaxMessages);
  std::copy_backward(at, end, end + 1);
  *at = bits;
  ++state->messages;
}

void Protocol::Remove(State* state, uint32_t index) {
  std::copy(state->message + index + 1, state->message + state->messages, state->message + index);
  state->message[--state->messages] = 0;
}

// Returns whether no shard can ever count the push; removing it then changes nothing.
bool Protocol::IsDead(const State& state, const Push& push) const {
  if (!rules_.push_names_term || !rules_.first_contribution_wins) return false;
  if (!rules_.fresh_process_refuses || !rules_.term_is_durable) return false;
  const Shard& shard = state.shards[ShardOf(push.stage)];
  if (push.term < shard.promised) return true;
  if (shard.serving == 0) return rules_.all_promise;
  if (HasLog(ShardOf(push.stage))) return IsSettled(shard, push);
  if (push.step != shard.open_step) return push.step < shard.open_step;
  const int own = OwnOf(push.stage);
  return ((shard.updated & Bit(own)) | (shard.counted[own] >> push.part & 1)) != 0 &&
         rules_.skip_advances_step;
}

const char* Protocol::Invariant(const State& state) const {
  const Shard& a = state.shards[0];
  const Shard& b = state.shards[1];
  if (const char* const forgotten = Forgotten(state); forgotten != nullptr) return forgotten;
  if (a.serving == 0 || a.serving != b.serving || !Hears(a) || !Hears(b)) return nullptr;
  if (std::abs(a.open_step - b.open_step) > 1) return "shards are two steps apart";
  const int common = std::min(a.open_step, b.open_step) - 1;
  if (UpTo(a.lineage, common) != UpTo(b.lineage, common)) return "shards disagree";
  if (LacksMeasured(state)) return "a shard lost a contribution that it had measured";
  return nullptr;
}

void Protocol::Tidy(State* state) const {
  SendTrust(state);
  for (uint32_t m = 0; m < state->messages;) {
    const uint64_t bits = state->message[m];
    if (IsPush(bits) ? IsDead(*state, Unpack(bits)) : IsDead(*state, UnpackLamb(bits))) {
      Remove(state, m);
    } else {
      ++m;
    }
  }
  TellAcks(state);
}

}  // namespace model

ModelResult CheckProtocol(const ModelConfig& config) {
  const auto start = std::chrono::steady_clock::now();
  model::Search<model::State> search;
  const model::Protocol protocol(config, &search);
  search.Reach(protocol.Initial(), nullptr, model::Event{"start", {}});
  ModelResult& result = search.result;
  model::State state;
  while (search.Next(&state)) {
    const uint64_t before = result.transitions;
    protocol.Progress(state);
    const bool stuck = result.transitions == before;
    const bool final = protocol.IsFinal(state);
    if (final) search.Final();
    if (stuck && !final) search.Stuck();
    protocol.Crashes(state);
    if (config.stop_at_violation && (result.stuck != 0 || !result.violations.empty())) break;
  }
  result.states = search.states();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(result);
}

}  // namespace eps
