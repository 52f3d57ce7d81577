// Of the class in storage/backends/cut_backend.h: how it is opened, and how it goes back to a cut.

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "storage/disk/block_bytes.h"
#include "storage/backends/cut_backend.h"
#include "storage/cuts/extent_format.h"

namespace eps::durable {

struct Scan {
  CatalogueCut cut;
  Extents::Part part = Extents::Part::kFooter;
  bool restores = false;  // what was read is handed to Restored
  std::vector<ExtentFooter> footers;
  std::function<void(const std::vector<ExtentFooter>&, const absl::Status&)> done;
  Mutex mu;
  size_t left EPS_GUARDED_BY(mu) = 0;
  absl::Status status EPS_GUARDED_BY(mu);
};

namespace {

// Whether damage was found: the rest needs no reading.
bool IsOver(Scan* scan) {
  MutexLock lock(&scan->mu);
  return !scan->status.ok();
}

uint64_t NewNonce() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

absl::Status CheckCrcOfResiduals(const CatalogueCut& record, uint32_t crc32c) {
  if (crc32c == record.residuals_crc32c) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("CRC32C ", absl::Hex(record.residuals_crc32c, absl::kZeroPad8), " expected, ",
                   absl::Hex(crc32c, absl::kZeroPad8), " found"));
}

// `status`, with what may be freed if there is no room on the disk.
absl::Status NameOtherJobs(const absl::Status& status, const DurableOptions& options) {
  if (!absl::IsResourceExhausted(status) || options.other_jobs.empty()) return status;
  return absl::ResourceExhaustedError(absl::StrCat(status.message(), options.other_jobs));
}

// Removes what an attempt to create the job left, and makes its files.
absl::Status CreateExtents(const DurableOptions& options, Disk* disk, const ExtentLayout& layout,
                           const ExtentIdentity& identity) {
  EPS_RETURN_IF_ERROR(disk->CreateFolder(options.folder));
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk->List(options.folder));
  for (const char* const ours : extent_format::kFileNames) {
    if (std::find(names.begin(), names.end(), ours) == names.end()) continue;
    EPS_RETURN_IF_ERROR(disk->Remove(absl::StrCat(options.folder, "/", ours)));
  }
  const uint64_t wanted = 2 * layout.file_bytes();
  EPS_ASSIGN_OR_RETURN(const uint64_t free_bytes, disk->FreeBytes(options.folder));
  if (wanted > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options.folder, ": two slots of ", layout.file_bytes(), " bytes want ", wanted,
        " bytes, and ", free_bytes, " are free: ", wanted - free_bytes,
        " are missing; free them, choose another storage.path, or spread the job over more "
        "servers (servers.addresses)"));
  }
  return Extents::Create(disk, options.folder, layout, identity);
}

absl::Status CheckKnown(const CatalogueJob& known, const JobSpec& spec, ShardId shard,
                        uint32_t shards, const std::string& folder) {
  if (known.shards != shards) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": this state was made for ", known.shards, " servers, and the job has ", shards,
        " (servers.addresses); eps checkpoint reshard STATE --servers=", shards,
        " --out=NEW makes a state folder for ", shards));
  }
  if (known.shard != shard.value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": shard ", shard.value(), " of ", shards, " expected, shard ",
                     known.shard, " of ", known.shards,
                     " found: give each server its own storage.path, and the servers in the order "
                     "of before (servers.addresses)"));
  }
  if (known.spec_text == spec.ToText()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder, ": the job here has another specification: ",
                   FirstDifference(known.spec_text, spec.ToText())));
}

}  // namespace

absl::Status CutBackend::Reserve(uint64_t staging_bytes) {
  const uint64_t buffer_bytes = std::max(layout_.largest_area_bytes(), kDiskBlock + uint64_t{0});
  if (staging_bytes < buffer_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("storage.staging: ", staging_bytes,
                     " bytes, but one chunk with its state has ", buffer_bytes,
                     "; give at least that, or four times as much for speed, or "
                     "lower training.chunk_elements"));
  }
  const uint64_t buffers =
      std::min<uint64_t>(staging_bytes / buffer_bytes, std::max<size_t>(layout_.areas().size(), 1));
  const absl::Status charged = account_->TryCharge(MemoryKind::kScratch, buffers * buffer_bytes);
  if (!charged.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        buffers, " staging buffers of ", buffer_bytes, " bytes do not fit: ", charged.message(),
        "; raise servers.memory_limit or lower storage.staging"));
  }
  charged_bytes_ = buffers * buffer_bytes;
  EPS_ASSIGN_OR_RETURN(staging_, StagingPool::New(buffer_bytes, buffers, executor_));
  return absl::OkStatus();
}

absl::Status CutBackend::Adopt(std::unique_ptr<Extents> extents) {
  extents_ = std::move(extents);
  EPS_ASSIGN_OR_RETURN(const CatalogueJob known, catalogue_->FindJob(job_));
  EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueCut> cuts, catalogue_->Cuts(job_));
  MutexLock lock(&mu_);
  term_ = known.promised;
  for (const CatalogueCut& cut : cuts) {
    if (cut.slot.size() != table_.chunks() || cut.residuals_slot > 1) {
      return absl::DataLossError(absl::StrCat(NameOf(cut.border.id), ": ", table_.chunks(),
                                              " chunks expected, ", cut.slot.size(), " found"));
    }
    table_.Adopt(cut);
  }
  return absl::OkStatus();
}

absl::Status CutBackend::Open(const JobSpec& spec, ShardId shard, uint32_t shards,
                              const DurableOptions& options) {
  ExtentIdentity identity;
  identity.job = job_ = spec.id();
  identity.digest = spec.Digest();
  identity.shard = shard.value();
  identity.shards = shards;
  catalogue_ = options.catalogue;
  EPS_RETURN_IF_ERROR(Reserve(options.staging_bytes));
  Disk* const disk =
      options.blocking_disk_or_null != nullptr ? options.blocking_disk_or_null : options.disk;
  const absl::StatusOr<CatalogueJob> known = options.catalogue->FindJob(identity.job);
  if (known.ok()) {
    EPS_RETURN_IF_ERROR(CheckKnown(*known, spec, shard, shards, options.folder));
    identity.nonce = known->extents_nonce;
  } else if (absl::IsNotFound(known.status())) {
    identity.nonce = NewNonce();
    EPS_RETURN_IF_ERROR(NameOtherJobs(CreateExtents(options, disk, layout_, identity), options));
    CatalogueJob job;
    job.id = identity.job;
    job.spec_text = spec.ToText();
    job.shard = identity.shard;
    job.shards = shards;
    job.extents_nonce = identity.nonce;
    EPS_RETURN_IF_ERROR(options.catalogue->AddJob(job));
  } else {
    return known.status();
  }
  EPS_RETURN_IF_ERROR(Extents::CheckHeaders(disk, options.folder, layout_, identity));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<Extents> extents,
                       Extents::Open(options.disk, options.folder, layout_, identity));
  EPS_RETURN_IF_ERROR(Adopt(std::move(extents)));
  const absl::Status opened = OpenLog(disk, options, identity);
  if (opened.ok()) return opened;
  const absl::StatusOr<uint64_t> free_bytes = disk->FreeBytes(options.folder);
  // Else it was memory that did not suffice.
  const bool no_room = free_bytes.ok() && *free_bytes < ContributionLog::FileBytes(options.log);
  return no_room ? NameOtherJobs(opened, options) : opened;
}

// ---- Recovery.

void CutBackend::Recover(OpId op) {
  OnJournal(op, [this, op] {
    const absl::StatusOr<CatalogueJob> known = catalogue_->FindJob(job_);
    if (!known.ok()) return Refuse(op, known.status());
    absl::StatusOr<std::vector<CatalogueCut>> cuts = catalogue_->Cuts(job_);
    if (!cuts.ok()) return Refuse(op, cuts.status());
    auto state = std::make_shared<RecoveredState>();
    state->promised = known->promised;
    const absl::Status log = FindLog(*cuts, &state->log);
    if (!log.ok()) return Refuse(op, log);
    CheckCuts(op, std::move(state), std::move(*cuts));
  });
}

void CutBackend::CheckCuts(OpId op, std::shared_ptr<RecoveredState> state,
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

void CutBackend::StartScan(const std::shared_ptr<Scan>& scan) {
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
                       if (status.ok() && scan->restores) {
                         Restored(i, scan->footers[i].version, buffer);
                       }
                       staging_->Release(buffer);
                       EndScanned(scan.get(), status);
                     }));
    });
  }
  executor_->Post([this, scan] { EndScanned(scan.get(), absl::OkStatus()); });
}

absl::Status CutBackend::CheckScanned(Scan* scan, uint32_t index, const uint8_t* buffer) {
  const uint32_t slot = scan->cut.slot[index] ? 1 : 0;
  EPS_ASSIGN_OR_RETURN(scan->footers[index], extents_->Check(slot, index, scan->part, buffer));
  const Version found = scan->footers[index].version;
  if (found == scan->cut.border.version) return absl::OkStatus();
  return extents_->Damaged(
      slot, index,
      absl::StrCat(NameOf(scan->cut.border.id), " expected at version ",
                   scan->cut.border.version.value(), ", version ", found.value(), " found"));
}

void CutBackend::EndScanned(Scan* scan, const absl::Status& status) {
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

void CutBackend::Restore(OpId op, std::optional<CutId> base, Term term) {
  {
    MutexLock lock(&mu_);
    EPS_CHECK_MSG(cuts_.empty(), "Restore without Quiesce: a cut is on its way");
    EPS_CHECK_MSG(!HasOperations(), "Restore without Quiesce");
  }
  OnJournal(op, [this, op, base, term] {
    logged_.reset();
    if (!base.has_value()) {
      const absl::Status forgotten = Forget(term);
      if (!forgotten.ok()) return Refuse(op, forgotten);
      return Complete(op, BackendValue(std::make_shared<const CutContent>()));
    }
    auto scan = std::make_shared<Scan>();
    const absl::Status begun = BeginRestore(*base, term, &scan->cut);
    if (!begun.ok()) return Refuse(op, begun);
    scan->part = Extents::Part::kAll;
    scan->restores = true;
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

absl::Status CutBackend::Forget(Term term) {
  EPS_RETURN_IF_ERROR(catalogue_->Forget(job_, term));
  MutexLock lock(&mu_);
  table_.DropAll();
  table_.ForgetContent();
  term_ = term;
  return absl::OkStatus();
}

absl::Status CutBackend::BeginRestore(const CutId& base, Term term, CatalogueCut* record) {
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
  // The number of records is the catalogue's: a cut that this process made does not know it.
  EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueCut> left, catalogue_->Cuts(job_));
  record->records = left.back().records;
  MutexLock lock(&mu_);
  table_.DropAbove(base);
  table_.ForgetContent();
  term_ = term;
  if (record->residuals_bytes <= layout_.residual_bytes()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(NameOf(base), ": residuals of ", record->residuals_bytes,
                                          " bytes, and room for ", layout_.residual_bytes()));
}

void CutBackend::CompleteRestore(OpId op, const CatalogueCut& record,
                                 std::vector<CutResidual> residuals) {
  absl::StatusOr<std::vector<std::string>> records = catalogue_->Records(job_, record);
  if (!records.ok()) return Refuse(op, records.status());
  auto content = std::make_shared<CutContent>();
  content->residuals = std::move(residuals);
  content->records = *std::move(records);
  Complete(op, BackendValue(std::shared_ptr<const CutContent>(std::move(content))));
}

void CutBackend::ReadResiduals(OpId op, const CatalogueCut& record,
                               std::shared_ptr<ResidualReader> reader, uint8_t* buffer,
                               uint64_t at) {
  AsyncFile* const file = extents_->file(record.residuals_slot);
  const auto end = [=](absl::StatusOr<std::vector<CutResidual>> outcome) {
    staging_->Release(buffer);
    if (outcome.ok()) return CompleteRestore(op, record, std::move(*outcome));
    Refuse(op, OfResiduals(record.residuals_slot, outcome.status()));
  };
  if (reader->left() == 0) {
    const absl::Status whole = CheckCrcOfResiduals(record, reader->crc32c());
    if (!whole.ok()) return end(whole);
    return end(std::move(*reader).Finish());
  }
  const uint64_t bytes = std::min(reader->left(), staging_->buffer_bytes());
  const uint64_t size = RoundUpTo(bytes, kDiskBlock);
  file->Read(layout_.residual_offset() + at, absl::MakeSpan(buffer, size),
             Posted([=](absl::Status status) {
               if (status.ok()) status = reader->Take(absl::MakeConstSpan(buffer, bytes));
               if (!status.ok()) return end(std::move(status));
               ReadResiduals(op, record, reader, buffer, at + size);
             }));
}

// ---- Scrub.

std::optional<CutBackend::ScrubPlace> CutBackend::NextToScrub() {
  MutexLock lock(&mu_);
  const SlotTable::KeptCut* cut = table_.OldestFrom(scrub_cut_);
  if (cut == nullptr) cut = table_.OldestFrom(CutId());
  if (cut == nullptr || table_.chunks() == 0) return std::nullopt;
  const CatalogueCut& record = cut->record;
  const CutId id = record.border.id;
  if (id != scrub_cut_) {
    scrub_cut_ = id;
    scrub_index_ = 0;
  }
  ScrubPlace place;
  place.cut = id;
  place.version = record.border.version;
  if (scrub_index_ == table_.chunks()) {
    place.slot = record.residuals_slot;
    place.residuals_at = scrub_residuals_at_;
    place.residuals_crc32c = scrub_residuals_crc32c_;
    place.residuals_bytes =
        std::min(record.residuals_bytes - scrub_residuals_at_, staging_->buffer_bytes());
    return place;
  }
  place.index = scrub_index_++;
  place.slot = record.slot[place.index] ? 1 : 0;
  if (scrub_index_ == table_.chunks()) {
    scrub_residuals_at_ = 0;
    scrub_residuals_crc32c_ = 0;
    if (record.residuals_bytes == 0) place.ends_pass = EndScrubOf(id);
  }
  return place;
}

bool CutBackend::EndScrubOf(const CutId& cut) {
  scrub_cut_ = CutId{cut.step, cut.term.Next()};
  scrub_index_ = 0;
  return table_.OldestFrom(scrub_cut_) == nullptr;
}

void CutBackend::Scrub(OpId op) {
  {
    MutexLock lock(&mu_);
    ++pending_;
  }
  staging_->Acquire([this, op](uint8_t* buffer) {
    const absl::Status failed = failure();
    const std::optional<ScrubPlace> place = failed.ok() ? NextToScrub() : std::nullopt;
    if (!place.has_value()) {
      staging_->Release(buffer);
      if (!failed.ok()) return Complete(op, failed);
      return Complete(op, BackendValue(ScrubResult()));
    }
    const auto read = Posted([this, op, place = *place, buffer](absl::Status status) {
      Scrubbed(op, place, buffer, std::move(status));
    });
    if (place->residuals_bytes == 0) {
      extents_->Read(place->slot, place->index, Extents::Part::kAll, buffer, read);
    } else {
      const uint64_t size = RoundUpTo(place->residuals_bytes, kDiskBlock);
      extents_->file(place->slot)
          ->Read(layout_.residual_offset() + place->residuals_at, absl::MakeSpan(buffer, size),
                 read);
    }
  });
}

void CutBackend::Scrubbed(OpId op, const ScrubPlace& place, uint8_t* buffer, absl::Status status) {
  ScrubResult result;
  result.ends_pass = place.ends_pass;
  const bool of_residuals = place.residuals_bytes > 0;
  result.bytes = of_residuals ? place.residuals_bytes : layout_.area(place.index).bytes();
  if (status.ok()) {
    status = of_residuals ? CheckScrubbedResiduals(place, buffer, &result.ends_pass)
                          : CheckScrubbedChunk(place, buffer);
  }
  staging_->Release(buffer);
  if (absl::IsDataLoss(status)) {
    // A slot that was let go of meanwhile may be in the middle of a write.
    MutexLock lock(&mu_);
    if (table_.FindDurable(place.cut) == nullptr) status = absl::OkStatus();
  }
  if (!status.ok()) return Refuse(op, status);
  Complete(op, BackendValue(result));
}

absl::Status CutBackend::CheckScrubbedChunk(const ScrubPlace& place, const uint8_t* buffer) const {
  EPS_ASSIGN_OR_RETURN(const ExtentFooter footer,
                       extents_->Check(place.slot, place.index, Extents::Part::kAll, buffer));
  if (footer.version == place.version) return absl::OkStatus();
  return extents_->Damaged(
      place.slot, place.index,
      absl::StrCat(NameOf(place.cut), " expected at version ", place.version.value(), ", version ",
                   footer.version.value(), " found"));
}

absl::Status CutBackend::CheckScrubbedResiduals(const ScrubPlace& place, const uint8_t* buffer,
                                                bool* ends_pass) {
  const absl::string_view bytes(reinterpret_cast<const char*>(buffer), place.residuals_bytes);
  const uint32_t crc32c = Crc32c(bytes, place.residuals_crc32c);
  MutexLock lock(&mu_);
  const SlotTable::KeptCut* const cut = table_.FindDurable(place.cut);
  const bool is_next = scrub_cut_ == place.cut && scrub_index_ == table_.chunks() &&
                       scrub_residuals_at_ == place.residuals_at;
  if (cut == nullptr || !is_next) return absl::OkStatus();
  scrub_residuals_at_ += place.residuals_bytes;
  scrub_residuals_crc32c_ = crc32c;
  if (scrub_residuals_at_ < cut->record.residuals_bytes) return absl::OkStatus();
  *ends_pass = EndScrubOf(place.cut);
  return OfResiduals(place.slot, CheckCrcOfResiduals(cut->record, crc32c));
}

absl::Status CutBackend::OfResiduals(uint32_t slot, const absl::Status& status) const {
  return absl::Status(status.code(),
                      absl::StrCat(extents_->file(slot)->path(), ": residuals at offset ",
                                   layout_.residual_offset(), ": ", status.message()));
}

}  // namespace eps::durable
