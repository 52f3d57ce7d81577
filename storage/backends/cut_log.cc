// Of the class in storage/backends/cut_backend.h: the contribution log beside the cuts.

#include <utility>

#include "base/status_macros.h"
#include "storage/backends/cut_backend.h"

namespace eps::durable {

absl::Status CutBackend::OpenLog(Disk* blocking_disk, const DurableOptions& options,
                                 const ExtentIdentity& identity) {
  if (options.log.steps == 0) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const std::optional<CatalogueLog> known, catalogue_->Log(job_));
  EPS_ASSIGN_OR_RETURN(
      log_, ContributionLog::Open(blocking_disk, options.disk, options.folder, identity,
                                  options.log, known.has_value(), executor_, account_,
                                  [this](ContributionLog::Done then) { return Posted(then); }));
  return absl::OkStatus();
}

StateBackend::Caps CutBackend::caps() const {
  Caps caps;
  caps.durable = true;
  caps.log_steps = log_ == nullptr ? 0 : log_->steps();
  return caps;
}

// The log that may be gone on with: that of a process whose last cut is this one's.
absl::Status CutBackend::FindLog(const std::vector<CatalogueCut>& cuts,
                                 std::optional<FoundLog>* found) {
  if (log_ == nullptr || !log_->kept() || cuts.empty()) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const std::optional<CatalogueLog> known, catalogue_->Log(job_));
  if (known.has_value() && known->log.base == cuts.back().border.id) *found = known->log;
  return absl::OkStatus();
}

void CutBackend::StartLog(OpId op, const FoundLog& log) {
  log_->Start(log.id);
  OnJournal(op, [this, op, log] {
    const CatalogueLog record{log, 0};
    const absl::Status set = catalogue_->SetLog(job_, record);
    if (!set.ok()) {
      log_->Fail(set);
      return Refuse(op, set);
    }
    logged_ = record;
    log_->Resume();
    Complete(op, BackendValue());
  });
}

void CutBackend::Log(OpId op, LogEntry entry) {
  {
    MutexLock lock(&mu_);
    ++pending_;
  }
  log_->Append(std::move(entry), [this, op](const absl::Status& status) {
    if (status.ok()) return Complete(op, BackendValue());
    Fail(status);
    Complete(op, status);
  });
}

void CutBackend::ReadLog(OpId op) {
  OnJournal(op, [this, op] {
    if (!logged_.has_value()) {
      const absl::StatusOr<std::optional<CatalogueLog>> known = catalogue_->Log(job_);
      if (!known.ok()) return Refuse(op, known.status());
      if (!known->has_value()) return Refuse(op, absl::NotFoundError("this shard has no log"));
      logged_ = **known;
      log_->Rewind(logged_->log.id, logged_->position);
    }
    log_->ReadNext([this, op](absl::StatusOr<std::vector<LogEntry>> entries) {
      if (!entries.ok()) return Refuse(op, entries.status());
      Complete(op,
               BackendValue(std::make_shared<const std::vector<LogEntry>>(*std::move(entries))));
    });
  });
}

// The commit point of a cut, and of what the log needs no more.
absl::Status CutBackend::AddCut(const CatalogueCut& cut, const std::vector<std::string>& records) {
  if (!logged_.has_value()) return catalogue_->AddCut(job_, cut, records);
  logged_->log.base = cut.border.id;
  logged_->position = log_->PositionBehind(cut.border.id.step);
  EPS_RETURN_IF_ERROR(catalogue_->AddCut(job_, cut, records, &*logged_));
  log_->Release(logged_->position);
  return absl::OkStatus();
}

}  // namespace eps::durable
