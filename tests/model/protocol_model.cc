#include "tests/model/protocol_model.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "common/check.h"
#include "tests/model/protocol_state.h"
#include "tests/model/search.h"

namespace eps {
namespace model {
namespace {

// No padding: equal states have equal bytes.
static_assert(std::has_unique_object_representations_v<State>);

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

constexpr uint8_t Bit(int index) { return static_cast<uint8_t>(1 << index); }

// The protocol's rules as transitions. Each method that is named after an event tries it in a state
// and hands what comes out to the search.
class Protocol {
 public:
  Protocol(const ModelConfig& config, Search* search)
      : config_(config), rules_(config.rules), search_(search) {
    EPS_CHECK(config.stages_per_shard <= kMaxStagesPerShard && config.steps <= kMaxSteps);
    EPS_CHECK(config.steps % config.cut_interval == 0);
    // Each crash leads to one recovery at most, and a lineage has room for eras up to 7.
    EPS_CHECK(config.shard_crashes <= 6);
  }

  static State Initial() {
    State state;
    for (Shard& shard : state.shards) {
      shard.slots[0].valid = 1;  // cut 0, before any push
      shard.slots[0].term = 1;
    }
    return state;
  }

  bool IsFinal(const State& state) const {
    for (const Shard& shard : state.shards) {
      if (shard.serving == 0 || shard.serving != state.lead.term) return false;
      if (shard.flush.active || shard.late.active || NewestLive(shard) != config_.steps) {
        return false;
      }
    }
    return true;
  }

  // All that can happen but crashes, which are no progress.
  void Progress(const State& state) const {
    for (int part = 0; part < kParts; ++part) {
      Ask(state, part);
      for (int shard = 0; shard < kShards; ++shard) BeginStep(state, part, shard);
      PushAll(state, part);
    }
    for (uint32_t i = 0; i < state.messages; ++i) Deliver(state, i);
    Decide(state);
    RegisterAndStart(state);
    ChooseBase(state);
    for (int i = 0; i < kShards; ++i) {
      FollowDecision(state, i);
      Capture(state, i);
      Land(state, i);
      LandLate(state, i);
      Report(state, i);
      Watermark(state, i);
      Promise(state, i);
      Restore(state, i);
      Open(state, i);
    }
  }

  void Crashes(const State& state) const {
    if (state.shard_crashes < config_.shard_crashes) {
      for (int i = 0; i < kShards; ++i) CrashShard(state, i);
    }
    if (state.worker_crashes < config_.worker_crashes) {
      for (int part = 0; part < kParts; ++part) CrashWorker(state, part);
    }
  }

 private:
  int ShardOf(int stage) const { return stage / config_.stages_per_shard; }
  int OwnOf(int stage) const { return stage % config_.stages_per_shard; }
  uint8_t AllStages() const { return static_cast<uint8_t>((1 << config_.stages_per_shard) - 1); }

  // PROTOCOL.md 5.5: a slot counts with a step up to the base, or if it is of the current term.
  bool IsLive(const Shard& shard, const Cut& cut) const {
    if (!cut.valid) return false;
    return !rules_.durable_only_in_term || cut.step <= shard.base || cut.term == shard.opened;
  }
  int NewestLive(const Shard& shard) const {
    int newest = -1;
    for (const Cut& cut : shard.slots) {
      if (IsLive(shard, cut)) newest = std::max<int>(newest, cut.step);
    }
    return newest;
  }

  // ---- Workers.

  // A worker without a term, or whose term is over (STALE), asks all shards where to begin.
  void Ask(const State& state, int part) const {
    const uint8_t term = state.shards[0].serving;
    int step = kMaxSteps + 1;
    for (const Shard& shard : state.shards) {
      if (shard.serving == 0 || shard.serving != term) return;
      step = std::min<int>(step, shard.open_step);
    }
    if (state.workers[part].term == term || step > config_.steps) return;
    State next = state;
    next.workers[part] = Worker();
    next.workers[part].term = term;
    next.workers[part].step = static_cast<uint8_t>(step);
    Emit(&next, "part %d asks", part);
  }

  bool AllCounted(const State& state, int part, int step, uint8_t term) const {
    for (const Shard& shard : state.shards) {
      if (shard.serving != term) return false;
      if (shard.open_step > step) continue;
      for (int own = 0; own < config_.stages_per_shard; ++own) {
        if ((shard.counted[own] & Bit(part)) == 0) return false;
      }
    }
    return true;
  }

  // Whether the shard can give a part the weights that step `step` reads.
  bool CanRead(const Shard& shard, int step) const {
    if (!rules_.fetch_names_version) return true;
    if (shard.open_step == step) return shard.updated == 0 || rules_.retain_until_complete;
    // PROTOCOL.md 4.1: complete is when every part has begun the next step here.
    return shard.open_step == step + 1 && rules_.retain_until_complete && shard.begun != kAllParts;
  }

  // BeginStep on one shard, and the fetches from it.
  void BeginStep(const State& state, int part, int i) const {
    State next = state;
    Worker& worker = next.workers[part];
    Shard& shard = next.shards[i];
    if (worker.term == 0 || shard.serving != worker.term) return;
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
    if (shard.open_step == worker.step) shard.begun |= Bit(part);
    Emit(&next, "part %d begins step %d on shard %d", part, worker.step, i);
  }

  // The gradients of a step, of all stages: from here on they arrive in any order.
  void PushAll(const State& state, int part) const {
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

  void Deliver(const State& state, uint32_t index) const {
    const Push push = Unpack(state.message[index]);
    const int i = ShardOf(push.stage);
    const int own = OwnOf(push.stage);
    const Shard& now = state.shards[i];
    if (now.serving == 0 || push.step != now.open_step) return;
    if (rules_.push_names_term && push.term != now.serving) return;
    if ((now.updated & Bit(own)) != 0) return;
    const bool again = (now.counted[own] & Bit(push.part)) != 0;
    if (again && rules_.first_contribution_wins) return;
    const bool completes = (now.counted[own] | Bit(push.part)) == kAllParts;
    // PROTOCOL.md 5.1: applying past a cut waits until it is captured.
    if (completes && now.due && rules_.update_waits_for_capture && !config_.sealed) return;
    State next = state;
    Shard& shard = next.shards[i];
    if (rules_.first_contribution_wins) Remove(&next, index);
    shard.counted[own] |= Bit(push.part);
    if (push.poisoned) shard.poisoned = 1;
    const char* violation = nullptr;
    if (push.mixed || push.lineage != shard.lineage) {
      violation = "a contribution computed from other weights was counted";
    }
    if (push.era != shard.era) violation = "contributions of two terms were mixed";
    if (again) violation = "a contribution was counted twice";
    if (completes && !config_.sealed) {
      shard.updated |= Bit(own);
      if (shard.updated == AllStages()) CompleteStep(&shard, /*skip=*/false);
    }
    Emit(violation, &next, "shard %d counts part %d of step %d", i, push.part, push.step);
  }

  void CompleteStep(Shard* shard, bool skip) const {
    const int step = shard->open_step;
    if (skip && !rules_.skip_advances_step) {
      // The same batch once more.
    } else {
      shard->lineage = With(shard->lineage, step, skip ? shard->era | kSkipped : shard->era);
      ++shard->open_step;
      if (step % config_.cut_interval == 0) shard->due = 1;
    }
    shard->updated = 0;
    shard->poisoned = 0;
    shard->begun = 0;
    std::fill(std::begin(shard->counted), std::end(shard->counted), uint8_t{0});
  }

  bool HasAll(const Shard& shard) const {
    for (int own = 0; own < config_.stages_per_shard; ++own) {
      if (shard.counted[own] != kAllParts) return false;
    }
    return shard.serving != 0;
  }

  // PROTOCOL.md 3: the lead decides on a step when it has the Stats of all shards.
  void Decide(const State& state) const {
    if (!config_.sealed || !rules_.one_decision || state.lead.phase != Phase::kServing) return;
    const uint8_t step = state.shards[0].open_step;
    if (state.lead.decided_step >= step) return;
    bool skip = false;
    for (const Shard& shard : state.shards) {
      if (!HasAll(shard) || shard.open_step != step || shard.serving != state.lead.term) return;
      skip |= shard.poisoned != 0;
    }
    State next = state;
    next.lead.decided_step = step;
    next.lead.decided_skip = skip;
    Emit(&next, "the lead decides on step %d: skip %d", step, skip);
  }

  void FollowDecision(const State& state, int i) const {
    if (!config_.sealed) return;
    const Shard& now = state.shards[i];
    if (!HasAll(now) || (now.due && rules_.update_waits_for_capture)) return;
    bool skip = now.poisoned != 0;
    if (rules_.one_decision) {
      if (state.lead.decided_step != now.open_step || now.serving != state.lead.term) return;
      skip = state.lead.decided_skip != 0;
    }
    State next = state;
    CompleteStep(&next.shards[i], skip);
    Emit(&next, "shard %d ends step %d: skip %d", i, now.open_step, skip);
  }

  // ---- Cuts.

  // The slot for the next cut; -1: it has to wait.
  int SlotFor(const Shard& shard) const {
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
  // PROTOCOL.md 5.2.
  bool CanRecycle(const Shard& shard, const Cut& cut) const {
    return !IsLive(shard, cut) || !rules_.recycle_below_watermark || cut.step < shard.watermark;
  }

  void Capture(const State& state, int i) const {
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
    // What was skipped over is not there any more: the newest border is captured.
    shard.flush.step = static_cast<uint8_t>(shard.open_step - 1);
    shard.flush.term = shard.serving;
    shard.flush.lineage = shard.lineage;
    Emit(&next, "shard %d captures the cut of step %d", i, shard.flush.step);
  }

  static void LandInto(Shard* shard, const Flush& flush) {
    Cut& cut = shard->slots[flush.slot];
    cut.valid = 1;
    cut.step = flush.step;
    cut.term = flush.term;
    cut.lineage = flush.lineage;
  }

  // Data, sync, record, sync: a crash before this leaves the slot torn.
  void Land(const State& state, int i) const {
    if (!state.shards[i].flush.active) return;
    State next = state;
    Shard& shard = next.shards[i];
    LandInto(&shard, shard.flush);
    shard.report_step = shard.flush.step;
    shard.report_term = shard.flush.term;
    shard.flush = Flush();
    Emit(&next, "shard %d has the cut of step %d durable", i, shard.report_step);
  }

  void LandLate(const State& state, int i) const {
    if (!state.shards[i].late.active) return;
    State next = state;
    Shard& shard = next.shards[i];
    LandInto(&shard, shard.late);
    shard.late = Flush();
    Emit(&next, "an earlier flush of shard %d reaches the disk", i);
  }

  void Report(const State& state, int i) const {
    const Shard& now = state.shards[i];
    if (now.report_term == 0 || state.lead.phase != Phase::kServing) return;
    State next = state;
    next.shards[i].report_step = 0;
    next.shards[i].report_term = 0;
    if (!rules_.durable_names_term || now.report_term == state.lead.term) {
      uint8_t& durable = next.lead.durable[i];
      durable = std::max(durable, now.report_step);
    }
    Emit(&next, "the lead hears of shard %d's cut of step %d", i, now.report_step);
  }

  static uint8_t CommonStep(const Lead& lead) {
    return *std::min_element(std::begin(lead.durable), std::end(lead.durable));
  }

  void Watermark(const State& state, int i) const {
    const uint8_t common = CommonStep(state.lead);
    const Shard& now = state.shards[i];
    if (state.lead.phase != Phase::kServing || now.serving != state.lead.term) return;
    if (now.watermark >= common) return;
    State next = state;
    next.shards[i].watermark = common;
    next.committed = std::max(next.committed, common);
    Emit(&next, "shard %d hears of watermark %d", i, common);
  }

  // ---- Recovery. Quiesce needs no event of its own: once a shard has promised it starts no flush,
  // so "none is under way" stays true, and the lead may as well look.

  void RegisterAndStart(const State& state) const {
    bool any_down = false;
    uint8_t promised = 0;
    for (const Shard& shard : state.shards) {
      any_down |= shard.down != 0;
      promised = std::max(promised, shard.promised);
    }
    if (!any_down && state.lead.phase != Phase::kLost) return;
    State next = state;
    for (Shard& shard : next.shards) shard.down = 0;
    next.lead = Lead();
    next.lead.phase = Phase::kPromising;
    next.lead.term = static_cast<uint8_t>(promised + 1);
    ++next.eras;
    Emit(&next, "recovery: term %d", next.lead.term);
  }

  void Promise(const State& state, int i) const {
    const Shard& now = state.shards[i];
    if (state.lead.phase != Phase::kPromising || (state.lead.promised & Bit(i)) != 0) return;
    if (now.down) return;
    State next = state;
    next.shards[i].promised = state.lead.term;
    next.shards[i].serving = 0;
    next.lead.promised |= Bit(i);
    Emit(&next, "shard %d promises term %d", i, state.lead.term);
  }

  bool Quiesced(const Shard& shard) const {
    return !shard.flush.active || !rules_.restore_waits_for_quiesce;
  }

  static const Cut* FindCut(const Shard& shard, int step, int term, bool term_matters) {
    for (const Cut& cut : shard.slots) {
      if (cut.valid && cut.step == step && (cut.term == term || !term_matters)) return &cut;
    }
    return nullptr;
  }

  // The highest (step, term) that every shard has; false: there is none.
  bool HighestCommon(const State& state, uint8_t* step, uint8_t* term) const {
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

  void ChooseBase(const State& state) const {
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

  void Restore(const State& state, int i) const {
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
    std::fill(std::begin(shard.counted), std::end(shard.counted), uint8_t{0});
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

  void Open(const State& state, int i) const {
    const Lead& lead = state.lead;
    if (lead.phase != Phase::kRestoring || lead.restored != kAllShards) return;
    if ((lead.opened & Bit(i)) != 0 || state.shards[i].down) return;
    State next = state;
    next.shards[i].serving = lead.term;
    next.lead.opened |= Bit(i);
    if (next.lead.opened == kAllShards) {
      next.lead.phase = Phase::kServing;
      next.lead.promised = next.lead.restored = next.lead.opened = 0;
      next.lead.base_step = next.lead.base_term = 0;
    }
    Emit(&next, "shard %d opens term %d", i, lead.term);
  }

  // ---- Crashes.

  void CrashShard(const State& state, int i) const {
    State next = state;
    ++next.shard_crashes;
    Shard& shard = next.shards[i];
    const Shard before = shard;
    shard = Shard();
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
    if (i == 0) {
      next.lead = Lead();
      next.lead.phase = Phase::kLost;
      next.lead.term = 0;
    }
    if (!rules_.fresh_process_refuses) ServeAtOnce(before, &shard);
    Emit(&next, "shard %d crashes", i);
  }

  // What a fresh process must not do: go on in its term from the newest cut that it finds.
  void ServeAtOnce(const Shard& before, Shard* shard) const {
    const int newest = NewestLive(*shard);
    if (newest < 0) return;
    shard->down = 0;
    shard->loaded = 1;
    shard->serving = shard->promised;
    shard->era = before.era;
    shard->open_step = static_cast<uint8_t>(newest + 1);
    shard->lineage = FindCut(*shard, newest, 0, /*term_matters=*/false)->lineage;
  }

  // What it has sent arrives still (a zombie), or never.
  void CrashWorker(const State& state, int part) const {
    const Worker& worker = state.workers[part];
    if (worker.term == 0) return;
    State next = state;
    ++next.worker_crashes;
    next.workers[part] = Worker();
    Emit(&next, "part %d's worker crashes; what it sent may arrive", part);
    uint32_t kept = 0;
    for (uint32_t m = 0; m < state.messages; ++m) {
      if (Unpack(state.message[m]).part != part) next.message[kept++] = state.message[m];
    }
    if (kept == state.messages) return;
    for (uint32_t m = kept; m < state.messages; ++m) next.message[m] = 0;
    next.messages = kept;
    Emit(&next, "part %d's worker crashes with what it sent", part);
  }

  // ---- The bag of messages, and what holds in every state.

  static void Add(State* state, uint64_t bits) {
    uint64_t* const end = state->message + state->messages;
    uint64_t* const at = std::lower_bound(state->message, end, bits);
    if (at != end && *at == bits) return;  // two copies are no more than one that arrives twice
    EPS_CHECK(state->messages < kMaxMessages);
    std::copy_backward(at, end, end + 1);
    *at = bits;
    ++state->messages;
  }
  static void Remove(State* state, uint32_t index) {
    std::copy(state->message + index + 1, state->message + state->messages, state->message + index);
    state->message[--state->messages] = 0;
  }

  // Whether no shard will ever count it: then the state without it is the same.
  bool IsDead(const State& state, const Push& push) const {
    if (!rules_.push_names_term || !rules_.first_contribution_wins) return false;
    if (!rules_.fresh_process_refuses || !rules_.term_is_durable) return false;
    const Shard& shard = state.shards[ShardOf(push.stage)];
    if (push.term < shard.promised) return true;
    if (shard.serving == 0) return rules_.all_promise;
    if (push.step != shard.open_step) return push.step < shard.open_step;
    const int own = OwnOf(push.stage);
    return ((shard.updated & Bit(own)) | (shard.counted[own] >> push.part & 1)) != 0 &&
           rules_.skip_advances_step;
  }

  const char* Invariant(const State& state) const {
    const Shard& a = state.shards[0];
    const Shard& b = state.shards[1];
    if (a.serving == 0 || a.serving != b.serving) return nullptr;
    if (std::abs(a.open_step - b.open_step) > 1) return "shards are two steps apart";
    const int common = std::min(a.open_step, b.open_step) - 1;
    if (UpTo(a.lineage, common) != UpTo(b.lineage, common)) return "shards disagree";
    return nullptr;
  }

  template <class... Values>
  void Emit(State* next, const char* what, Values... values) const {
    Emit(nullptr, next, what, values...);
  }
  template <class... Values>
  void Emit(const char* violation, State* next, const char* what, Values... values) const {
    for (uint32_t m = 0; m < next->messages;) {
      if (IsDead(*next, Unpack(next->message[m]))) {
        Remove(next, m);
      } else {
        ++m;
      }
    }
    if (violation == nullptr) violation = Invariant(*next);
    const int numbers[3] = {static_cast<int>(values)...};
    search_->Reach(*next, violation, Event{what, {numbers[0], numbers[1], numbers[2]}});
  }

  const ModelConfig config_;
  const ModelRules rules_;
  Search* const search_;
};

}  // namespace
}  // namespace model

ModelResult CheckProtocol(const ModelConfig& config) {
  const auto start = std::chrono::steady_clock::now();
  model::Search search;
  const model::Protocol protocol(config, &search);
  search.Reach(model::Protocol::Initial(), nullptr, model::Event{"start", {}});
  ModelResult& result = search.result;
  model::State state;
  while (search.Next(&state)) {
    const uint64_t before = result.transitions;
    protocol.Progress(state);
    const bool stuck = result.transitions == before;
    const bool final = protocol.IsFinal(state);
    if (final) ++result.finals;
    if (stuck && !final) search.Stuck();
    protocol.Crashes(state);
    if (config.stop_at_violation && (result.stuck != 0 || !result.violations.empty())) break;
  }
  result.states = search.states();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(result);
}

}  // namespace eps
