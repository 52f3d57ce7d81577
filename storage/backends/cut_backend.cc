#include "storage/backends/cut_backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "storage/disk/block_bytes.h"

namespace eps::durable {
namespace {

// Whether nothing is known any more of what the disk or the catalogue holds; else the call was
// refused and changed nothing.
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

std::string NameOf(const CutId& id) {
  return absl::StrCat("cut of step ", id.step.value(), ", term ", id.term.value());
}

absl::Status Cancelled(absl::string_view what) {
  return absl::CancelledError(
      absl::StrCat(what, " waited for a cut or its slot, and the job goes back or ends"));
}

CutBackend::CutBackend(const ExtentLayout& layout, Executor* executor, MemoryAccount* account,
                       BackendDoneFn done)
    : layout_(layout),
      executor_(executor),
      account_(account),
      done_(std::move(done)),
      table_(static_cast<uint32_t>(layout.areas().size())),
      journal_(executor) {
  for (uint32_t i = 0; i < layout_.areas().size(); ++i) {
    EPS_CHECK_MSG(index_.emplace(chunk(i).id.value(), i).second,
                  "chunk " << chunk(i).id << " twice");
  }
}

CutBackend::~CutBackend() {
  if (charged_bytes_ > 0) account_->Release(MemoryKind::kScratch, charged_bytes_);
}

void CutBackend::Drain() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  MutexLock lock(&mu_);
  quiescing_ = true;
  CancelCuts();
  BeginWaiting();
  while (pending_ > 0) {
    const bool in_time = idle_.WaitUntil(&mu_, deadline);
    EPS_CHECK_MSG(in_time || pending_ == 0, pending_ << " operations never ended");
  }
}

// ---- Cuts.

void CutBackend::Cut(OpId op, CutRequest request) {
  auto cut = std::make_unique<PendingCut>();
  PendingCut* const raw = cut.get();
  cut->op = op;
  cut->request = std::move(request);
  cut->residuals.emplace(cut->request.content.residuals);
  MutexLock lock(&mu_);
  ++pending_;
  cut->kept = table_.Begin(cut->request.border);
  cut->uncaptured = table_.chunks();
  cut->footers.resize(table_.chunks());
  cuts_.push_back(std::move(cut));
  Capture(raw);
  AdvanceCuts();
}

void CutBackend::Captured(PendingCut* cut, uint32_t index, const absl::Status& status) {
  if (status.ok()) {
    table_.Capture(cut->kept, index);
    cut->footers[index] = table_.content(index)->footer.crc32c;
  } else if (cut->status.ok()) {
    cut->status = absl::Status(
        status.code(), absl::StrCat(NameOf(cut->request.border.id), ": ", status.message()));
  }
  if (--cut->uncaptured == 0) AdvanceCuts();
}

void CutBackend::AdvanceCuts() {
  if (cuts_.empty()) return;
  PendingCut* const cut = cuts_.front().get();  // null while its outcome is told
  if (cut == nullptr || cut->running || cut->uncaptured > 0) return;
  absl::Status status = failure_.ok() ? cut->status : failure_;
  if (status.ok() && cut->residuals->bytes() > 0) {
    bool placed = false;
    status = PlaceResiduals(cut, &placed);
    if (status.ok() && !placed) return;
  }
  cut->running = true;
  executor_->Post([this, cut, status] {
    if (status.ok()) {
      RunCut(cut);
    } else {
      EndCut(status);
    }
  });
}

absl::Status CutBackend::PlaceResiduals(PendingCut* cut, bool* placed) {
  const uint64_t bytes = cut->residuals->bytes();
  if (bytes > layout_.residual_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(cut->request.border.id), ": residuals of ", bytes,
                     " bytes, and room for ", layout_.residual_bytes(), " in a slot"));
  }
  const std::optional<uint32_t> slot = table_.ResidualTarget();
  if (!slot.has_value()) {
    return quiescing_ ? Cancelled(NameOf(cut->request.border.id)) : absl::OkStatus();
  }
  table_.TakeResiduals(cut->kept, *slot, bytes);
  *placed = true;
  return absl::OkStatus();
}

void CutBackend::RunCut(PendingCut* cut) {
  if (cut->residuals->bytes() == 0) return SyncSlots(cut, 0);
  staging_->Acquire([this, cut](uint8_t* buffer) { WriteResiduals(cut, buffer, 0); });
}

void CutBackend::WriteResiduals(PendingCut* cut, uint8_t* buffer, uint64_t at) {
  const uint32_t slot = cut->kept->record.residuals_slot;
  if (cut->residuals->left() == 0) {
    staging_->Release(buffer);
    cut->kept->record.residuals_crc32c = cut->residuals->crc32c();
    {
      MutexLock lock(&mu_);
      dirty_[slot] = true;
    }
    return SyncSlots(cut, 0);
  }
  const size_t filled = cut->residuals->Fill(absl::MakeSpan(buffer, staging_->buffer_bytes()));
  const size_t size = RoundUpTo(filled, kDiskBlock);
  std::fill(buffer + filled, buffer + size, uint8_t{0});
  extents_->file(slot)->Write(layout_.residual_offset() + at, absl::MakeConstSpan(buffer, size),
                              Posted([this, cut, buffer, at, size](absl::Status status) {
                                if (status.ok()) return WriteResiduals(cut, buffer, at + size);
                                staging_->Release(buffer);
                                EndCut(std::move(status));
                              }));
}

void CutBackend::SyncSlots(PendingCut* cut, uint32_t slot) {
  for (; slot < 2; ++slot) {
    bool dirty = false;
    {
      // What is written from here on belongs to a later cut, or is synced needlessly.
      MutexLock lock(&mu_);
      dirty = std::exchange(dirty_[slot], false);
    }
    if (!dirty) continue;
    extents_->file(slot)->Sync(Posted([this, cut, slot](absl::Status status) {
      if (status.ok()) return SyncSlots(cut, slot + 1);
      EndCut(std::move(status));
    }));
    return;
  }
  // What was logged before the cut may stand in for what is not in it.
  const auto record = [this, cut](absl::Status flushed) {
    if (!flushed.ok()) return EndCut(std::move(flushed));
    journal_.Post([this, cut] { RecordCut(cut); });
  };
  if (log_ == nullptr) return record(absl::OkStatus());
  log_->Flush(record);
}

void CutBackend::RecordCut(PendingCut* cut) {
  const absl::Status failed = failure();
  if (!failed.ok()) return EndCut(failed);
  cut->kept->record.extents_crc32c = CrcOfFooters(cut->footers);
  EndCut(AddCut(cut->kept->record, cut->request.content.records));
}

void CutBackend::EndCut(absl::Status status) {
  if (IsFatal(status) && !absl::IsCancelled(status)) Fail(status);
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
  cut.reset();  // the residuals are let go of before the outcome is told
  done_(BackendDone{op, std::move(status), BackendValue(), 0});
  MutexLock lock(&mu_);
  cuts_.pop_front();
  BeginWaiting();
  AdvanceCuts();
  Ended();
}

void CutBackend::CancelCuts() {
  if (log_ != nullptr) log_->CancelFlushes(Cancelled("a cut"));
  for (const std::unique_ptr<PendingCut>& cut : cuts_) {
    if (cut == nullptr || cut->running || !cut->status.ok()) continue;
    cut->status = Cancelled(NameOf(cut->request.border.id));
  }
  AdvanceCuts();
}

void CutBackend::Recycle(CutId oldest_kept) {
  {
    MutexLock lock(&mu_);
    ++pending_;
  }
  journal_.Post([this, oldest_kept] {
    bool known = false;
    {
      // A watermark of a term that was left behind names a cut that is dead: it frees nothing.
      MutexLock lock(&mu_);
      known = failure_.ok() && table_.FindDurable(oldest_kept) != nullptr;
    }
    // The records go first: a cut whose slots are written over is no longer one.
    const absl::Status removed =
        known ? catalogue_->RemoveCutsBelow(job_, oldest_kept) : absl::OkStatus();
    if (!removed.ok()) Fail(removed);
    MutexLock lock(&mu_);
    if (known && removed.ok()) {
      table_.DropBelow(oldest_kept);
      BeginWaiting();
      AdvanceCuts();
    }
    Ended();
  });
}

void CutBackend::Quiesce(OpId op) {
  MutexLock lock(&mu_);
  ++pending_;
  quiescing_ = true;
  quiesces_.push_back(op);
  CancelCuts();
  BeginWaiting();
  CompleteQuiesces();
}

void CutBackend::Promise(OpId op, Term term) {
  OnJournal(op, [this, op, term] {
    const absl::Status promised = catalogue_->Promise(job_, term);
    if (!promised.ok()) return Refuse(op, promised);
    {
      MutexLock lock(&mu_);
      term_ = std::max(term_, term);
    }
    Complete(op, BackendValue());
  });
}

// ---- What all of them use.

absl::Status CutBackend::failure() {
  MutexLock lock(&mu_);
  return failure_;
}

void CutBackend::Fail(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (failure_.ok()) failure_ = status;
  if (log_ != nullptr) log_->Fail(failure_);
  BeginWaiting();
  AdvanceCuts();
}

void CutBackend::Refuse(OpId op, const absl::Status& status) {
  if (IsFatal(status)) Fail(status);
  Complete(op, status);
}

void CutBackend::OnJournal(OpId op, std::function<void()> task) {
  {
    MutexLock lock(&mu_);
    ++pending_;
  }
  journal_.Post([this, op, task = std::move(task)] {
    const absl::Status failed = failure();
    if (failed.ok()) {
      task();
    } else {
      Complete(op, failed);
    }
  });
}

void CutBackend::Complete(OpId op, Outcome outcome, double seconds) {
  if (outcome.ok()) {
    done_(BackendDone{op, absl::OkStatus(), std::move(*outcome), seconds});
  } else {
    done_(BackendDone{op, outcome.status(), BackendValue(), seconds});
  }
  MutexLock lock(&mu_);
  Ended();
}

void CutBackend::Ended() {
  --pending_;
  CompleteQuiesces();
  if (pending_ == 0) idle_.NotifyAll();
}

void CutBackend::CompleteQuiesces() {
  if (quiesces_.empty() || pending_ > quiesces_.size()) return;
  quiescing_ = false;
  for (const OpId op : std::exchange(quiesces_, {})) {
    executor_->Post([this, op] { Complete(op, BackendValue()); });
  }
}

}  // namespace eps::durable
