#include "eps_server/core/replay/replay_desk.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "eps_server/core/cuts/recovery.h"

namespace eps {

ReplayDesk::ReplayDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox,
                       ApplyFn apply)
    : facts_(*facts), queries_(*queries), outbox_(outbox), apply_(std::move(apply)) {}

// ---------------------------------------------------------------- writing

void ReplayDesk::On(const internal_event::BorderOpened&) {
  if (!facts_.job.logs()) return;
  const FoundLog log{LogId{facts_.term, facts_.incarnation}, *facts_.cuts.base, *facts_.cuts.base};
  const OpId op = outbox_->StartOp(StartLogRequest{log});
  writing_.insert(op);
  outbox_->Raise(internal_event::LogWritten{op});
  LogSession();
}

void ReplayDesk::Log(uint64_t step, const v1::LogFact& fact, Bytes payload, Bytes residual) {
  LogEntry entry;
  entry.step = Step(step);
  entry.text = fact.SerializeAsString();
  entry.payload = std::move(payload);
  entry.residual = std::move(residual);
  const OpId op = outbox_->StartOp(LogRequest{std::move(entry)});
  writing_.insert(op);
  outbox_->Raise(internal_event::LogWritten{op});
}

void ReplayDesk::On(const internal_event::SessionChanged&) {
  if (facts_.replays()) owes_session_ = true;
  if (facts_.logging()) LogSession();
}

void ReplayDesk::LogSession() {
  v1::LogFact fact;
  *fact.mutable_session() = queries_.Session();
  Log(facts_.step, fact, Bytes(), Bytes());
}

bool ReplayDesk::On(const event::OpDone& e) {
  const BackendDone& done = e.done;
  const bool is_read = reading_ == done.op;
  if (!is_read && writing_.erase(done.op) == 0) return false;
  if (is_read) reading_.reset();
  if (!done.status.ok()) {
    outbox_->Raise(internal_event::OpFailed{"the contribution log", done.status});
  } else if (is_read) {
    const auto& entries = *std::get<std::shared_ptr<const std::vector<LogEntry>>>(done.value);
    ended_ = entries.empty();
    for (const LogEntry& entry : entries) entries_.push_back(entry);
  } else {
    outbox_->Raise(internal_event::LogDurable{done.op});
  }
  return true;
}

// ---------------------------------------------------------------- replaying

void ReplayDesk::On(const internal_event::LogFound& e) { log_ = e.log; }

void ReplayDesk::On(const internal_event::StateRestored& e) {
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kResumed, 0, e.border.version, e.border.id));
  outbox_->Raise(internal_event::ReplayOpened{ToImported(e.border), log_.opened});
  reading_ = outbox_->StartOp(ReadLogRequest{});
}

void ReplayDesk::Pump() {
  if (facts_.step == 0) return;  // the base of the log is being restored
  const auto end = [this] { outbox_->Raise(internal_event::ReplayEnded()); };
  if (facts_.state == v1::JOB_STATE_FAILED) return end();
  for (; !entries_.empty(); entries_.pop_front()) {
    const LogEntry& entry = entries_.front();
    v1::LogFact fact;
    absl::StatusOr<bool> applied = absl::DataLossError("it cannot be read");
    if (fact.ParseFromString(entry.text)) applied = apply_(fact, entry);
    if (applied.ok() && !*applied && queries_.IsIdle()) {
      applied = absl::DataLossError("it waits for what no entry before it said");
    }
    if (!applied.ok()) {
      return outbox_->Raise(internal_event::OpFailed{
          absl::StrCat("the contribution log, an entry of step ", entry.step.value(),
                       ", while step ", facts_.step, " is open"),
          applied.status()});
    }
    if (!*applied) return;
  }
  if (ended_) return end();
  if (!reading_.has_value()) reading_ = outbox_->StartOp(ReadLogRequest{});
}

void ReplayDesk::On(const internal_event::ReplayEnded&) {
  entries_.clear();
  if (owes_session_) LogSession();
  owes_session_ = false;
  outbox_->Count("replays");
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kReplayed, 0, Version(facts_.version)));
}

}  // namespace eps
