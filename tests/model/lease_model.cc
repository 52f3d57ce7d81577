#include "tests/model/lease_model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "tests/model/lease_impl.h"

namespace eps {
namespace leases {

Leases::Leases(const LeaseConfig& config, model::Search<State>* search)
    : config_(config), search_(search) {
  // A message has room for no more.
  EPS_CHECK(config.steps >= 1 && config.steps <= 2 && config.generations <= 3);
  EPS_CHECK(config.processes >= 2 && config.processes <= kProcesses);
  EPS_CHECK(config.strangers == 0 || (config.announced && config.generations <= 2));
  EPS_CHECK(config.shard_crashes <= 1 && !(config.rollback && config.shard_crashes != 0));
}

State Leases::Initial() const {
  State state;
  for (int process = config_.processes; process < kProcesses; ++process) {
    state.lives[process] = Life::kAbsent;
  }
  for (int part = 0; part < kParts; ++part) {
    state.holder[part] = static_cast<uint8_t>(part);
    state.generation[part] = 1;
    state.tasks[part][part].generation = 1;
    Enter(&state, part, part, 1);
    Announce(&state, part);
  }
  return state;
}

bool Leases::IsFinal(const State& state) const {
  for (const Shard& shard : state.shards) {
    if (shard.open_step != config_.steps + 1) return false;
  }
  for (int step = 0; step < config_.steps; ++step) {
    if (state.losses[step] != kAllParts) return false;
  }
  return true;
}

void Leases::Events(const State& now) const {
  for (int i = 0; i < now.messages; ++i) Arrive(now, now.message[i]);
  for (int process = 0; process < kProcesses; ++process) {
    for (int part = 0; part < kParts; ++part) Work(now, process, part);
  }
  Decide(now);
  for (int shard = 0; shard < kShards; ++shard) {
    FollowDecision(now, shard);
    TakeBackCredit(now, shard);
  }
  for (int part = 0; part < kParts; ++part) {
    MoveLease(now, part);
    Stranger(now, part);
  }
  Crash(now);
  BreakLink(now);
  LinkUp(now);
}

// ---- Workers.

// Begins a step on all shards.
void Leases::Enter(State* state, int process, int part, int step) const {
  Task& task = state->tasks[process][part];
  const Task before = task;
  task = Task();
  task.generation = before.generation;
  task.residuals = before.residuals;
  task.computed = before.computed;
  task.term = state->term;
  task.step = static_cast<uint8_t>(step);
  Message begin;
  begin.term = task.term;
  begin.process = static_cast<uint8_t>(process);
  begin.part = static_cast<uint8_t>(part);
  begin.generation = task.generation;
  begin.step = task.step;
  begin.flag = task.computed;
  for (int shard = 0; shard < kShards; ++shard) {
    begin.shard = static_cast<uint8_t>(shard);
    Send(state, begin);
  }
}

// Begins to work on a part: without the probe at the step that the lead has open.
void Leases::Begin(State* state, int process, int part) const {
  Enter(state, process, part, On(LeaseRule::kProbe) ? 0 : state->shards[0].open_step);
}

bool Leases::HoldsLease(const State& state, int process, int part) {
  return state.lives[process] == Life::kAlive && state.holder[part] == process &&
         state.generation[part] == state.tasks[process][part].generation;
}

void Leases::Work(const State& now, int process, int part) const {
  const Task& task = now.tasks[process][part];
  if (task.generation == 0 || now.lives[process] != Life::kAlive) return;
  if (task.term < now.term) {
    MeetNewTerm(now, process, part);
    return;
  }
  if (task.begun != kAllShards || task.step > config_.steps) return;
  if (task.have == kAllShards) {
    GoOn(now, process, part);
    return;
  }
  Fetch(now, process, part);
  if (task.fetched != kAllShards) return;
  if (HasFlushed(task) && (task.reported || !On(LeaseRule::kLossFirst))) GoOn(now, process, part);
}

// A request of an earlier term is answered STALE; without L11, only one that arrives from now on.
void Leases::MeetNewTerm(const State& now, int process, int part) const {
  if (!On(LeaseRule::kNewTermAnswers) && now.tasks[process][part].begun == kAllShards) return;
  Next next = {now};
  Task& task = next.state.tasks[process][part];
  if (HoldsLease(now, process, part)) {
    task.residuals = 0;
    task.computed = 0;
    Begin(&next.state, process, part);
  } else {
    task = Task();
  }
  Emit(&next, true, "process %d, part %d: STALE", process, part);
}

// A part computes with the weights of both shards.
void Leases::Fetch(const State& now, int process, int part) const {
  const Task& task = now.tasks[process][part];
  for (int shard = 0; shard < kShards; ++shard) {
    if ((task.fetched & Bit(shard)) != 0) continue;
    if (On(LeaseRule::kFence) && task.generation < now.shards[shard].fence[part]) {
      Next next = {now};
      next.state.tasks[process][part] = Task();
      Emit(&next, true, "process %d, part %d: the fetch from shard %d is FENCED", process, part,
           shard);
      return;
    }
    FetchOne(now, process, part, shard);
  }
}

void Leases::FetchOne(const State& now, int process, int part, int i) const {
  Next next = {now};
  Task& task = next.state.tasks[process][part];
  const Shard& shard = now.shards[i];
  const bool same = shard.open_step == task.step;
  const bool kept = shard.open_step == task.step + 1 && shard.old;
  if (same || kept || !On(LeaseRule::kFetchNamesVersion)) {
    task.fetched |= Bit(i);
    if (!same && !kept) task.other_weights = 1;
    Emit(&next, true, "process %d, part %d fetches for step %d from shard %d", process, part,
         task.step, i);
    return;
  }
  if (!HoldsLease(now, process, part)) return;
  if (config_.rollback) {
    if (now.new_terms != 0) return;
    RollBack(&next);
    Emit(&next, true, "process %d, part %d: the version of step %d is gone from shard %d", process,
         part, task.step, i);
    return;
  }
  bool needed = false;
  for (int other = 0; other < kShards; ++other) {
    needed |= (task.have & Bit(other)) == 0 && now.shards[other].open_step == task.step &&
              now.shards[other].counted[part] == 0;
  }
  if (!needed) return;
  next.violation = kVersionGone;
  Emit(&next, true, "process %d, part %d fetches for step %d from shard %d", process, part,
       task.step, i);
}

bool Leases::HasFlushed(const Task& task) const {
  const uint8_t done = On(LeaseRule::kFlush) ? task.acked : task.pushed;
  return (task.have | done) == kAllShards;
}

// The part begins the next step, or its process leaves.
void Leases::GoOn(const State& now, int process, int part) const {
  Next next = {now};
  Task& task = next.state.tasks[process][part];
  task.computed = task.have != kAllShards;
  task.residuals = task.computed && !On(LeaseRule::kFetchedResidual) ? kAllShards : task.pushed;
  const int step = task.step + 1;
  Enter(&next.state, process, part, step);
  Emit(&next, true, "process %d, part %d goes on to step %d", process, part, step);
  if (now.leaves == config_.leaves || now.tasks[process][1 - part].generation != 0) return;
  next = {now};
  State& state = next.state;
  if (HoldsLease(now, process, part)) state.holder[part] = kNobody;
  ++state.leaves;
  state.lives[process] = Life::kLeft;
  state.tasks[process][part] = Task();
  Emit(&next, false, "process %d leaves before step %d", process, step);
}

// ---- The lead and the faults.

// Sealed: the lead decides on a step after every shard has counted all of it.
void Leases::Decide(const State& now) const {
  const uint8_t step = now.shards[0].open_step;
  if (!config_.sealed || now.decided >= step) return;
  for (const Shard& shard : now.shards) {
    if (shard.open_step != step || shard.counted[0] == 0 || shard.counted[1] == 0) return;
  }
  Next next = {now};
  next.state.decided = step;
  Emit(&next, true, "the lead decides on step %d", step);
}

void Leases::FollowDecision(const State& now, int i) const {
  if (!config_.sealed || now.shards[i].open_step != now.decided) return;
  Next next = {now};
  Complete(&next, i);
  Emit(&next, true, "shard %d completes step %d", i, now.decided);
}

void Leases::TakeBackCredit(const State& now, int i) const {
  if (now.shards[i].credit == 0 || !On(LeaseRule::kCreditEnds)) return;
  Next next = {now};
  next.state.shards[i].credit = 0;
  Emit(&next, true, "shard %d takes back its credit", i);
}

void Leases::MoveLease(const State& now, int part) const {
  const int holder = now.holder[part];
  if (holder != kNobody) {
    const bool alive = now.lives[holder] == Life::kAlive;
    if (alive ? now.expiries < config_.expiries : On(LeaseRule::kLeaseEnds)) {
      Next next = {now};
      next.state.holder[part] = kNobody;
      if (alive) ++next.state.expiries;
      Emit(&next, !alive, "process %d loses the lease on part %d", holder, part);
    }
    if (On(LeaseRule::kLease)) return;
  }
  if (now.generation[part] == config_.generations) return;
  for (int process = 0; process < config_.processes; ++process) {
    if (now.lives[process] != Life::kAlive || process == holder) continue;
    Next next = {now};
    State& state = next.state;
    state.holder[part] = static_cast<uint8_t>(process);
    Task& task = state.tasks[process][part];
    task = Task();
    task.generation = ++state.generation[part];
    Announce(&state, part);
    Begin(&state, process, part);
    Emit(&next, holder == kNobody, "process %d is granted part %d", process, part);
  }
}

// The lead tells the shards of its last grant.
void Leases::Announce(State* state, int part) const {
  if (!config_.announced) return;
  state->shards[0].granted[part] = state->generation[part];
  Message grant;
  grant.kind = Message::kGrant;
  grant.term = state->term;
  grant.part = static_cast<uint8_t>(part);
  grant.generation = state->generation[part];
  grant.shard = 1;
  if (!state->link_lost && grant.generation != 0) Send(state, grant);
}

// A stranger names a generation that nobody granted. The lead refuses it.
void Leases::Stranger(const State& now, int part) const {
  if (now.strangers >= config_.strangers || On(LeaseRule::kAnnounced)) return;
  Next next = {now};
  ++next.state.strangers;
  next.state.shards[1].fence[part] = 3;  // higher than any that is granted
  Emit(&next, false, "a stranger fences part %d on shard 1", part);
}

void Leases::BreakLink(const State& now) const {
  if (now.breaks >= config_.breaks || now.link_lost) return;
  Next next = {now};
  State& state = next.state;
  ++state.breaks;
  state.link_lost = 1;
  uint16_t* const end =
      std::remove_if(state.message, state.message + state.messages,
                     [](uint16_t bits) { return Message::From(bits).kind == Message::kGrant; });
  std::fill(end, state.message + state.messages, uint16_t{0});
  state.messages = static_cast<uint8_t>(end - state.message);
  Emit(&next, false, "the link to shard 1 breaks");
}

void Leases::LinkUp(const State& now) const {
  if (!now.link_lost) return;
  Next next = {now};
  next.state.link_lost = 0;
  for (int part = 0; part < kParts && On(LeaseRule::kRepeatsGrants); ++part) {
    Announce(&next.state, part);
  }
  Emit(&next, true, "shard 1 registers again");
}

void Leases::Crash(const State& now) const {
  for (int process = 0; process < config_.processes && now.crashes < config_.crashes; ++process) {
    if (now.lives[process] != Life::kAlive) continue;
    Next next = {now};
    ++next.state.crashes;
    next.state.lives[process] = Life::kCrashed;
    for (Task& task : next.state.tasks[process]) task = Task();
    Emit(&next, false, "process %d crashes", process);
  }
  for (int i = 0; i < kShards && now.shard_crashes < config_.shard_crashes; ++i) {
    Next next = {now};
    State& state = next.state;
    ++state.shard_crashes;
    NewTerm(&state);
    for (int part = 0; part < kParts; ++part) {
      state.shards[i].fence[part] = 0;
      if (i != 0) continue;
      state.holder[part] = kNobody;  // the lead forgets its leases
      state.generation[part] = 0;
    }
    for (int part = 0; part < kParts; ++part) Announce(&state, part);
    Emit(&next, false, "shard %d crashes", i);
  }
}

// All shards return to step 1 in one act; tests/model/protocol_recovery.cc models its parts.
void Leases::NewTerm(State* state) const {
  ++state->term;
  ++state->new_terms;
  state->decided = 0;
  for (Shard& shard : state->shards) {
    const Shard before = shard;
    shard = Shard();
    if (On(LeaseRule::kFencesEndWithTerm)) continue;
    for (int part = 0; part < kParts; ++part) shard.fence[part] = before.fence[part];
  }
  for (uint8_t& losses : state->losses) losses = 0;
}

void Leases::RollBack(Next* next) const {
  const State& state = next->state;
  const bool fault = state.crashes != 0 || state.expiries != 0 || state.shard_crashes != 0;
  if (!fault) next->violation = kNeedlessRollback;
  NewTerm(&next->state);
  for (int part = 0; part < kParts; ++part) Announce(&next->state, part);
}

}  // namespace leases

ModelResult CheckLeases(const LeaseConfig& config) {
  const auto start = std::chrono::steady_clock::now();
  model::Search<leases::State> search;
  const leases::Leases protocol(config, &search);
  search.Reach(protocol.Initial(), nullptr, model::Event{"start", {}});
  leases::State state;
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
