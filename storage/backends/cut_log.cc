#include "storage/backends/cut_log.h"

#include <utility>

#include "base/status_macros.h"

namespace eps::durable {

absl::Status CutLog::Open(const DurableOptions& options, Disk* blocking_disk,
                          const ExtentIdentity& identity, Executor* executor,
                          MemoryAccount* account, InFlight* in_flight) {
  catalogue_ = options.catalogue;
  job_ = identity.job;
  if (options.log.steps == 0) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const std::optional<CatalogueLog> known, catalogue_->Log(job_));
  EPS_ASSIGN_OR_RETURN(log_,
                       ContributionLog::Open(blocking_disk, options.disk, options.folder, identity,
                                             options.log, known.has_value(), executor, account,
                                             [in_flight](ContributionLog::Done then) {
                                               return in_flight->Posted(Lane::kClient, then);
                                             }));
  return absl::OkStatus();
}

void CutLog::Start(const LogId& id) { log_->Start(id); }

void CutLog::Append(LogEntry entry, ContributionLog::Done done) {
  log_->Append(std::move(entry), std::move(done));
}

void CutLog::Flush(ContributionLog::Done done) {
  if (log_ == nullptr) return done(absl::OkStatus());
  log_->Flush(std::move(done));
}

void CutLog::CancelFlushes(const absl::Status& why) {
  if (log_ != nullptr) log_->CancelFlushes(why);
}

void CutLog::Fail(const absl::Status& status) {
  if (log_ != nullptr) log_->Fail(status);
}

absl::Status CutLog::Find(const std::vector<CatalogueCut>& cuts, std::optional<FoundLog>* found) {
  if (log_ == nullptr || !log_->kept() || cuts.empty()) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const std::optional<CatalogueLog> known, catalogue_->Log(job_));
  if (known.has_value() && known->log.base == cuts.back().border.id) *found = known->log;
  return absl::OkStatus();
}

absl::Status CutLog::Record(const FoundLog& log) {
  const CatalogueLog record{log, 0};
  const absl::Status set = catalogue_->SetLog(job_, record);
  if (!set.ok()) {
    log_->Fail(set);
    return set;
  }
  logged_ = record;
  log_->Resume();
  return absl::OkStatus();
}

absl::Status CutLog::AddCut(const CatalogueCut& cut, const std::vector<std::string>& records) {
  if (!logged_.has_value()) return catalogue_->AddCut(job_, cut, records);
  logged_->log.base = cut.border.id;
  logged_->position = log_->PositionBehind(cut.border.id.step);
  EPS_RETURN_IF_ERROR(catalogue_->AddCut(job_, cut, records, &*logged_));
  log_->Release(logged_->position);
  return absl::OkStatus();
}

absl::Status CutLog::ReadNext(ContributionLog::Page done) {
  if (!logged_.has_value()) {
    EPS_ASSIGN_OR_RETURN(const std::optional<CatalogueLog> known, catalogue_->Log(job_));
    if (!known.has_value()) return absl::NotFoundError("this shard has no log");
    logged_ = *known;
    log_->Rewind(logged_->log.id, logged_->position);
  }
  log_->ReadNext(std::move(done));
  return absl::OkStatus();
}

}  // namespace eps::durable
