// The model of leases: messages, and how shards and workers react to them.

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "tests/model/lease_impl.h"

namespace eps::leases {

void Send(State* state, const Message& message) {
  const uint16_t bits = message.Bits();
  uint16_t* const end = state->message + state->messages;
  uint16_t* const at = std::lower_bound(state->message, end, bits);
  if (at != end && *at == bits) return;  // a duplicate adds nothing: one message may arrive twice
  EPS_CHECK(state->messages < kMaxMessages);
  std::copy_backward(at, end, end + 1);
  *at = bits;
  ++state->messages;
}

// ---- Shards.

void Leases::Arrive(const State& now, uint16_t bits) const {
  const Message m = Message::From(bits);
  Next next = {now};
  if (!Deliver(&next, m)) return;
  if (m.kind == Message::kGrant) {
    return Emit(&next, true, "shard 1 hears of the grant %d of part %d", m.generation, m.part);
  }
  const Task& task = now.tasks[m.process][m.part];
  const bool progress = now.lives[m.process] == Life::kAlive && task.generation == m.generation &&
                        task.term == m.term && task.step == m.step;
  constexpr const char* kRequests[] = {"process %d begins part %d at step %d on shard %d",
                                       "process %d's push of part %d, step %d reaches shard %d",
                                       "process %d's loss of part %d, step %d reaches the lead"};
  constexpr const char* kAnswers[] = {"process %d hears of its begin of part %d, step %d, shard %d",
                                      "process %d hears of its push of part %d, step %d, shard %d",
                                      "process %d hears of its loss of part %d, step %d"};
  Emit(&next, progress, m.is_answer ? kAnswers[m.kind] : kRequests[m.kind], m.process, m.part,
       m.step, m.shard);
}

bool Leases::Deliver(Next* next, const Message& m) const {
  if (m.term < next->state.term) return false;  // MeetNewTerm models the answer
  if (m.is_answer) return Hear(next, m, m.answer);
  if (m.kind == Message::kReport) return DeliverReport(next, m);
  if (m.kind == Message::kGrant) return DeliverGrant(next, m);
  const Shard& shard = next->state.shards[m.shard];
  if (On(LeaseRule::kFence) && m.generation < shard.fence[m.part]) return Reply(next, m, kFenced);
  return m.kind == Message::kBegin ? DeliverBegin(next, m) : DeliverPush(next, m);
}

bool Leases::DeliverGrant(Next* next, const Message& m) {
  uint8_t& granted = next->state.shards[m.shard].granted[m.part];
  const bool changed = granted < m.generation;
  granted = std::max(granted, m.generation);
  return changed;
}

bool Leases::IsUnknown(const Shard& shard, const Message& m) const {
  return config_.announced && On(LeaseRule::kAnnounced) && m.generation > shard.granted[m.part];
}

bool Leases::DeliverBegin(Next* next, const Message& m) const {
  State& state = next->state;
  Shard& shard = state.shards[m.shard];
  if (IsUnknown(shard, m)) {
    if (On(LeaseRule::kHoldsUnknown)) return false;
    if (Waits(state, m) && HoldsLease(state, m.process, m.part)) next->violation = kNeedlessRefusal;
    return Reply(next, m, kFenced);
  }
  bool changed = shard.fence[m.part] < m.generation;
  shard.fence[m.part] = std::max(shard.fence[m.part], m.generation);
  if (m.shard == 0 && m.flag && m.step >= 2) state.losses[m.step - 2] |= Bit(m.part);
  if (!On(LeaseRule::kNoLostWork) && config_.rollback && state.new_terms == 0 &&
      LosesWork(state, m)) {
    RollBack(next);
    return true;
  }
  if (m.step == 0) return Reply(next, m, shard.open_step) || changed;
  if (m.step > shard.open_step) return changed;  // parked
  if (m.step + 1 < shard.open_step) return Reply(next, m, kRestart) || changed;
  bool have = true;
  if (m.step == shard.open_step) {
    changed |= shard.begun[m.part] < m.step;
    shard.begun[m.part] = std::max(shard.begun[m.part], m.step);
    FreeOldVersions(&state);
    have = m.step <= config_.steps && shard.counted[m.part] != 0;
  }
  return Reply(next, m, have && On(LeaseRule::kHaveSet) ? kHave : kDone) || changed;
}

// Returns whether a process that computed no step yet finds work missing, or its step over. Without
// L9, such a begin returns the job to the last cut.
bool Leases::LosesWork(const State& state, const Message& m) const {
  if (m.flag || m.step == 0) return false;
  const Shard& shard = state.shards[m.shard];
  return (shard.open_step == m.step - 1 && shard.counted[m.part] == 0) ||
         (m.shard == 0 && m.step >= 2 && (state.losses[m.step - 2] & Bit(m.part)) == 0) ||
         m.step < shard.open_step;
}

// A report is no request of the part's holder: the loss counts by its key, whoever brings it.
bool Leases::DeliverReport(Next* next, const Message& m) const {
  State& state = next->state;
  uint8_t& losses = state.losses[m.step - 1];
  const bool changed = (losses & Bit(m.part)) == 0;
  losses |= Bit(m.part);
  if (!On(LeaseRule::kReportBeginsNothing)) {
    uint8_t& begun = state.shards[0].begun[m.part];
    begun = std::max<uint8_t>(begun, static_cast<uint8_t>(m.step + 1));
    FreeOldVersions(&state);
  }
  return Reply(next, m, kDone) || changed;
}

bool Leases::DeliverPush(Next* next, const Message& m) const {
  Shard& shard = next->state.shards[m.shard];
  uint8_t& counted = shard.counted[m.part];
  const auto origin = static_cast<uint8_t>(1 + m.process);
  if (m.step > shard.open_step) return false;
  if (m.step < shard.open_step || (counted != 0 && On(LeaseRule::kFirstWins))) {
    return Reply(next, m, kDone);
  }
  if (counted != 0) {
    if (counted != origin) next->violation = kCountedTwice;
    return counted != origin;
  }
  if (config_.credits) {
    const auto sender = static_cast<uint8_t>(1 + 2 * m.process + m.part);
    if (shard.credit != 0 && shard.credit != sender) return false;
    shard.credit = shard.credit == 0 ? sender : 0;
    if (shard.credit != 0) return true;  // only the offer has arrived
  }
  counted = origin;
  if (m.other_weights) next->violation = kOtherWeights;
  if (m.flag && shard.last[m.part] != origin) next->violation = kOthersResidual;
  Reply(next, m, kDone);
  if (shard.counted[0] != 0 && shard.counted[1] != 0 && !config_.sealed) Complete(next, m.shard);
  return true;
}

void Leases::Complete(Next* next, int i) const {
  Shard& shard = next->state.shards[i];
  if (shard.old && Retains()) next->violation = kOverwritten;
  shard.old = Retains();
  ++shard.open_step;
  for (int part = 0; part < kParts; ++part) {
    shard.last[part] = shard.counted[part];
    shard.counted[part] = 0;
  }
  FreeOldVersions(&next->state);
  if (std::abs(next->state.shards[0].open_step - next->state.shards[1].open_step) > 1) {
    next->violation = kTwoStepsApart;
  }
}

void Leases::FreeOldVersions(State* state) {
  for (Shard& shard : state->shards) {
    if (shard.begun[0] >= shard.open_step && shard.begun[1] >= shard.open_step) shard.old = 0;
  }
}

// ---- Answers.

bool Leases::Waits(const State& state, const Message& m) {
  const Task& task = state.tasks[m.process][m.part];
  if (state.lives[m.process] != Life::kAlive || task.generation != m.generation ||
      task.term != m.term || task.step != m.step) {
    return false;
  }
  switch (m.kind) {
    case Message::kBegin:
      return (task.begun & Bit(m.shard)) == 0;
    case Message::kPush:
      return (task.acked & Bit(m.shard)) == 0;
    case Message::kReport:
      return task.fetched == kAllShards && !task.reported;
    case Message::kGrant:
      break;
  }
  return false;
}

bool Leases::Reply(Next* next, const Message& request, int answer) const {
  if (!Waits(next->state, request)) return false;
  if (!config_.late_answers) return Hear(next, request, answer);
  Message reply = request;
  reply.is_answer = 1;
  reply.answer = static_cast<uint8_t>(answer);
  const uint8_t before = next->state.messages;
  Send(&next->state, reply);
  return next->state.messages != before;
}

bool Leases::Hear(Next* next, const Message& m, int answer) const {
  State& state = next->state;
  if (!Waits(state, m)) return false;
  Task& task = state.tasks[m.process][m.part];
  if (answer == kFenced) {
    task = Task();
  } else if (m.kind == Message::kReport) {
    task.reported = 1;
  } else if (m.kind == Message::kPush) {
    task.acked |= Bit(m.shard);
  } else if (m.step == 0) {
    task.begun |= Bit(m.shard);
    task.probed = static_cast<uint8_t>(task.probed | answer << 2 * m.shard);
    if (task.begun == kAllShards) {
      Enter(&state, m.process, m.part, std::min(task.probed & 3, task.probed >> 2));
    }
  } else if (answer == kRestart) {
    task.residuals = 0;
    task.computed = 0;
    Begin(&state, m.process, m.part);
  } else {
    task.begun |= Bit(m.shard);
    if (answer == kHave) task.have |= Bit(m.shard);
  }
  return true;
}

// ---- The bag.

bool Leases::SendOnce(State* state, int process, int part) const {
  Task& task = state->tasks[process][part];
  if (task.generation == 0 || state->lives[process] != Life::kAlive || task.term < state->term ||
      task.step < 1 || task.step > config_.steps || task.fetched != kAllShards) {
    return false;
  }
  const uint8_t need = kAllShards & ~task.have;
  if (need == 0) return false;
  bool sent = false;
  Message m;
  m.term = task.term;
  m.process = static_cast<uint8_t>(process);
  m.part = static_cast<uint8_t>(part);
  m.generation = task.generation;
  m.step = task.step;
  if (On(LeaseRule::kLossFirst) && !task.reported) {
    if ((state->losses[task.step - 1] & Bit(part)) != 0 && !config_.late_answers) {
      task.reported = sent = true;
    } else {
      m.kind = Message::kReport;
      Send(state, m);
    }
  }
  m.kind = Message::kPush;
  m.other_weights = task.other_weights;
  for (int shard = kShards - 1; shard >= 0; --shard) {
    if ((need & ~task.pushed & Bit(shard)) == 0) continue;
    if (shard == 0 && On(LeaseRule::kLossFirst) && !task.reported) continue;
    task.pushed |= Bit(shard);
    m.shard = static_cast<uint8_t>(shard);
    m.flag = (task.residuals & Bit(shard)) != 0;
    Send(state, m);
    sent = true;
  }
  return sent;
}

// Returns whether a message that changes nothing now may do so later.
bool Leases::CanMatterLater(const State& state, const Message& m) const {
  if (m.term < state.term) return false;
  if (m.is_answer || m.kind == Message::kReport) return Waits(state, m);
  const Shard& shard = state.shards[m.shard];
  if (m.step > shard.open_step || (m.kind == Message::kBegin && IsUnknown(shard, m))) return true;
  if (config_.late_answers && Waits(state, m)) return true;
  return m.kind == Message::kPush && shard.credit != 0 && m.step == shard.open_step &&
         shard.counted[m.part] == 0 && m.generation >= shard.fence[m.part];
}

void Leases::SendAndTidy(State* state) const {
  for (bool sent = true; sent;) {
    sent = false;
    for (int process = 0; process < kProcesses; ++process) {
      for (int part = 0; part < kParts; ++part) sent |= SendOnce(state, process, part);
    }
  }
  // Without these rules a message may matter at any time.
  if (!On(LeaseRule::kFirstWins) || !On(LeaseRule::kNoLostWork)) return;
  int kept = 0;
  for (int i = 0; i < state->messages; ++i) {
    const uint16_t bits = state->message[i];
    const Message m = Message::From(bits);
    Next next = {*state};
    if (CanMatterLater(*state, m) || Deliver(&next, m)) state->message[kept++] = bits;
  }
  std::fill(state->message + kept, state->message + state->messages, uint16_t{0});
  state->messages = static_cast<uint8_t>(kept);
}

}  // namespace eps::leases
