// The part of CutEngine that opens a job, recovers and restores its cuts, and scrubs them.

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/backends/cut_engine.h"
#include "storage/backends/cut_scan.h"
#include "storage/cuts/job_folders.h"
#include "storage/disk/block_bytes.h"

namespace eps::durable {
namespace {

uint64_t NewNonce() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// ResourceExhausted unless two files of `bytes` fit beside `created`, which becomes `folder`.
absl::Status CheckRoom(Disk* disk, const std::string& created, const std::string& folder,
                       uint64_t bytes) {
  EPS_ASSIGN_OR_RETURN(const uint64_t free_bytes, disk->FreeBytes(created));
  if (2 * bytes <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      folder, ": two slots of ", bytes, " bytes want ", 2 * bytes, " bytes, and ", free_bytes,
      " are free: ", 2 * bytes - free_bytes,
      " are missing; free them, choose another storage.path or more storage.drives, or spread the "
      "job over more servers (servers.addresses)"));
}

// Creates the job's files in folders that have other names until they are complete. Those never
// hold state, so the remains of an interrupted creation are removed. A folder with the job's own
// name, which the catalogue does not name, may hold state and is set aside.
absl::Status CreateExtents(const DurableOptions& options, Disk* disk, const ExtentLayout& layout,
                           const ExtentIdentity& identity) {
  const Extents::Folders folders = options.job_folders();
  for (const std::string& folder : folders) {
    EPS_RETURN_IF_ERROR(RemoveJobFolder(disk, NewFolderOf(folder)));
    EPS_RETURN_IF_ERROR(disk->CreateFolder(NewFolderOf(folder)));
    EPS_RETURN_IF_ERROR(SetAside(disk, folder).status());
  }
  Extents::Folders created;
  for (const std::string& folder : options.slot_folders()) {
    created.push_back(NewFolderOf(folder));
    const uint64_t bytes = layout.file_bytes(static_cast<uint32_t>(created.size() - 1));
    EPS_RETURN_IF_ERROR(CheckRoom(disk, created.back(), folder, bytes));
  }
  EPS_RETURN_IF_ERROR(Extents::Create(disk, created, layout, identity));
  for (const std::string& folder : folders) {
    EPS_RETURN_IF_ERROR(disk->Rename(NewFolderOf(folder), folder));
  }
  return absl::OkStatus();
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
                     " found: give each server its own storage.path, and list the servers in their "
                     "previous order (servers.addresses)"));
  }
  if (known.spec_text == spec.ToText()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder, ": the job here has another specification: ",
                   FirstDifference(known.spec_text, spec.ToText())));
}

}  // namespace

// ---- Opening.

absl::Status CutEngine::FindOrCreate(const JobSpec& spec, Disk* disk, const DurableOptions& options,
                                     ExtentIdentity* identity) {
  const ExtentLayout& layout = files_->layout();
  const absl::StatusOr<CatalogueJob> known = catalogue_->FindJob(job_);
  if (known.ok()) {
    identity->nonce = known->extents_nonce;
    return CheckKnown(*known, spec, ShardId(identity->shard), identity->shards, options.folder);
  }
  if (!absl::IsNotFound(known.status())) return known.status();
  identity->nonce = NewNonce();
  EPS_RETURN_IF_ERROR(options.NameOtherJobs(CreateExtents(options, disk, layout, *identity)));
  CatalogueJob job;
  job.id = identity->job;
  job.spec_text = spec.ToText();
  job.shard = identity->shard;
  job.shards = identity->shards;
  job.extents_nonce = identity->nonce;
  job.placement = layout.placement();
  return catalogue_->AddJob(job);
}

absl::Status CutEngine::LoadCuts() {
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

absl::Status CutEngine::Open(const JobSpec& spec, ShardId shard, uint32_t shards,
                             const DurableOptions& options) {
  ExtentIdentity identity;
  identity.job = job_ = spec.id();
  identity.digest = spec.Digest();
  identity.shard = shard.value();
  identity.shards = shards;
  catalogue_ = options.catalogue;
  Disk* const disk = options.blocking();
  EPS_RETURN_IF_ERROR(FindOrCreate(spec, disk, options, &identity));
  const ExtentLayout& layout = files_->layout();
  const Extents::Folders folders = options.slot_folders();
  EPS_RETURN_IF_ERROR(Extents::CheckHeaders(disk, folders, layout, identity));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<Extents> extents,
                       Extents::Open(options.disk, folders, layout, identity));
  files_->Open(std::move(extents));
  EPS_RETURN_IF_ERROR(LoadCuts());
  const absl::Status opened =
      log_.Open(options, disk, identity, in_flight_->executor(Lane::kClient), account_, in_flight_);
  if (opened.ok()) return opened;
  const absl::StatusOr<uint64_t> free_bytes = disk->FreeBytes(options.folder);
  // Otherwise the memory did not suffice.
  const bool no_room = free_bytes.ok() && *free_bytes < ContributionLog::FileBytes(options.log);
  return no_room ? options.NameOtherJobs(opened) : opened;
}

// ---- Recovery.

void CutEngine::Do(OpId op, const PromiseRequest& request) {
  OnJournal(op, [this, op, term = request.term] {
    const absl::Status promised = catalogue_->Promise(job_, term);
    if (!promised.ok()) return Refuse(op, promised);
    {
      MutexLock lock(&mu_);
      term_ = std::max(term_, term);
    }
    in_flight_->Complete(op, BackendValue());
  });
}

// The progress of a RecoverRequest.
struct CutEngine::CutChecks {
  const std::shared_ptr<RecoveredState> state = std::make_shared<RecoveredState>();
  std::deque<CatalogueCut> left;
  absl::Status damage;  // of the last damaged cut
};

void CutEngine::Do(OpId op, const RecoverRequest&) {
  OnJournal(op, [this, op] {
    const absl::StatusOr<CatalogueJob> known = catalogue_->FindJob(job_);
    if (!known.ok()) return Refuse(op, known.status());
    absl::StatusOr<std::vector<CatalogueCut>> cuts = catalogue_->Cuts(job_);
    if (!cuts.ok()) return Refuse(op, cuts.status());
    auto checks = std::make_shared<CutChecks>();
    checks->state->promised = known->promised;
    const absl::Status log = log_.Find(*cuts, &checks->state->log);
    if (!log.ok()) return Refuse(op, log);
    checks->left.assign(cuts->begin(), cuts->end());
    CheckCuts(op, checks);
  });
}

void CutEngine::CheckCuts(OpId op, const std::shared_ptr<CutChecks>& checks) {
  RecoveredState* const state = checks->state.get();
  if (checks->left.empty()) {
    if (state->cuts.empty() && !checks->damage.ok()) return Refuse(op, checks->damage);
    if (state->log.has_value() && state->log->base != state->cuts.back().id) state->log.reset();
    return in_flight_->Complete(op,
                                BackendValue(std::shared_ptr<const RecoveredState>(checks->state)));
  }
  const CatalogueCut cut = checks->left.front();
  checks->left.pop_front();
  CutScan::Start(files_, tier_, cut, CutScan::Purpose::kCheck,
                 [=](const std::vector<ExtentFooter>&, const absl::Status& status) {
                   if (!status.ok() && !absl::IsDataLoss(status)) return Refuse(op, status);
                   EndCheck(checks.get(), cut, status);
                   CheckCuts(op, checks);
                 });
}

void CutEngine::EndCheck(CutChecks* checks, const CatalogueCut& cut, const absl::Status& status) {
  MutexLock lock(&mu_);
  // A scrub may have dropped the cut.
  const SlotTable::KeptCut* const kept = table_.FindDurable(cut.border.id);
  if (status.ok() && kept != nullptr) {
    checks->state->cuts.push_back(cut.border);
    return;
  }
  if (kept != nullptr) table_.Drop(kept);
  if (!status.ok()) {
    checks->damage = status;
    checks->state->damage = std::string(status.message());
  }
  EPS_LOG_WARN("storage: the " << NameOf(cut.border.id) << " is damaged and counts as absent"
                               << (status.ok() ? "" : ": ") << status.message());
}

void CutEngine::Do(OpId op, const RestoreRequest& request) {
  {
    MutexLock lock(&mu_);
    EPS_CHECK_MSG(cuts_.empty(), "Restore without Quiesce: a cut is in progress");
  }
  EPS_CHECK_MSG(chunks_->IsIdle(), "Restore without Quiesce");
  OnJournal(op, [this, op, request] {
    log_.Forget();
    if (!request.base.has_value()) {
      const absl::Status forgotten = Forget(request.term);
      if (!forgotten.ok()) return Refuse(op, forgotten);
      return in_flight_->Complete(op, BackendValue(std::make_shared<const CutContent>()));
    }
    CatalogueCut record;
    const absl::Status begun = BeginRestore(*request.base, request.term, &record);
    if (!begun.ok()) return Refuse(op, begun);
    CutScan::Start(
        files_, tier_, record, CutScan::Purpose::kAdopt,
        [this, op, record](const std::vector<ExtentFooter>& footers, const absl::Status& status) {
          if (!status.ok()) return RefuseRestore(op, record.border.id, status);
          EndChunks(op, record, footers);
        });
  });
}

absl::Status CutEngine::Forget(Term term) {
  EPS_RETURN_IF_ERROR(catalogue_->Forget(job_, term));
  {
    MutexLock lock(&mu_);
    table_.DropAll();
    table_.ForgetContent();
    term_ = term;
  }
  chunks_->SetAll(std::nullopt);
  return absl::OkStatus();
}

absl::Status CutEngine::BeginRestore(const CutId& base, Term term, CatalogueCut* record) {
  {
    MutexLock lock(&mu_);
    const SlotTable::KeptCut* const kept = table_.FindDurable(base);
    if (kept == nullptr) {
      return absl::NotFoundError(absl::StrCat(files_->extents()->residual_file(0)->path(),
                                              ": this shard has no ", NameOf(base)));
    }
    *record = kept->record;
  }
  EPS_RETURN_IF_ERROR(catalogue_->Restore(job_, base, term));
  // Only the catalogue knows the number of records of a cut that this process made.
  EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueCut> left, catalogue_->Cuts(job_));
  record->records = left.back().records;
  {
    MutexLock lock(&mu_);
    table_.DropAbove(base);
    table_.ForgetContent();
    term_ = term;
  }
  chunks_->SetAll(std::nullopt);
  const uint64_t room = files_->layout().residual_bytes();
  if (record->residuals_bytes <= room) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(NameOf(base), ": residuals of ", record->residuals_bytes,
                                          " bytes, and room for ", room));
}

void CutEngine::EndChunks(OpId op, const CatalogueCut& record,
                          const std::vector<ExtentFooter>& footers) {
  {
    MutexLock lock(&mu_);
    for (uint32_t i = 0; i < footers.size(); ++i) {
      table_.SetContent(i, {record.slot[i] ? 1u : 0u, footers[i]});
    }
  }
  chunks_->SetAll(record.border.version);
  auto reader = std::make_shared<ResidualReader>(record.residuals_bytes, account_);
  files_->staging()->Acquire(
      Lane::kBackground, [=](uint8_t* buffer) { ReadResiduals(op, record, reader, buffer, 0); });
}

void CutEngine::ReadResiduals(OpId op, const CatalogueCut& record,
                              const std::shared_ptr<ResidualReader>& reader, uint8_t* buffer,
                              uint64_t at) {
  const auto end = [=](absl::StatusOr<std::vector<CutResidual>> outcome) {
    files_->staging()->Release(buffer);
    if (outcome.ok()) return CompleteRestore(op, record, std::move(*outcome));
    RefuseRestore(op, record.border.id, OfResiduals(record.residuals_slot, outcome.status()));
  };
  if (reader->left() == 0) {
    const absl::Status whole = CheckResidualsCrc32c(record.residuals_crc32c, reader->crc32c());
    if (!whole.ok()) return end(whole);
    return end(std::move(*reader).Finish());
  }
  const uint64_t bytes = std::min(reader->left(), files_->staging()->buffer_bytes());
  const uint64_t size = RoundUpTo(bytes, kDiskBlock);
  files_->extents()
      ->residual_file(record.residuals_slot)
      ->Read(files_->layout().residual_offset() + at, absl::MakeSpan(buffer, size),
             in_flight_->Posted(Lane::kBackground, [=](absl::Status status) {
               if (status.ok()) status = reader->Take(absl::MakeConstSpan(buffer, bytes));
               if (!status.ok()) return end(std::move(status));
               ReadResiduals(op, record, reader, buffer, at + size);
             }));
}

// Forgets a damaged cut if an older one is kept, so that the next start continues from that one.
void CutEngine::RefuseRestore(OpId op, const CutId& base, const absl::Status& status) {
  journal_.Post([this, op, base, status] {
    std::optional<CutId> older;
    Term term;
    {
      MutexLock lock(&mu_);
      const SlotTable::KeptCut* const kept = table_.YoungestBelow(base);
      if (kept != nullptr) older = kept->record.border.id;
      term = term_;
    }
    if (!absl::IsDataLoss(status) || !older.has_value()) return Refuse(op, status);
    const absl::Status forgotten = catalogue_->Restore(job_, *older, term);
    if (!forgotten.ok()) return Refuse(op, forgotten);
    Refuse(op, absl::DataLossError(
                   absl::StrCat(status.message(), "; this server forgets the ", NameOf(base),
                                ": start it again to continue from the ", NameOf(*older))));
  });
}

void CutEngine::CompleteRestore(OpId op, const CatalogueCut& record,
                                std::vector<CutResidual> residuals) {
  absl::StatusOr<std::vector<std::string>> records = catalogue_->Records(job_, record);
  if (!records.ok()) return Refuse(op, records.status());
  auto content = std::make_shared<CutContent>();
  content->residuals = std::move(residuals);
  content->records = *std::move(records);
  in_flight_->Complete(op, BackendValue(std::shared_ptr<const CutContent>(std::move(content))));
}

// ---- Scrub.

void CutEngine::Do(OpId op, const ScrubRequest&) {
  in_flight_->Begin();
  in_flight_->executor(Lane::kBackground)->Post([this, op] {
    const absl::Status failed = in_flight_->failure();
    if (!failed.ok()) return in_flight_->Complete(op, failed);
    std::optional<ScrubCursor::Place> place;
    {
      MutexLock lock(&mu_);
      place = scrub_.Next(table_, files_->staging()->buffer_bytes());
    }
    if (!place.has_value()) return in_flight_->Complete(op, BackendValue(ScrubResult()));
    if (place->residuals_bytes > 0) return ScrubResiduals(op, *place);
    ScrubChunk(op, *place);
  });
}

void CutEngine::ScrubChunk(OpId op, const ScrubCursor::Place& place) {
  const auto end = [this, op, place](const absl::StatusOr<ExtentFooter>& footer) {
    absl::Status status = footer.status();
    const Version expected = ContentVersion(files_->chunk(place.index), place.version);
    if (status.ok() && footer->version != expected) {
      status = files_->extents()->Damaged(
          place.slot, place.index,
          absl::StrCat(NameOf(place.cut), " expected at version ", expected.value(), ", version ",
                       footer->version.value(), " found"));
    }
    ScrubResult result;
    result.bytes = files_->layout().area(place.index).bytes();
    result.ends_pass = place.ends_pass;
    EndScrub(op, place, result, std::move(status));
  };
  tier_->Check(place.slot, place.index, Extents::Part::kAll, end);
}

void CutEngine::ScrubResiduals(OpId op, const ScrubCursor::Place& place) {
  files_->staging()->Acquire(Lane::kBackground, [=](uint8_t* buffer) {
    const uint64_t size = RoundUpTo(place.residuals_bytes, kDiskBlock);
    files_->extents()
        ->residual_file(place.slot)
        ->Read(files_->layout().residual_offset() + place.residuals_at,
               absl::MakeSpan(buffer, size),
               in_flight_->Posted(Lane::kBackground, [=](absl::Status status) {
                 ScrubResult result;
                 result.bytes = place.residuals_bytes;
                 if (status.ok()) {
                   const absl::string_view bytes(reinterpret_cast<const char*>(buffer),
                                                 place.residuals_bytes);
                   const uint32_t crc32c = Crc32c(bytes, place.residuals_crc32c);
                   MutexLock lock(&mu_);
                   status = scrub_.EndResiduals(table_, place, crc32c, &result.ends_pass);
                   if (!status.ok()) status = OfResiduals(place.slot, status);
                 }
                 files_->staging()->Release(buffer);
                 EndScrub(op, place, result, std::move(status));
               }));
  });
}

void CutEngine::EndScrub(OpId op, const ScrubCursor::Place& place, ScrubResult result,
                         absl::Status status) {
  if (absl::IsDataLoss(status)) status = Contain(place, status, &result);
  if (!status.ok()) return Refuse(op, status);
  in_flight_->Complete(op, BackendValue(std::move(result)));
}

absl::Status CutEngine::Contain(const ScrubCursor::Place& place, const absl::Status& damage,
                                ScrubResult* result) {
  bool is_state = false;
  {
    MutexLock lock(&mu_);
    const SlotTable::KeptCut* const cut = table_.FindDurable(place.cut);
    // A slot that was freed in the meantime may be in the middle of a write.
    if (cut == nullptr) return absl::OkStatus();
    const std::optional<SlotTable::Content>& content = table_.content(place.index);
    is_state = place.residuals_bytes == 0 && content.has_value() && content->slot == place.slot &&
               content->footer.version == ContentVersion(files_->chunk(place.index), place.version);
    if (is_state && tier_->in_slots(place.index)) return damage;
    // An older cut stays until the next cut: recycling to a cut that is not kept frees nothing.
    if (table_.YoungestBelow(place.cut) != nullptr) table_.Drop(cut);
  }
  EPS_LOG_WARN(
      "storage: scrub: " << damage.message() << "; the state is intact "
                         << (is_state || place.residuals_bytes > 0 ? "in memory" : "elsewhere")
                         << ", and the next cut replaces the " << NameOf(place.cut));
  result->damage = damage;
  if (is_state) chunks_->Rewrite(place.index);
  chunks_->Retry();
  MutexLock lock(&mu_);
  AdvanceCuts();
  return absl::OkStatus();
}

absl::Status CutEngine::OfResiduals(uint32_t slot, const absl::Status& status) const {
  return absl::Status(
      status.code(),
      absl::StrCat(files_->extents()->residual_file(slot)->path(), ": residuals at offset ",
                   files_->layout().residual_offset(), ": ", status.message()));
}

}  // namespace eps::durable
