#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "storage/nvme_backend_impl.h"

namespace eps::nvme {
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

// Whether damage was found: the rest needs no reading.
bool IsOver(Scan* scan) {
  MutexLock lock(&scan->mu);
  return !scan->status.ok();
}

}  // namespace

std::string NameOf(const CutId& id) {
  return absl::StrCat("cut of step ", id.step.value(), ", term ", id.term.value());
}

absl::Status Cancelled(absl::string_view what) {
  return absl::CancelledError(
      absl::StrCat(what, " waited for a slot of an older cut, and the job goes back or ends"));
}

// ---- Cuts.

void NvmeBackend::Cut(OpId op, CutRequest request) {
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
  for (uint32_t i = 0; i < table_.chunks(); ++i) {
    auto capture = std::make_unique<Operation>();
    capture->capture = raw;
    lines_[i].waiting.push_back(std::move(capture));
    Advance(i);
  }
  AdvanceCuts();
}

void NvmeBackend::Capture(PendingCut* cut, uint32_t index) {
  const std::optional<SlotTable::Content>& content = table_.content(index);
  const absl::Status at_border = ChunkCompute::CheckVersion(
      chunk(index),
      content.has_value() ? std::make_optional(content->footer.version) : std::optional<Version>(),
      cut->request.border.version);
  if (at_border.ok()) {
    table_.Capture(cut->kept, index);
    cut->footers[index] = content->footer.crc32c;
  } else if (cut->status.ok()) {
    cut->status = absl::FailedPreconditionError(
        absl::StrCat(NameOf(cut->request.border.id), ": ", at_border.message()));
  }
  if (--cut->uncaptured == 0) AdvanceCuts();
}

void NvmeBackend::AdvanceCuts() {
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

absl::Status NvmeBackend::PlaceResiduals(PendingCut* cut, bool* placed) {
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

void NvmeBackend::RunCut(PendingCut* cut) {
  if (cut->residuals->bytes() == 0) return SyncSlots(cut, 0);
  staging_->Acquire([this, cut](uint8_t* buffer) { WriteResiduals(cut, buffer, 0); });
}

void NvmeBackend::WriteResiduals(PendingCut* cut, uint8_t* buffer, uint64_t at) {
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
  const size_t size = (filled + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
  std::fill(buffer + filled, buffer + size, uint8_t{0});
  extents_->file(slot)->Write(layout_.residual_offset() + at, absl::MakeConstSpan(buffer, size),
                              Posted([this, cut, buffer, at, size](absl::Status status) {
                                if (status.ok()) return WriteResiduals(cut, buffer, at + size);
                                staging_->Release(buffer);
                                EndCut(std::move(status));
                              }));
}

void NvmeBackend::SyncSlots(PendingCut* cut, uint32_t slot) {
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
  journal_.Post([this, cut] { RecordCut(cut); });
}

void NvmeBackend::RecordCut(PendingCut* cut) {
  const absl::Status failed = failure();
  if (!failed.ok()) return EndCut(failed);
  cut->kept->record.extents_crc32c = CrcOfFooters(cut->footers);
  EndCut(catalogue_->AddCut(job_, cut->kept->record, cut->request.content.records));
}

void NvmeBackend::EndCut(absl::Status status) {
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
  BeginParked();
  AdvanceCuts();
  Ended();
}

void NvmeBackend::CancelCuts() {
  for (const std::unique_ptr<PendingCut>& cut : cuts_) {
    if (cut == nullptr || cut->running || !cut->status.ok()) continue;
    cut->status = Cancelled(NameOf(cut->request.border.id));
  }
  AdvanceCuts();
}

void NvmeBackend::Recycle(CutId oldest_kept) {
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
      BeginParked();
      AdvanceCuts();
    }
    Ended();
  });
}

// ---- Recovery.

void NvmeBackend::OnJournal(OpId op, std::function<void()> task) {
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

void NvmeBackend::Quiesce(OpId op) {
  MutexLock lock(&mu_);
  ++pending_;
  quiescing_ = true;
  quiesces_.push_back(op);
  CancelCuts();
  BeginParked();
  CompleteQuiesces();
}

void NvmeBackend::Promise(OpId op, Term term) {
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

void NvmeBackend::Refuse(OpId op, const absl::Status& status) {
  if (IsFatal(status)) Fail(status);
  Complete(op, status);
}

void NvmeBackend::Recover(OpId op) {
  OnJournal(op, [this, op] {
    const absl::StatusOr<CatalogueJob> known = catalogue_->FindJob(job_);
    if (!known.ok()) return Refuse(op, known.status());
    absl::StatusOr<std::vector<CatalogueCut>> cuts = catalogue_->Cuts(job_);
    if (!cuts.ok()) return Refuse(op, cuts.status());
    auto state = std::make_shared<RecoveredState>();
    state->promised = known->promised;
    CheckCuts(op, std::move(state), std::move(*cuts));
  });
}

void NvmeBackend::CheckCuts(OpId op, std::shared_ptr<RecoveredState> state,
                            std::vector<CatalogueCut> left) {
  if (left.empty()) {
    return Complete(op, BackendValue(std::shared_ptr<const RecoveredState>(std::move(state))));
  }
  auto scan = std::make_shared<Scan>();
  scan->cut = left.front();
  scan->part = Extents::Part::kFooter;
  left.erase(left.begin());
  scan->done = [this, op, state, left = std::move(left), border = scan->cut.border](
                   const std::vector<ExtentFooter>&, const absl::Status& status) {
    if (!status.ok()) return Refuse(op, status);
    state->cuts.push_back(border);
    CheckCuts(op, state, left);
  };
  StartScan(scan);
}

void NvmeBackend::StartScan(const std::shared_ptr<Scan>& scan) {
  const auto chunks = static_cast<uint32_t>(layout_.areas().size());
  scan->footers.resize(chunks);
  {
    MutexLock lock(&scan->mu);
    scan->left = chunks + 1;
  }
  for (uint32_t i = 0; i < chunks; ++i) {
    staging_->Acquire([this, scan, i](uint8_t* buffer) {
      if (IsOver(scan.get())) {
        staging_->Release(buffer);
        return EndScanned(scan.get(), absl::OkStatus());
      }
      extents_->Read(scan->cut.slot[i] ? 1 : 0, i, scan->part, buffer,
                     Posted([this, scan, i, buffer](absl::Status status) {
                       if (status.ok()) status = CheckScanned(scan.get(), i, buffer);
                       staging_->Release(buffer);
                       EndScanned(scan.get(), status);
                     }));
    });
  }
  executor_->Post([this, scan] { EndScanned(scan.get(), absl::OkStatus()); });
}

absl::Status NvmeBackend::CheckScanned(Scan* scan, uint32_t index, const uint8_t* buffer) const {
  const uint32_t slot = scan->cut.slot[index] ? 1 : 0;
  EPS_ASSIGN_OR_RETURN(scan->footers[index], extents_->Check(slot, index, scan->part, buffer));
  const Version found = scan->footers[index].version;
  if (found == scan->cut.border.version) return absl::OkStatus();
  return extents_->Damaged(
      slot, index,
      absl::StrCat(NameOf(scan->cut.border.id), " expected at version ",
                   scan->cut.border.version.value(), ", version ", found.value(), " found"));
}

void NvmeBackend::EndScanned(Scan* scan, const absl::Status& status) {
  absl::Status outcome;
  {
    MutexLock lock(&scan->mu);
    if (scan->status.ok()) scan->status = status;
    if (--scan->left > 0) return;
    outcome = scan->status;
  }
  std::vector<uint32_t> crcs;
  for (const ExtentFooter& footer : scan->footers) crcs.push_back(footer.crc32c);
  const uint32_t crc = CrcOfFooters(crcs);
  if (outcome.ok() && crc != scan->cut.extents_crc32c) {
    outcome =
        absl::DataLossError(absl::StrCat(extents_->file(0)->path(), ", ", extents_->file(1)->path(),
                                         ": footers of ", NameOf(scan->cut.border.id), ": CRC32C ",
                                         absl::Hex(scan->cut.extents_crc32c, absl::kZeroPad8),
                                         " expected, ", absl::Hex(crc, absl::kZeroPad8), " found"));
  }
  // Moved out: it may hold the scan's owner.
  const auto done = std::move(scan->done);
  done(scan->footers, outcome);
}

void NvmeBackend::Restore(OpId op, CutId base, Term term) {
  {
    MutexLock lock(&mu_);
    EPS_CHECK_MSG(cuts_.empty(), "Restore without Quiesce: a cut is on its way");
    for (const Line& line : lines_) {
      EPS_CHECK_MSG(line.begun == nullptr && line.waiting.empty(), "Restore without Quiesce");
    }
  }
  OnJournal(op, [this, op, base, term] {
    auto scan = std::make_shared<Scan>();
    const absl::Status begun = BeginRestore(base, term, &scan->cut);
    if (!begun.ok()) return Refuse(op, begun);
    scan->part = Extents::Part::kAll;
    const CatalogueCut record = scan->cut;
    scan->done = [this, op, record](const std::vector<ExtentFooter>& footers,
                                    const absl::Status& status) {
      if (!status.ok()) return Refuse(op, status);
      {
        MutexLock lock(&mu_);
        for (uint32_t i = 0; i < footers.size(); ++i) {
          table_.SetContent(i, {record.slot[i] ? 1u : 0u, footers[i]});
        }
      }
      auto reader = std::make_shared<ResidualReader>(record.residuals_bytes, account_);
      staging_->Acquire([=](uint8_t* buffer) { ReadResiduals(op, record, reader, buffer, 0); });
    };
    StartScan(scan);
  });
}

absl::Status NvmeBackend::BeginRestore(const CutId& base, Term term, CatalogueCut* record) {
  {
    MutexLock lock(&mu_);
    const SlotTable::KeptCut* const kept = table_.FindDurable(base);
    if (kept == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(extents_->file(0)->path(), ": this shard has no ", NameOf(base)));
    }
    *record = kept->record;
  }
  EPS_RETURN_IF_ERROR(catalogue_->Restore(job_, base, term));
  MutexLock lock(&mu_);
  table_.DropAbove(base);
  table_.ForgetContent();
  term_ = term;
  if (record->residuals_bytes <= layout_.residual_bytes()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(NameOf(base), ": residuals of ", record->residuals_bytes,
                                          " bytes, and room for ", layout_.residual_bytes()));
}

void NvmeBackend::CompleteRestore(OpId op, const CatalogueCut& record,
                                  std::vector<CutResidual> residuals) {
  absl::StatusOr<std::vector<std::string>> records = catalogue_->Records(job_, record);
  if (!records.ok()) return Refuse(op, records.status());
  auto content = std::make_shared<CutContent>();
  content->residuals = std::move(residuals);
  content->records = *std::move(records);
  Complete(op, BackendValue(std::shared_ptr<const CutContent>(std::move(content))));
}

void NvmeBackend::ReadResiduals(OpId op, const CatalogueCut& record,
                                std::shared_ptr<ResidualReader> reader, uint8_t* buffer,
                                uint64_t at) {
  AsyncFile* const file = extents_->file(record.residuals_slot);
  const auto end = [=](absl::StatusOr<std::vector<CutResidual>> outcome) {
    staging_->Release(buffer);
    if (outcome.ok()) return CompleteRestore(op, record, std::move(*outcome));
    Refuse(op,
           absl::Status(outcome.status().code(),
                        absl::StrCat(file->path(), ": residuals at offset ",
                                     layout_.residual_offset(), ": ", outcome.status().message())));
  };
  if (reader->left() == 0) {
    if (reader->crc32c() != record.residuals_crc32c) {
      return end(absl::DataLossError(
          absl::StrCat("CRC32C ", absl::Hex(record.residuals_crc32c, absl::kZeroPad8),
                       " expected, ", absl::Hex(reader->crc32c(), absl::kZeroPad8), " found")));
    }
    return end(std::move(*reader).Finish());
  }
  const uint64_t bytes = std::min(reader->left(), staging_->buffer_bytes());
  const uint64_t size = (bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
  file->Read(layout_.residual_offset() + at, absl::MakeSpan(buffer, size),
             Posted([=](absl::Status status) {
               if (status.ok()) status = reader->Take(absl::MakeConstSpan(buffer, bytes));
               if (!status.ok()) return end(std::move(status));
               ReadResiduals(op, record, reader, buffer, at + size);
             }));
}

}  // namespace eps::nvme
