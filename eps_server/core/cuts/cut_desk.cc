// ShardCore: borders made durable, and how the shards agree on one to go back to (PROTOCOL.md 5):
// Register -> promise of a new term -> quiesce -> youngest common cut -> Restore -> open.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/core/shard_core_impl.h"

namespace eps {
namespace {

constexpr uint64_t kScrubPauseMs = 10'000;  // while no cut is kept

}  // namespace

// ---------------------------------------------------------------- terms

void ShardCore::Impl::On(const event::Opened&) {
  if (!durable()) return;
  recovering_since_ms_ = now_ms_;
  StartOp(RecoverOp{}, backend_call::Recover{});
}

// Whether the message was one that is meant for any term.
bool ShardCore::Impl::OnRecoveryMessage(const event::FromShard& e) {
  const v1::ShardMessage& m = e.message;
  switch (m.message_case()) {
    case v1::ShardMessage::kRegister:
      if (is_lead()) OnRegister(e.from, Term(m.term()), m.register_());
      return true;
    case v1::ShardMessage::kNewTerm:
      OnNewTerm(Term(m.new_term().term()));
      return true;
    case v1::ShardMessage::kRollBack:
      if (is_lead() && Term(m.term()) == term_ && state_ != v1::JOB_STATE_RECOVERING) StartTerm();
      return true;
    case v1::ShardMessage::kPromised:
      if (is_lead() && Term(m.term()) == term_) OnPromised(e.from, m.promised());
      return true;
    case v1::ShardMessage::kRestore:
      if (Term(m.term()) == term_) OnRestore(m.restore());
      return true;
    case v1::ShardMessage::kDurable:
      if (is_lead() && Term(m.term()) == term_) OnDurable(e.from, ToCutId(m.durable().cut()));
      return true;
    case v1::ShardMessage::kWatermark:
      if (Term(m.term()) == term_) KeepFrom(ToCutId(m.watermark().cut()));
      return true;
    default:
      return false;
  }
}

void ShardCore::Impl::OnRegister(ShardId shard, Term term, const v1::Register& message) {
  const Term promised(message.promised_term());
  bool is_new = recovery_->OnRegister(shard, message.incarnation(), promised);
  is_new |= promised > term;  // it forgot what it was in the term, whatever it calls itself
  recovery_->OnLimit(shard, message.most_cut_steps());
  lead_->cuts().Limit(recovery_->most_cut_steps());
  if (!recovery_->AllRegistered()) return;
  if (is_new || promised > term_) return StartTerm();
  // Its link broke: what it may have missed.
  v1::ShardMessage again = NewMessage();
  if (chosen_.has_value()) {
    *again.mutable_restore() = *chosen_;
  } else if (promised_ == term_) {
    again.mutable_new_term()->set_term(term_.value());
  } else {
    return;  // it will be asked
  }
  Emit(effect::ToShard{shard, std::move(again)});
  TellOpenState(shard);
  if (opened_border_.has_value() && recovery_->watermark().has_value()) {
    v1::ShardMessage watermark = NewMessage();
    *watermark.mutable_watermark()->mutable_cut() = ToProto(*recovery_->watermark());
    Emit(effect::ToShard{shard, std::move(watermark)});
  }
}

// The lead promises first, durably, and then asks the others: a lead that dies and comes back never
// uses a term for the second time.
void ShardCore::Impl::StartTerm() {
  if (successor_ != nullptr) return;
  const Term term = recovery_->NextTerm(term_);
  recovery_->Begin(term);
  OnNewTerm(term);
}

// The state of this shard cannot be finished: back to the last cut.
void ShardCore::Impl::RollBack() {
  if (!rolls_back_) Count("rollbacks");
  rolls_back_ = true;
  if (is_lead()) return StartTerm();
  v1::ShardMessage message = NewMessage();
  message.mutable_roll_back();
  SendToLead(std::move(message));
}

void ShardCore::Impl::OnNewTerm(Term term) {
  if (term < term_ || successor_ != nullptr || !recovered_) return;
  if (term > term_ && term <= promised_) return Register();  // the lead does not know it yet
  if (term == term_) {
    if (!answer_.has_value()) return;  // it is on its way
    v1::ShardMessage message = NewMessage();
    *message.mutable_promised() = *answer_;
    return SendToLead(std::move(message));
  }
  const absl::Status over = absl::AbortedError(absl::StrCat(
      "term ", term_.value(), " is over; the job is at term ", term.value(), ", join again"));
  EndWork(over);
  output_.Drop(out_);
  for (PartState& part : parts_) {
    if (part.push_stream.has_value()) Close(*part.push_stream, over);
    if (part.lost_timer.has_value()) Emit(effect::ClearTimer{*part.lost_timer});
  }
  // Records of steps that will be repeated are withdrawn: who watches has to look where it stands.
  for (const auto& [stream, watcher] : watchers_) Close(stream, over);
  if (scrub_timer_.has_value()) Emit(effect::ClearTimer{*scrub_timer_});
  Options options = options_;
  options.term = term;
  successor_ = std::make_unique<Impl>(std::move(options));
  successor_->term_ = term;
  successor_->recovered_ = true;
  successor_->promised_ = promised_;
  successor_->recovery_ = std::move(recovery_);
  successor_->gate_step_ = gate_step_;
  successor_->compute_profile_ = compute_profile_;
  successor_->incarnation_ = incarnation_;
  successor_->deferred_ = std::move(deferred_);
  if (is_lead()) {
    successor_->lead_->Gate(gate_step_);
    successor_->lead_->cuts().Limit(successor_->recovery_->most_cut_steps());
  }
  successor_->records_ = std::move(records_);
  successor_->joins_ = std::move(joins_);
  successor_->counters_ = std::move(counters_);
  // Names are never used again.
  successor_->next_op_ = next_op_;
  successor_->next_timer_ = next_timer_;
}

void ShardCore::Impl::BeginTerm(uint64_t now_ms, std::vector<Effect>* out) {
  now_ms_ = recovering_since_ms_ = now_ms;
  out_ = out;
  StartOp(PromiseOp{}, backend_call::Promise{term_});
  out_ = nullptr;
}

// Promise, Quiesce, Recover and Restore in turn.
void ShardCore::Impl::OnRecoveryStep(const Op& op, const BackendDone& done) {
  if (!done.status.ok()) {
    return FailOperation(
        absl::StrCat("shard ", options_.shard.value(), ", recovery in term ", term_.value()),
        done.status);
  }
  if (std::holds_alternative<PromiseOp>(op)) {
    promised_ = term_;
    TraceIt(TraceAction::Kind::kPromised, 0, Version(0));
    if (is_lead()) {
      v1::ShardMessage message = NewMessage();
      message.mutable_new_term()->set_term(term_.value());
      Broadcast(message);
    }
    StartOp(QuiesceOp{}, backend_call::Quiesce{});
  } else if (std::holds_alternative<QuiesceOp>(op)) {
    StartOp(RecoverOp{/*promised=*/true}, backend_call::Recover{});
  } else if (const auto* recover = std::get_if<RecoverOp>(&op)) {
    OnRecoverDone(*recover, *std::get<std::shared_ptr<const RecoveredState>>(done.value));
  } else {
    OnRestoreDone(std::get<RestoreOp>(op),
                  *std::get<std::shared_ptr<const CutContent>>(done.value));
  }
}

void ShardCore::Impl::OnRecoverDone(const RecoverOp& op, const RecoveredState& found) {
  cuts_ = found.cuts;
  TraceIt(TraceAction::Kind::kRecovered, found.promised.value(), Version(0));
  for (const CutBorder& cut : cuts_) {
    TraceIt(TraceAction::Kind::kFound, 0, cut.version, cut.id);
  }
  if (!op.promised) {
    promised_ = found.promised;
    recovered_ = true;
    if (found.log.has_value()) return BeginReplay(*found.log);
    return Register();
  }
  v1::Promised answer;
  answer.set_term(term_.value());
  for (const CutBorder& cut : cuts_) {
    *answer.add_cuts() = ToProto(cut.id);
    if (cut.opened) answer.set_opened(true);
  }
  answer_ = answer;
  v1::ShardMessage message = NewMessage();
  *message.mutable_promised() = std::move(answer);
  SendToLead(std::move(message));
}

void ShardCore::Impl::OnPromised(ShardId shard, const v1::Promised& message) {
  if (!recovery_->OnPromised(shard, message)) return;
  const absl::StatusOr<std::optional<CutId>> common = recovery_->HighestCommon();
  if (!common.ok()) return FailJob(std::string(common.status().message()));
  v1::Restore restore;
  restore.set_term(term_.value());
  if (common->has_value()) *restore.mutable_cut() = ToProto(**common);
  chosen_ = restore;
  v1::ShardMessage order = NewMessage();
  *order.mutable_restore() = restore;
  Broadcast(order);
  OnRestore(restore);
}

void ShardCore::Impl::OnRestore(const v1::Restore& message) {
  if (state_ != v1::JOB_STATE_RECOVERING || restoring_) {
    if (last_imported_.has_value()) TellImported(*last_imported_);
    return;
  }
  restoring_ = true;
  std::optional<CutId> cut;
  if (message.has_cut()) cut = ToCutId(message.cut());
  StartOp(RestoreOp{cut}, backend_call::Restore{cut, term_});
}

void ShardCore::Impl::OnRestoreDone(const RestoreOp& op, const CutContent& content) {
  if (!op.cut.has_value()) {
    state_ = v1::JOB_STATE_IMPORTING;
    return;
  }
  const auto border = std::find_if(cuts_.begin(), cuts_.end(),
                                   [&op](const CutBorder& cut) { return cut.id == *op.cut; });
  if (border == cuts_.end()) {
    return FailJob(absl::StrCat("shard ", options_.shard.value(), " was told to restore ",
                                CutName(*op.cut), ", which it does not have"));
  }
  for (ChunkState& chunk : owned_) chunk.version = border->version;
  for (const CutResidual& residual : content.residuals) {
    residuals_.Import({residual.chunk, residual.use, residual.part}, residual.bytes);
  }
  records_.clear();
  for (const std::string& text : content.records) {
    if (!records_.emplace_back().ParseFromString(text)) {
      return FailJob(absl::StrCat("the record of a step up to ", CutName(*op.cut), " is damaged"));
    }
  }
  durable_records_ = records_.size();
  if (replay_.has_value()) return OpenReplay(*border);
  TraceIt(TraceAction::Kind::kRestored, 0, border->version, *op.cut);
  base_cut_ = op.cut;
  TellImported(ToImported(*border));
}

std::string ShardCore::Impl::RecoveryWaitsFor() const {
  if (!recovered_) return "its own data directory";
  if (replay_.has_value()) return "its contribution log";
  if (!is_lead()) return absl::StrCat("the lead at ", options_.servers[0]);
  const std::string shards = recovery_->WaitsFor();
  return !shards.empty() ? shards : lead_->WaitsFor();
}

// ---------------------------------------------------------------- cuts

// The border that the shard has just reached.
CutBorder ShardCore::Impl::Border(uint64_t update) const {
  CutBorder border;
  border.id = CutId{Step(step_), term_};
  border.version = Version(base_version_);
  border.update = update;
  border.opened = true;
  return border;
}

void ShardCore::Impl::StartImportCut(StreamId stream, const v1::Imported& imported) {
  const absl::Status importing = CheckImporting();
  if (!importing.ok()) return Close(stream, importing);
  CutBorder border;
  border.id = CutId{Step(imported.step()), term_};
  border.version = Version(imported.version());
  border.update = imported.update();
  border.lagged_norm = imported.lagged_norm();
  base_cut_ = border.id;
  last_import_ = imported;
  StartCut(border, stream);
}

// The lead's cut holds the records of all steps up to it, and the norm that the next step may be
// clipped by: it waits for what the other shards and the workers say of the step, which does not
// depend on any later one.
void ShardCore::Impl::TryStartCut() {
  if (!pending_cut_.has_value()) return;
  if (is_lead()) {
    if (Step(lead_->recorded_step()) < pending_cut_->id.step) return;
    pending_cut_->lagged_norm = lead_->NormOf(pending_cut_->id.step.value());
  }
  const CutBorder border = *pending_cut_;
  pending_cut_.reset();
  StartCut(border, std::nullopt);
  StartReadyUpdates();
}

void ShardCore::Impl::StartCut(CutBorder border, std::optional<StreamId> import) {
  CutRequest request;
  request.border = border;
  request.content.residuals = residuals_.All();
  for (; durable_records_ < records_.size(); ++durable_records_) {
    request.content.records.push_back(records_[durable_records_].SerializeAsString());
  }
  cut_begun_ms_ = now_ms_;
  TraceIt(TraceAction::Kind::kCut, 0, border.version, border.id);
  StartOp(CutOp{border.id, import}, backend_call::Cut{std::move(request)});
}

void ShardCore::Impl::OnCutDone(const CutOp& op, const BackendDone& done) {
  if (!done.status.ok()) {
    return FailOperation(absl::StrCat("the cut of ", CutName(op.cut)), done.status);
  }
  TraceIt(TraceAction::Kind::kDurable, 0, Version(base_version_), op.cut);
  Count("cuts");
  last_durable_ = op.cut;
  if (op.import.has_value()) return FinishImport(*op.import, last_import_);
  v1::ShardMessage message = NewMessage();
  *message.mutable_durable()->mutable_cut() = ToProto(op.cut);
  SendToLead(std::move(message));
}

void ShardCore::Impl::OnDurable(ShardId shard, const CutId& cut) {
  if (!recovery_->OnDurable(shard, cut)) return;
  if (cut_begun_ms_ > 0) {
    Count("cut_ms", now_ms_ - cut_begun_ms_);
    lead_->cuts().OnMeasured(static_cast<double>(now_ms_ - cut_begun_ms_) / 1e3,
                             lead_->step_seconds());
  }
  v1::ShardMessage message = NewMessage();
  *message.mutable_watermark()->mutable_cut() = ToProto(*recovery_->watermark());
  Broadcast(message);
  KeepFrom(*recovery_->watermark());
}

// One read at a time, and none sooner than the rate allows.
void ShardCore::Impl::OnScrubDone(const BackendDone& done) {
  if (!done.status.ok()) {
    if (absl::IsDataLoss(done.status)) Count("scrub_damage");
    return FailOperation("scrub", done.status);
  }
  const ScrubResult& result = std::get<ScrubResult>(done.value);
  Count("scrubbed_bytes", result.bytes);
  if (result.ends_pass) Count("scrub_passes");
  const uint64_t after_ms = result.bytes == 0
                                ? kScrubPauseMs
                                : result.bytes * 1000 / options_.limits.scrub_bytes_per_second;
  scrub_timer_ = TimerId(next_timer_++);
  Emit(effect::SetTimer{*scrub_timer_, std::max<uint64_t>(after_ms, 1)});
}

// Every shard has the cut: older ones are not needed any more.
void ShardCore::Impl::KeepFrom(const CutId& cut) {
  Emit(effect::Start{OpId(0), backend_call::Recycle{cut}});
}

}  // namespace eps
