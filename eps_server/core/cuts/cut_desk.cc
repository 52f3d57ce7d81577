#include "eps_server/core/cuts/cut_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/core/cuts/recovery.h"
#include "storage/cuts/common_cut.h"

namespace eps {
namespace {

constexpr uint64_t kScrubPauseMs = 10'000;  // while there is no cut to read

}  // namespace

// ---------------------------------------------------------------- cuts

void CutDesk::On(const internal_event::ImportComplete& e) {
  CutBorder border;
  border.id = CutId{Step(e.border.step()), facts_.term};
  border.version = Version(e.border.version());
  border.update = e.border.update();
  border.lagged_norm = e.border.lagged_norm();
  border.loss_scale = LossScaleAfter(facts_.job.spec, e.border);
  Start(border, Import{e.stream, e.border});
}

void CutDesk::On(const internal_event::BorderReached&) {
  if (!facts_.cuts.pending.has_value()) return;
  outbox_->Raise(internal_event::SessionChanged());  // logged before the cut, which lacks it
  TryStart();
}

// The lead's cut holds the records of all steps up to it, and the norm that the next step may be
// clipped by. It waits for what the other shards and the workers report of the step; none of that
// depends on a later step.
void CutDesk::TryStart() {
  if (!facts_.cuts.pending.has_value()) return;
  CutBorder border = *facts_.cuts.pending;
  if (facts_.job.is_lead()) {
    if (Step(queries_.RecordedStep()) < border.id.step) return;
    border.lagged_norm = queries_.NormOf(border.id.step.value());
  }
  Start(border, std::nullopt);
  outbox_->Raise(internal_event::CutStarted());
}

void CutDesk::Start(const CutBorder& border, std::optional<Import> import) {
  CutRequest request;
  request.border = border;
  request.content.residuals = facts_.residuals.All();
  request.content.records.swap(unsaved_records_);
  begun_ms_[border.id] = facts_.now_ms;
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kCut, 0, border.version, border.id));
  const OpId op = outbox_->StartOp(std::move(request));
  cuts_[op] = Cut{border.id, std::move(import), wants_cut_};
}

void CutDesk::OnCut(const Cut& cut, const BackendDone& done) {
  if (!done.status.ok()) {
    return outbox_->Raise(
        internal_event::OpFailed{absl::StrCat("the cut of ", CutName(cut.id)), done.status});
  }
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kDurable, 0, Version(facts_.version), cut.id));
  outbox_->Count("cuts");
  last_durable_ = cut.id;
  if (cut.heals) WantCut(false);
  if (cut.import.has_value()) {
    return outbox_->Raise(internal_event::ImportDurable{cut.import->stream, cut.import->border});
  }
  TellDurable();
}

void CutDesk::TellDurable() {
  if (!last_durable_.has_value()) return;
  v1::ShardMessage message = facts_.NewMessage();
  *message.mutable_durable()->mutable_cut() = ToProto(*last_durable_);
  outbox_->ToLead(std::move(message));
}

void CutDesk::On(const internal_event::LeadReached&) { TellDurable(); }

void CutDesk::On(const internal_event::Recorded& e) {
  if (facts_.job.durable()) unsaved_records_.push_back(e.record.SerializeAsString());
}

void CutDesk::On(const internal_event::CutEverywhere& e) {
  if (const auto begun = begun_ms_.find(e.cut); begun != begun_ms_.end()) {
    const uint64_t took_ms = facts_.now_ms - begun->second;
    outbox_->Count("cut_ms", took_ms);
    outbox_->Raise(internal_event::CutMeasured{static_cast<double>(took_ms) / 1e3});
  }
  begun_ms_.erase(begun_ms_.begin(), begun_ms_.upper_bound(e.cut));
  v1::ShardMessage message = facts_.NewMessage();
  *message.mutable_watermark()->mutable_cut() = ToProto(e.cut);
  outbox_->ToOthers(message);
  KeepFrom(e.cut);
}

void CutDesk::KeepFrom(const CutId& cut) { outbox_->Emit(effect::Recycle{cut}); }

// ---------------------------------------------------------------- scrubs

void CutDesk::On(const internal_event::StepOpened&) {
  const bool scrubs = facts_.job.durable() && facts_.job.limits.scrub_bytes_per_second > 0;
  if (scrubs && !scrub_.has_value() && !scrub_timer_.has_value()) StartScrub();
}

void CutDesk::StartScrub() { scrub_ = outbox_->StartOp(ScrubRequest()); }

// Waits as long as the rate demands before it reads more.
void CutDesk::OnScrubbed(const BackendDone& done) {
  if (!done.status.ok()) {
    if (absl::IsDataLoss(done.status)) outbox_->Count("scrub_damage");
    return outbox_->Raise(internal_event::OpFailed{"scrub", done.status});
  }
  const ScrubResult& result = std::get<ScrubResult>(done.value);
  outbox_->Count("scrubbed_bytes", result.bytes);
  if (!result.damage.ok()) {
    outbox_->Count("scrub_damage");
    WantCut(true);
  }
  if (result.ends_pass) outbox_->Count("scrub_passes");
  const uint64_t after_ms = result.bytes == 0
                                ? kScrubPauseMs
                                : result.bytes * 1000 / facts_.job.limits.scrub_bytes_per_second;
  scrub_timer_ = outbox_->StartTimer(std::max<uint64_t>(after_ms, 1));
}

void CutDesk::WantCut(bool wanted) {
  if (wants_cut_ != wanted) outbox_->Raise(internal_event::CutWanted{wanted});
  wants_cut_ = wanted;
}

void CutDesk::On(const event::Timer& e) {
  if (scrub_timer_ != e.id) return;
  scrub_timer_.reset();
  if (facts_.state != v1::JOB_STATE_FAILED) StartScrub();
}

bool CutDesk::On(const event::OpDone& e) {
  if (scrub_ == e.done.op) {
    scrub_.reset();
    OnScrubbed(e.done);
    return true;
  }
  const auto it = cuts_.find(e.done.op);
  if (it == cuts_.end()) return false;
  const Cut cut = std::move(it->second);
  cuts_.erase(it);
  OnCut(cut, e.done);
  return true;
}

void CutDesk::EndTerm() {
  begun_ms_.clear();
  if (scrub_timer_.has_value()) outbox_->Emit(effect::ClearTimer{*scrub_timer_});
}

}  // namespace eps
