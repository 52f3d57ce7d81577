#include "eps_server/core/steps/gate_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kMaxHolderBytes = 64;
constexpr size_t kMaxHolders = 64;  // apart from shards that drain

}  // namespace

GateDesk::GateDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox)
    : facts_(*facts), queries_(*queries), outbox_(outbox), table_(facts_.job.servers.size()) {}

void GateDesk::Continue(const GateDesk& before) {
  table_ = before.table_;
  table_.ForgetAnswers();
  standing_ = before.standing_;
  outlives_driver_ = before.outlives_driver_;
  draining_ = before.draining_;
  gone_ = before.gone_;
  internal_event::GatesChanged changed;
  for (const auto& [holder, step] : table_.gates()) changed.steps.insert(step);
  outbox_->Raise(changed);
  Arm();
}

// ---------------------------------------------------------------- holders

absl::Status GateDesk::Check(const event::Gate& e) const {
  if (facts_.state == v1::JOB_STATE_FAILED) return facts_.FailedStatus();
  if (e.holder.empty() || e.holder.size() > kMaxHolderBytes || IsDrainHolder(e.holder) ||
      e.holder == kBoardHolder) {
    return absl::InvalidArgumentError(
        absl::StrCat("Gate: the holder has to be 1 to ", kMaxHolderBytes,
                     " bytes that do not begin with \"drain/\" and are not \"", kBoardHolder,
                     "\", found \"", e.holder.substr(0, kMaxHolderBytes), "\""));
  }
  if (e.holder == kDriverHolder) EPS_RETURN_IF_ERROR(CheckDriver(e.lease));
  if (e.number < table_.LastNumber(e.holder)) {
    return absl::AbortedError(absl::StrCat("Gate: request ", e.number, " of ", e.holder,
                                           " arrived after request ", table_.LastNumber(e.holder),
                                           ", and changes nothing"));
  }
  const size_t others = table_.gates().size() - draining_.size();
  if (e.step.has_value() && table_.gates().count(e.holder) == 0 && others >= kMaxHolders) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Gate: ", others, " holders have a gate; at most ", kMaxHolders, " may"));
  }
  return absl::OkStatus();
}

absl::Status GateDesk::CheckDriver(const DriverLease& lease) const {
  EPS_RETURN_IF_ERROR(facts_.CheckDriver("Gate", lease));
  const bool over = standing_ == JobStanding::kUndriven || standing_ == JobStanding::kHeld;
  if (!lease.exists() || !over) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("Gate: this driver's lease (generation ", lease.generation,
                                         ") is over: stop, and write nothing more"));
}

void GateDesk::On(const event::Gate& e) {
  const absl::Status status = Check(e);
  if (!status.ok()) return outbox_->Close(e.stream, status);
  const uint64_t before = table_.revision();
  if (!e.step.has_value()) {
    table_.Lift(e.holder);
  } else if (e.lapses) {
    table_.SetUntil(e.holder, *e.step, facts_.now_ms + facts_.job.limits.gate_timeout_ms);
  } else {
    table_.Set(e.holder, *e.step);
  }
  table_.SetLastNumber(e.holder, e.number);
  if (e.holder == kDriverHolder) outlives_driver_ = e.outlives_driver;
  Arm();
  callers_.push_back(Caller{e.stream, e.holder, table_.revision(), facts_.now_ms, e.lapses});
  if (table_.revision() != before) return Changed();
  AnswerCallers();
}

void GateDesk::On(const event::Standing& e) {
  if (facts_.state == v1::JOB_STATE_FAILED || e.standing == standing_) return;
  standing_ = e.standing;
  const uint64_t before = table_.revision();
  if (standing_ == JobStanding::kHeld) {
    HoldForBoard();
  } else if (table_.gates().count(kBoardHolder) > 0) {
    table_.Lift(kBoardHolder);
  }
  const bool ends = standing_ == JobStanding::kUndriven && !outlives_driver_;
  if (ends && table_.gates().count(kDriverHolder) > 0) table_.Lift(kDriverHolder);
  if (table_.revision() != before) return Changed();
  LetEnd();
}

// The driver has left the job at a border of its own, or is gone for long. Before the job is open,
// it is at a border that every shard has a cut of, and passes none.
void GateDesk::HoldForBoard() {
  uint64_t border = facts_.state == v1::JOB_STATE_RUNNING ? NextCutBorder() : 0;
  const auto driver = table_.gates().find(kDriverHolder);
  if (driver != table_.gates().end()) border = std::min(border, driver->second);
  table_.Set(kBoardHolder, border);
}

void GateDesk::On(const event::Timer& e) {
  if (timer_ != e.id) return;
  timer_.reset();
  if (facts_.state == v1::JOB_STATE_FAILED) return;
  if (table_.LiftEnded(facts_.now_ms)) Changed();
  Arm();
}

// Keeps one timer, for the time before which no gate ends. Its holder's requests move that time on;
// the timer finds out when it expires.
void GateDesk::Arm() {
  const std::optional<uint64_t> at_ms = table_.NextEnd();
  if (timer_.has_value() || !at_ms.has_value()) return;
  timer_ = outbox_->StartTimer(*at_ms - std::min(*at_ms, facts_.now_ms));
}

void GateDesk::AnswerCallers() {
  for (auto caller = callers_.begin(); caller != callers_.end();) {
    if (table_.Missing(caller->revision).has_value()) {
      ++caller;
      continue;
    }
    v1::GateReply reply;
    reply.set_step(table_.FirstBorder());
    if (caller->lapses) reply.set_timeout_ms(facts_.job.limits.gate_timeout_ms);
    outbox_->Emit(effect::Reply{caller->stream, std::move(reply)});
    caller = callers_.erase(caller);
  }
}

void GateDesk::Closed(StreamId stream) {
  callers_.erase(std::remove_if(callers_.begin(), callers_.end(),
                                [stream](const Caller& c) { return c.stream == stream; }),
                 callers_.end());
}

void GateDesk::EndWork(const absl::Status& why) {
  for (const Caller& caller : callers_) outbox_->Close(caller.stream, why);
  callers_.clear();
  if (timer_.has_value()) outbox_->Emit(effect::ClearTimer{*timer_});
  timer_.reset();
}

// ---------------------------------------------------------------- shards

void GateDesk::Changed() {
  internal_event::GatesChanged changed;
  for (const auto& [holder, step] : table_.gates()) changed.steps.insert(step);
  outbox_->Raise(changed);
  // The lead's own shard comes last: it answers at once.
  for (uint32_t s = static_cast<uint32_t>(facts_.job.servers.size()); s-- > 0;) Send(ShardId(s));
  LetEnd();
}

void GateDesk::Send(ShardId shard) {
  if (shard == facts_.job.shard) {
    return outbox_->Raise(internal_event::GateMoved{table_.InForce()});
  }
  v1::ShardMessage message = facts_.NewMessage();
  *message.mutable_gate() = table_.InForce();
  outbox_->Emit(effect::ToShard{shard, std::move(message)});
}

void GateDesk::OnImported(ShardId from) {
  if (!table_.gates().empty() || table_.driver_spoke()) Send(from);
}

void GateDesk::OnGateSet(ShardId from, const v1::GateSet& message) {
  table_.OnAnswer(from, message.revision(), message.first_border());
  AnswerCallers();
}

// ---------------------------------------------------------------- servers that drain

// No shard has passed a border whose decision is not made, and its cut can still be decided.
uint64_t GateDesk::NextCutBorder() const {
  return std::min(queries_.NextDecision(), facts_.job.spec.training.steps);
}

// All servers that drain share one border: the job does not go on from the first one's without it.
// A job that the board holds reaches no border but the board's.
uint64_t GateDesk::DrainBorder() const {
  if (!draining_.empty()) return table_.gates().at(DrainHolder(draining_.begin()->first));
  const auto held = table_.gates().find(kBoardHolder);
  return held != table_.gates().end() ? held->second : NextCutBorder();
}

void GateDesk::On(const internal_event::ShardDrains& e) {
  gone_.erase(e.shard);
  const auto drains = draining_.find(e.shard);
  if (!e.drains) {
    if (drains == draining_.end()) return;
    draining_.erase(drains);
    table_.Lift(DrainHolder(e.shard));
    return Changed();
  }
  if (drains != draining_.end()) {
    drains->second = false;  // it may not have heard it
    return LetEnd();
  }
  // A shard of a job that is not open does not wait for the lead.
  if (facts_.state != v1::JOB_STATE_RUNNING && facts_.state != v1::JOB_STATE_DONE) return;
  table_.Set(DrainHolder(e.shard), DrainBorder());
  draining_.emplace(e.shard, false);
  Changed();
}

void GateDesk::On(const event::LinkDown& e) {
  gone_.insert(e.peer);
  LetEnd();
}

bool GateDesk::Reads(const std::string& holder) const {
  if (holder == kDriverHolder) {
    return standing_ != JobStanding::kUndriven && standing_ != JobStanding::kHeld;
  }
  return holder != kBoardHolder && !IsDrainHolder(holder);
}

// A server is needed until every shard has the cut of its border, and while another holder, such as
// a driver that writes a checkpoint, may still read that border or one before it. The lead ends
// after the others, because they wait for its word.
bool GateDesk::MayEnd(ShardId shard) const {
  const uint64_t border = table_.gates().at(DrainHolder(shard));
  if (!facts_.cuts.everywhere.has_value() || facts_.cuts.everywhere->step < Step(border)) {
    return false;
  }
  for (const auto& [holder, step] : table_.gates()) {
    if (Reads(holder) && step <= border) return false;
  }
  if (shard != facts_.job.shard) return true;
  return std::all_of(draining_.begin(), draining_.end(), [this](const auto& other) {
    return other.first == facts_.job.shard || gone_.count(other.first) > 0;
  });
}

void GateDesk::LetEnd() {
  for (auto& [shard, told] : draining_) {
    if (told || !MayEnd(shard)) continue;
    told = true;
    if (shard == facts_.job.shard) {
      outbox_->Raise(internal_event::MayEnd());
      continue;
    }
    v1::ShardMessage message = facts_.NewMessage();
    message.mutable_drained();
    outbox_->Emit(effect::ToShard{shard, std::move(message)});
  }
}

// ---------------------------------------------------------------- status

void GateDesk::Waits(WaitPage* page) const {
  for (const Caller& caller : callers_) {
    const ShardId shard = table_.Missing(caller.revision).value_or(facts_.job.shard);
    page->Add(absl::StrCat("Gate of ", caller.holder),
              absl::StrCat("shard ", shard.value(), " at ", facts_.job.servers[shard.value()],
                           " to take the gate"),
              caller.since_ms);
  }
}

void GateDesk::FillStatus(v1::StatusReply* status) const {
  for (const auto& [holder, step] : table_.gates()) {
    v1::HeldGate* gate = status->add_gates();
    gate->set_holder(holder);
    gate->set_step(step);
  }
  for (const auto& [shard, told] : draining_) status->add_draining(shard.value());
}

}  // namespace eps
