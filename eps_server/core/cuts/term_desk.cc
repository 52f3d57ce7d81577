#include "eps_server/core/cuts/term_desk.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "storage/cuts/common_cut.h"

namespace eps {
namespace {

constexpr size_t kMaxDamageText = 1024;  // v1::Promised

}  // namespace

void TermDesk::Start(Kind kind, Request request, std::optional<CutId> cut) {
  const OpId op = outbox_->StartOp(std::move(request));
  ops_[op] = Op{kind, cut};
}

void TermDesk::On(const event::Opened&) {
  if (!facts_.job.durable()) return;
  recovering_since_ms_ = facts_.now_ms;
  Start(Kind::kLook, RecoverRequest{});
}

// ---------------------------------------------------------------- messages

bool TermDesk::OnMessage(const event::FromShard& e) {
  const v1::ShardMessage& m = e.message;
  const bool of_term = Term(m.term()) == facts_.term;
  const bool at_lead = facts_.job.is_lead();
  switch (m.message_case()) {
    case v1::ShardMessage::kRegister:
      if (at_lead) OnRegister(e.from, Term(m.term()), m.register_());
      return true;
    case v1::ShardMessage::kNewTerm:
      OnNewTerm(Term(m.new_term().term()));
      return true;
    case v1::ShardMessage::kRollBack:
      if (at_lead && of_term && facts_.state != v1::JOB_STATE_RECOVERING) StartTerm();
      return true;
    case v1::ShardMessage::kPromised:
      if (at_lead && of_term) OnPromised(e.from, m.promised());
      return true;
    case v1::ShardMessage::kRestore:
      if (of_term) OnRestore(m.restore());
      return true;
    case v1::ShardMessage::kDurable:
      if (at_lead && of_term && recovery_->OnDurable(e.from, ToCutId(m.durable().cut()))) {
        outbox_->Raise(internal_event::CutEverywhere{*recovery_->watermark()});
      }
      return true;
    default:
      return false;
  }
}

void TermDesk::Register() {
  v1::ShardMessage message = facts_.NewMessage();
  message.mutable_register_()->set_incarnation(facts_.incarnation);
  message.mutable_register_()->set_promised_term(std::max(promised_, facts_.term).value());
  message.mutable_register_()->set_step(facts_.step);
  message.mutable_register_()->set_most_cut_steps(wants_cut_ ? 1 : facts_.job.caps.log_steps);
  message.mutable_register_()->set_draining(facts_.hold.draining_since_ms.has_value());
  outbox_->ToLead(std::move(message));
}

void TermDesk::OnRegister(ShardId shard, Term term, const v1::Register& message) {
  const Term promised(message.promised_term());
  bool is_new = recovery_->OnRegister(shard, message.incarnation(), promised);
  // It promised a later term than it says it is in: it has lost what it was in the term.
  is_new |= promised > term;
  recovery_->OnLimit(shard, message.most_cut_steps());
  outbox_->Raise(internal_event::CutLimit{recovery_->most_cut_steps()});
  outbox_->Raise(internal_event::ShardDrains{shard, message.draining()});
  if (!recovery_->AllRegistered()) return;
  if (is_new || promised > facts_.term) return StartTerm();
  Repeat(shard);
}

// Sends a shard whose link broke what it may have missed.
void TermDesk::Repeat(ShardId shard) {
  v1::ShardMessage again = facts_.NewMessage();
  if (chosen_.has_value()) {
    *again.mutable_restore() = *chosen_;
  } else if (promised_ == facts_.term) {
    again.mutable_new_term()->set_term(facts_.term.value());
  } else {
    return;  // the lead asks it later
  }
  outbox_->Emit(effect::ToShard{shard, std::move(again)});
  outbox_->Raise(internal_event::ShardReached{shard});
  if (facts_.step == 0 || !recovery_->watermark().has_value()) return;
  v1::ShardMessage watermark = facts_.NewMessage();
  *watermark.mutable_watermark()->mutable_cut() = ToProto(*recovery_->watermark());
  outbox_->Emit(effect::ToShard{shard, std::move(watermark)});
}

// ---------------------------------------------------------------- terms

// The lead promises first, durably, and then asks the others: a lead that dies and returns never
// uses a term twice.
void TermDesk::StartTerm() {
  if (over_) return;
  const Term term = recovery_->NextTerm(facts_.term);
  recovery_->Begin(term);
  OnNewTerm(term);
}

void TermDesk::On(const internal_event::RollBack&) {
  if (!rolls_back_) outbox_->Count("rollbacks");
  rolls_back_ = true;
  if (facts_.job.is_lead()) return StartTerm();
  v1::ShardMessage message = facts_.NewMessage();
  message.mutable_roll_back();
  outbox_->ToLead(std::move(message));
}

void TermDesk::OnNewTerm(Term term) {
  if (term < facts_.term || over_ || !recovered_) return;
  if (term == facts_.term) {
    if (answer_.has_value()) SendPromised();  // else the answer is on its way
    return;
  }
  if (term <= promised_) return Register();  // the lead does not know of the promise yet
  over_ = true;
  outbox_->Raise(internal_event::TermOver{term});
}

void TermDesk::Continue(const TermDesk& before) {
  recovered_ = true;
  promised_ = before.promised_;
  recovering_since_ms_ = facts_.now_ms;
  Start(Kind::kPromise, PromiseRequest{facts_.term});
}

// ---------------------------------------------------------------- the steps of a recovery

bool TermDesk::On(const event::OpDone& e) {
  const auto it = ops_.find(e.done.op);
  if (it == ops_.end()) return false;
  const Op op = it->second;
  ops_.erase(it);
  const BackendDone& done = e.done;
  if (!done.status.ok()) {
    outbox_->Raise(
        internal_event::OpFailed{absl::StrCat("shard ", facts_.job.shard.value(),
                                              ", recovery in term ", facts_.term.value()),
                                 done.status});
    return true;
  }
  switch (op.kind) {
    case Kind::kPromise:
      OnPromiseDone();
      break;
    case Kind::kQuiesce:
      Start(Kind::kRecover, RecoverRequest{});
      break;
    case Kind::kLook:
    case Kind::kRecover:
      OnRecovered(op.kind, *std::get<std::shared_ptr<const RecoveredState>>(done.value));
      break;
    case Kind::kRestore:
      OnRestored(op.cut, *std::get<std::shared_ptr<const CutContent>>(done.value));
      break;
  }
  return true;
}

void TermDesk::OnPromiseDone() {
  promised_ = facts_.term;
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kPromised, 0, Version(0)));
  if (facts_.job.is_lead()) {
    v1::ShardMessage message = facts_.NewMessage();
    message.mutable_new_term()->set_term(facts_.term.value());
    outbox_->ToOthers(message);
  }
  Start(Kind::kQuiesce, QuiesceRequest{});
}

void TermDesk::OnRecovered(Kind kind, const RecoveredState& found) {
  cuts_ = found.cuts;
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kRecovered, found.promised.value(), Version(0)));
  for (const CutBorder& cut : cuts_) {
    outbox_->Emit(facts_.Traced(TraceAction::Kind::kFound, 0, cut.version, cut.id));
  }
  if (kind == Kind::kLook) {
    promised_ = found.promised;
    recovered_ = true;
    if (!found.log.has_value()) return Register();
    outbox_->Raise(internal_event::LogFound{*found.log});
    return Start(Kind::kRestore, RestoreRequest{found.log->base, facts_.term}, found.log->base);
  }
  answer_.emplace();
  answer_->set_term(facts_.term.value());
  for (const CutBorder& cut : cuts_) {
    *answer_->add_cuts() = ToProto(cut.id);
    if (cut.opened) answer_->set_opened(true);
  }
  answer_->set_damage(found.damage.substr(0, kMaxDamageText));
  SendPromised();
}

void TermDesk::SendPromised() {
  v1::ShardMessage message = facts_.NewMessage();
  *message.mutable_promised() = *answer_;
  outbox_->ToLead(std::move(message));
}

void TermDesk::OnPromised(ShardId shard, const v1::Promised& message) {
  if (!recovery_->OnPromised(shard, message)) return;
  const absl::StatusOr<std::optional<CutId>> common = recovery_->HighestCommon();
  if (!common.ok()) {
    const bool missing = absl::IsNotFound(common.status());
    return outbox_->Raise(
        internal_event::JobFailed{std::string(common.status().message()),
                                  missing ? ExitCode::kNoInput : ExitCode::kDataInvalid});
  }
  v1::Restore restore;
  restore.set_term(facts_.term.value());
  if (common->has_value()) *restore.mutable_cut() = ToProto(**common);
  chosen_ = restore;
  v1::ShardMessage order = facts_.NewMessage();
  *order.mutable_restore() = restore;
  outbox_->ToOthers(order);
  OnRestore(restore);
}

void TermDesk::OnRestore(const v1::Restore& message) {
  if (facts_.state != v1::JOB_STATE_RECOVERING || restoring_) {
    if (facts_.imported.has_value()) outbox_->Raise(internal_event::Imported{*facts_.imported});
    return;
  }
  restoring_ = true;
  std::optional<CutId> cut;
  if (message.has_cut()) cut = ToCutId(message.cut());
  Start(Kind::kRestore, RestoreRequest{cut, facts_.term}, cut);
}

void TermDesk::OnRestored(const std::optional<CutId>& cut, const CutContent& content) {
  if (!cut.has_value()) return outbox_->Raise(internal_event::NothingToRestore());
  const auto border = std::find_if(cuts_.begin(), cuts_.end(),
                                   [&cut](const CutBorder& found) { return found.id == *cut; });
  if (border == cuts_.end()) {
    return outbox_->Raise(internal_event::JobFailed{
        absl::StrCat("shard ", facts_.job.shard.value(), " was told to restore ", CutName(*cut),
                     ", which it does not have")});
  }
  std::vector<v1::StepRecord> records;
  for (const std::string& text : content.records) {
    if (!records.emplace_back().ParseFromString(text)) {
      return outbox_->Raise(internal_event::JobFailed{
          absl::StrCat("the record of a step up to ", CutName(*cut), " is damaged")});
    }
  }
  const bool log_follows = facts_.replays();
  outbox_->Raise(internal_event::StateRestored{*border, &content.residuals, &records});
  if (log_follows) return;
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kRestored, 0, border->version, *cut));
  outbox_->Raise(internal_event::Imported{ToImported(*border)});
}

// ---------------------------------------------------------------- the others

void TermDesk::On(const internal_event::BorderOpened&) {
  if (recovery_ != nullptr) recovery_->OnOpened(*facts_.cuts.base);
}

void TermDesk::On(const internal_event::CutWanted& e) {
  wants_cut_ = e.wanted;
  Register();
}

void TermDesk::On(const internal_event::ReplayOpened& e) {
  if (recovery_ == nullptr) return;
  recovery_->OnRegister(facts_.job.shard, facts_.incarnation, promised_);
  recovery_->OnOpened(e.opened);
  recovery_->OnLimit(facts_.job.shard, facts_.job.caps.log_steps);
  outbox_->Raise(internal_event::CutLimit{recovery_->most_cut_steps()});
}

void TermDesk::On(const internal_event::SessionReplayed& e) {
  if (recovery_ == nullptr) return;
  for (int s = 0; s < e.session->incarnations_size(); ++s) {
    recovery_->OnRegister(ShardId(static_cast<uint32_t>(s)), e.session->incarnations(s),
                          facts_.term);
  }
}

std::string TermDesk::WaitsFor() const {
  if (!recovered_) return "its own data directory";
  if (facts_.replays()) return "its contribution log";
  if (!facts_.job.is_lead()) return absl::StrCat("the lead at ", facts_.job.servers[0]);
  return recovery_->WaitsFor();
}

}  // namespace eps
