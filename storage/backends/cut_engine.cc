#include "storage/backends/cut_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "storage/disk/block_bytes.h"

namespace eps::durable {
namespace {

// Returns true for errors after which the content of disk and catalogue is unknown. Other errors
// are refusals, which changed nothing.
bool IsFatal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kInvalidArgument:
      return false;
    default:
      return true;
  }
}

}  // namespace

CutEngine::CutEngine(SlotFiles* files, Tier* tier, CutChunks* chunks, InFlight* in_flight,
                     MemoryAccount* account)
    : files_(files),
      tier_(tier),
      chunks_(chunks),
      in_flight_(in_flight),
      account_(account),
      journal_(in_flight->executor(Lane::kBackground)),
      table_(static_cast<uint32_t>(files->layout().areas().size())) {
  in_flight_->set_on_failure([this](const absl::Status& failure) { OnFailure(failure); });
}

void CutEngine::Submit(OpId op, DurableRequest request) {
  std::visit([this, op](auto& r) { Do(op, std::move(r)); }, request);
}

// ---- Cuts.

void CutEngine::Do(OpId op, CutRequest request) {
  auto cut = std::make_unique<PendingCut>();
  PendingCut* const raw = cut.get();
  cut->op = op;
  cut->request = std::move(request);
  cut->residuals.emplace(cut->request.content.residuals);
  in_flight_->Begin();
  {
    MutexLock lock(&mu_);
    cut->kept = table_.Begin(cut->request.border);
    cut->uncaptured = table_.chunks();
    cut->footers.resize(table_.chunks());
    cuts_.push_back(std::move(cut));
  }
  chunks_->Capture(raw);
  MutexLock lock(&mu_);
  AdvanceCuts();
}

void CutEngine::Captured(PendingCut* cut, uint32_t index, const absl::Status& status) {
  MutexLock lock(&mu_);
  if (status.ok()) {
    table_.Capture(cut->kept, index);
    cut->footers[index] = table_.content(index)->footer.crc32c;
  } else if (cut->status.ok()) {
    cut->status = absl::Status(
        status.code(), absl::StrCat(NameOf(cut->request.border.id), ": ", status.message()));
  }
  if (--cut->uncaptured == 0) AdvanceCuts();
}

bool CutEngine::Wants(const PendingCut& cut) {
  if (in_flight_->quiescing() || !in_flight_->failure().ok()) return false;
  MutexLock lock(&mu_);
  return cut.status.ok();
}

void CutEngine::AdvanceCuts() {
  if (cuts_.empty()) return;
  PendingCut* const cut = cuts_.front().get();
  if (cut == nullptr || cut->running || cut->uncaptured > 0) return;
  const absl::Status failure = in_flight_->failure();
  absl::Status status = failure.ok() ? cut->status : failure;
  if (status.ok() && cut->residuals->bytes() > 0) {
    bool placed = false;
    status = PlaceResiduals(cut, &placed);
    if (status.ok() && !placed) return;
  }
  cut->running = true;
  in_flight_->executor(Lane::kBackground)->Post([this, cut, status] {
    if (status.ok()) {
      RunCut(cut);
    } else {
      EndCut(status);
    }
  });
}

absl::Status CutEngine::PlaceResiduals(PendingCut* cut, bool* placed) {
  const uint64_t bytes = cut->residuals->bytes();
  const uint64_t room = files_->layout().residual_bytes();
  if (bytes > room) {
    return absl::InvalidArgumentError(absl::StrCat(NameOf(cut->request.border.id),
                                                   ": residuals of ", bytes,
                                                   " bytes, and room for ", room, " in a slot"));
  }
  const std::optional<uint32_t> slot = table_.ResidualTarget();
  if (!slot.has_value()) {
    return in_flight_->quiescing() ? Cancelled(NameOf(cut->request.border.id)) : absl::OkStatus();
  }
  table_.TakeResiduals(cut->kept, *slot, bytes);
  *placed = true;
  return absl::OkStatus();
}

void CutEngine::RunCut(PendingCut* cut) {
  if (cut->residuals->bytes() == 0) return SyncSlots(cut, 0);
  files_->staging()->Acquire(Lane::kBackground,
                             [this, cut](uint8_t* buffer) { WriteResiduals(cut, buffer, 0); });
}

void CutEngine::WriteResiduals(PendingCut* cut, uint8_t* buffer, uint64_t at) {
  const uint32_t slot = cut->kept->record.residuals_slot;
  if (cut->residuals->left() == 0) {
    files_->staging()->Release(buffer);
    cut->kept->record.residuals_crc32c = cut->residuals->crc32c();
    files_->MarkDirty(slot, ExtentLayout::kResidualDrive);
    return SyncSlots(cut, 0);
  }
  const size_t filled =
      cut->residuals->Fill(absl::MakeSpan(buffer, files_->staging()->buffer_bytes()));
  const size_t size = RoundUpTo(filled, kDiskBlock);
  std::fill(buffer + filled, buffer + size, uint8_t{0});
  files_->extents()->residual_file(slot)->Write(
      files_->layout().residual_offset() + at, absl::MakeConstSpan(buffer, size),
      in_flight_->Posted(Lane::kBackground,
                         [this, cut, buffer, at, size](const absl::Status& status) {
                           if (status.ok()) return WriteResiduals(cut, buffer, at + size);
                           files_->staging()->Release(buffer);
                           EndCut(status);
                         }));
}

void CutEngine::SyncSlots(PendingCut* cut, uint32_t slot) {
  if (slot < 2) {
    return tier_->Sync(slot, [this, cut, slot](const absl::Status& status) {
      if (status.ok()) return SyncSlots(cut, slot + 1);
      EndCut(status);
    });
  }
  // Counted, because the backend may end with the flush.
  in_flight_->Begin();
  // The cut may rely on entries that were logged before it, so sync them first.
  log_.Flush([this, cut](const absl::Status& flushed) {
    if (!flushed.ok()) return EndCut(flushed);
    journal_.Post([this, cut] { RecordCut(cut); });
  });
  // CancelCuts may have run before the flush came.
  if (in_flight_->quiescing()) log_.CancelFlushes(Cancelled("a cut"));
  in_flight_->End();
}

void CutEngine::RecordCut(PendingCut* cut) {
  const TraceSpan span(kWriteCutSpan, {cut->request.border.id.step.value()});
  const absl::Status failed = in_flight_->failure();
  if (!failed.ok()) return EndCut(failed);
  cut->kept->record.extents_crc32c = CrcOfFooters(cut->footers);
  EndCut(log_.AddCut(cut->kept->record, cut->request.content.records));
}

void CutEngine::EndCut(const absl::Status& status) {
  if (IsFatal(status) && !absl::IsCancelled(status)) in_flight_->Fail(status);
  std::unique_ptr<PendingCut> cut;
  {
    MutexLock lock(&mu_);
    cut = std::move(cuts_.front());
    if (status.ok()) {
      cut->kept->durable = true;
    } else {
      table_.Drop(cut->kept);
    }
  }
  const OpId op = cut->op;
  cut.reset();  // frees the residuals before the outcome is known
  if (status.ok()) {
    in_flight_->Report(op, BackendValue());
  } else {
    in_flight_->Report(op, status);
  }
  {
    MutexLock lock(&mu_);
    cuts_.pop_front();
  }
  chunks_->Retry();
  {
    MutexLock lock(&mu_);
    AdvanceCuts();
  }
  in_flight_->End();
}

void CutEngine::CancelCuts() {
  log_.CancelFlushes(Cancelled("a cut"));
  MutexLock lock(&mu_);
  for (const std::unique_ptr<PendingCut>& cut : cuts_) {
    if (cut == nullptr || cut->running || !cut->status.ok()) continue;
    cut->status = Cancelled(NameOf(cut->request.border.id));
  }
  AdvanceCuts();
}

void CutEngine::Recycle(CutId oldest_kept) {
  in_flight_->Begin();
  journal_.Post([this, oldest_kept] {
    bool known = in_flight_->failure().ok();
    {
      // The watermark of an abandoned term names a discarded cut and frees nothing.
      MutexLock lock(&mu_);
      known = known && table_.FindDurable(oldest_kept) != nullptr;
    }
    // Remove the records first: once a slot is overwritten, the cut that needs it is incomplete.
    const absl::Status removed =
        known ? catalogue_->RemoveCutsBelow(job_, oldest_kept) : absl::OkStatus();
    if (!removed.ok()) in_flight_->Fail(removed);
    if (known && removed.ok()) {
      {
        MutexLock lock(&mu_);
        table_.DropBelow(oldest_kept);
      }
      chunks_->Retry();
      MutexLock lock(&mu_);
      AdvanceCuts();
    }
    in_flight_->End();
  });
}

void CutEngine::Do(OpId op, const QuiesceRequest&) {
  in_flight_->Quiesce(op, [this] {
    CancelCuts();
    chunks_->Retry();
  });
}

// ---- The log.

void CutEngine::Do(OpId op, const StartLogRequest& request) {
  log_.Start(request.log.id);
  OnJournal(op, [this, op, log = request.log] {
    const absl::Status recorded = log_.Record(log);
    if (!recorded.ok()) return Refuse(op, recorded);
    in_flight_->Complete(op, BackendValue());
  });
}

void CutEngine::Do(OpId op, LogRequest request) {
  in_flight_->Begin();
  log_.Append(std::move(request.entry), [this, op](const absl::Status& status) {
    if (status.ok()) return in_flight_->Complete(op, BackendValue());
    in_flight_->Fail(status);
    in_flight_->Complete(op, status);
  });
}

void CutEngine::Do(OpId op, const ReadLogRequest&) {
  OnJournal(op, [this, op] {
    const absl::Status begun =
        log_.ReadNext([this, op](absl::StatusOr<std::vector<LogEntry>> entries) {
          if (!entries.ok()) return Refuse(op, entries.status());
          in_flight_->Complete(
              op, BackendValue(std::make_shared<const std::vector<LogEntry>>(*std::move(entries))));
        });
    if (!begun.ok()) Refuse(op, begun);
  });
}

// ---- Helpers of all operations.

std::optional<uint32_t> CutEngine::Target(uint32_t index) {
  MutexLock lock(&mu_);
  return table_.Target(index);
}

std::optional<SlotTable::Content> CutEngine::content(uint32_t index) {
  MutexLock lock(&mu_);
  return table_.content(index);
}

void CutEngine::SetContent(uint32_t index, const SlotTable::Content& content) {
  MutexLock lock(&mu_);
  table_.SetContent(index, content);
}

Term CutEngine::term() {
  MutexLock lock(&mu_);
  return term_;
}

void CutEngine::OnFailure(const absl::Status& failure) {
  log_.Fail(failure);
  chunks_->Retry();
  MutexLock lock(&mu_);
  AdvanceCuts();
}

void CutEngine::Refuse(OpId op, const absl::Status& status) {
  if (IsFatal(status)) in_flight_->Fail(status);
  in_flight_->Complete(op, status);
}

void CutEngine::OnJournal(OpId op, std::function<void()> task) {
  in_flight_->Begin();
  journal_.Post([this, op, task = std::move(task)] {
    const absl::Status failed = in_flight_->failure();
    if (failed.ok()) {
      task();
    } else {
      in_flight_->Complete(op, failed);
    }
  });
}

}  // namespace eps::durable
