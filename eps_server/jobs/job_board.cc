#include "eps_server/jobs/job_board.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "eps_server/jobs/job_rules.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

size_t TextBytes(const std::string& config,
                 const google::protobuf::Map<std::string, std::string>& labels) {
  size_t bytes = config.size();
  for (const auto& label : labels) bytes += label.first.size() + label.second.size();
  return bytes;
}

std::string HolderText(const v1::Job& job) {
  return absl::StrCat("the driver on ", job.driver().host().empty() ? "?" : job.driver().host(),
                      " has it (lease generation ", job.driver().generation(), ")");
}

absl::Status HasEndedError(const v1::Job& job) {
  return absl::FailedPreconditionError(absl::StrCat("job ", job.name(), " has ended: it is ",
                                                    PhaseName(job.phase()), " with exit code ",
                                                    job.result().exit_code()));
}

// Returns whether the driver of the request has the lease.
bool HoldsLease(const v1::Job& job, const v1::ReportJobRequest& request) {
  return job.uid() == request.uid() && job.driver().driver_nonce() == request.driver_nonce() &&
         job.driver().generation() == request.lease_generation();
}

// Returns whether the request repeats the one that gave the lease back.
bool RepeatsTheEnd(const BoardRecord& record, const v1::ReportJobRequest& request) {
  const v1::Job& job = record.job;
  return request.ended() && !record.lease_expired && job.driver().driver_nonce().empty() &&
         job.uid() == request.uid() && record.last_driver == request.driver_nonce() &&
         job.driver().generation() == request.lease_generation() &&
         (request.phase() == v1::JOB_PHASE_UNSPECIFIED || request.phase() == job.phase());
}

// Takes the reported progress over. The last checkpoint stays if the report has none, or an older
// one of the same driver: reports may arrive late. Returns whether the checkpoint changed.
bool TakeProgressOf(const v1::ReportJobRequest& request, BoardRecord* record) {
  if (!request.has_progress()) return false;
  const v1::JobProgress old = record->job.progress();
  v1::JobProgress* progress = record->job.mutable_progress();
  *progress = request.progress();
  const bool none = progress->checkpoint().empty() && progress->checkpoint_step() == 0;
  const bool late = record->checkpoint_generation == request.lease_generation() &&
                    progress->checkpoint_step() < old.checkpoint_step();
  if (none || late) {
    progress->set_checkpoint_step(old.checkpoint_step());
    progress->set_checkpoint(old.checkpoint());
    return false;
  }
  if (progress->checkpoint_step() == old.checkpoint_step() &&
      progress->checkpoint() == old.checkpoint()) {
    return false;
  }
  record->checkpoint_generation = request.lease_generation();
  return true;
}

// Gives the lease back. The driver may come back to it if it ran out.
void EndLease(BoardRecord* record, bool expired) {
  record->lease_expired = expired;
  record->job.mutable_driver()->clear_driver_nonce();
  SettleWithoutDriver(&record->job);
}

bool SameProgress(const v1::JobProgress& a, const v1::JobProgress& b) {
  return a.step() == b.step() && a.steps() == b.steps() && a.loss() == b.loss();
}

}  // namespace

JobBoard::JobBoard(const BoardHead& head, std::vector<BoardRecord> records, int64_t now_ms)
    : head_(head) {
  for (BoardRecord& record : records) {
    const std::string name = record.job.name();
    Entry& entry = jobs_[name];
    entry.record = std::move(record);
    entry.lease_end_ms = now_ms + kLeaseMs;
  }
}

BoardPlan JobBoard::Unchanged(const Entry& entry) const {
  BoardPlan plan;
  plan.head = head_;
  plan.record = entry.record;
  return plan;
}

BoardPlan JobBoard::Changed(BoardRecord record) const {
  BoardPlan plan;
  plan.durable = true;
  plan.head = head_;
  ++plan.head.revision;
  plan.record = std::move(record);
  plan.record.job.set_revision(plan.head.revision);
  return plan;
}

size_t JobBoard::JobsInWork() const {
  size_t jobs = 0;
  for (const auto& entry : jobs_) {
    if (!HasEnded(entry.second.record.job.phase())) ++jobs;
  }
  return jobs;
}

absl::Status JobBoard::CheckRoom(const v1::SubmitJobRequest& request) const {
  if (JobsInWork() >= kMaxJobsInWork) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxJobsInWork,
                     " jobs on the board have not ended, the most that may be: wait until one "
                     "ends, or cancel one"));
  }
  if (jobs_.size() >= kMaxJobs) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kMaxJobs, " jobs are on the board, the most that may be: remove some that have ended"));
  }
  size_t bytes = TextBytes(request.config(), request.labels());
  for (const auto& entry : jobs_) {
    const v1::Job& job = entry.second.record.job;
    bytes += TextBytes(job.config(), job.labels());
  }
  if (bytes <= kMaxTextBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "with this one the configurations and labels of the jobs on the board would take ", bytes,
      " bytes; at most ", kMaxTextBytes, " are allowed: remove some jobs that have ended"));
}

absl::StatusOr<BoardPlan> JobBoard::Submit(const v1::SubmitJobRequest& request, uint64_t uid,
                                           int64_t wall_ms) const {
  EPS_RETURN_IF_ERROR(CheckSubmission(request));
  const auto found = jobs_.find(request.name());
  if (found != jobs_.end()) {
    const std::string difference = FirstDifference(found->second.record.job, request);
    if (difference.empty()) return Unchanged(found->second);
    return absl::AlreadyExistsError(
        absl::StrCat("another job has the name ", request.name(), ": ", difference,
                     "; choose another name, or remove that job once it has ended"));
  }
  EPS_RETURN_IF_ERROR(CheckRoom(request));
  const bool paused = request.desired() == v1::DESIRED_PAUSE;
  BoardRecord record;
  record.submitted = head_.revision + 1;
  v1::Job& job = record.job;
  job.set_name(request.name());
  job.set_uid(uid);
  job.set_owner(JobOwnerOf(request.owner()));
  job.set_config(request.config());
  *job.mutable_labels() = request.labels();
  job.set_generation(1);
  job.set_desired(paused ? v1::DESIRED_PAUSE : v1::DESIRED_RUN);
  job.set_phase(paused ? v1::JOB_PHASE_PAUSED : v1::JOB_PHASE_QUEUED);
  job.set_created_ms(wall_ms);
  return Changed(std::move(record));
}

absl::StatusOr<BoardPlan> JobBoard::Update(const v1::UpdateJobRequest& request) const {
  EPS_RETURN_IF_ERROR(CheckUpdate(request));
  const auto found = jobs_.find(request.name());
  if (found == jobs_.end()) return NoSuchJob(request.name());
  const v1::Job& old = found->second.record.job;
  const bool again = MayRunAgain(old) && request.desired() == v1::DESIRED_RUN;
  // The effect of a cancelled job's other requests will never be there, nor of an ended job's.
  const bool cancelled = old.desired() == v1::DESIRED_CANCEL &&
                         (!HasEnded(old.phase()) || old.phase() == v1::JOB_PHASE_CANCELLED);
  if (cancelled && request.desired() == v1::DESIRED_CANCEL) return Unchanged(found->second);
  if (HasEnded(old.phase()) && !again) return HasEndedError(old);
  if (cancelled) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", old.name(), " is being cancelled, and that is for ever"));
  }
  const bool keeps =
      request.desired() == v1::DESIRED_UNSPECIFIED || request.desired() == old.desired();
  const bool scales = request.has_workers() && request.workers() != old.workers_wanted();
  if (!again && keeps && !scales) return Unchanged(found->second);
  if (request.expected_generation() != old.generation()) {
    return absl::AbortedError(absl::StrCat("job ", old.name(), " has generation ", old.generation(),
                                           ", not ", request.expected_generation(),
                                           ": read it again"));
  }
  if (again && JobsInWork() >= kMaxJobsInWork) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kMaxJobsInWork, " jobs on the board have not ended, the most that may be: wait"));
  }
  BoardRecord record = found->second.record;
  record.job.set_generation(old.generation() + 1);
  if (request.desired() != v1::DESIRED_UNSPECIFIED) record.job.set_desired(request.desired());
  if (request.has_workers()) record.job.set_workers_wanted(request.workers());
  if (again) {
    record.job.set_phase(v1::JOB_PHASE_QUEUED);
    record.job.clear_result();
    record.job.clear_reason();
  } else if (old.driver().driver_nonce().empty()) {
    SettleWithoutDriver(&record.job);
  }
  return Changed(std::move(record));
}

absl::StatusOr<BoardPlan> JobBoard::Checkpoint(const v1::CheckpointJobRequest& request) const {
  EPS_RETURN_IF_ERROR(CheckCheckpoint(request));
  const auto found = jobs_.find(request.name());
  if (found == jobs_.end()) return NoSuchJob(request.name());
  const v1::Job& old = found->second.record.job;
  if (HasEnded(old.phase())) return HasEndedError(old);
  if (old.phase() != v1::JOB_PHASE_RUNNING) {
    return absl::FailedPreconditionError(absl::StrCat("job ", old.name(), " is ",
                                                      PhaseName(old.phase()),
                                                      ": only a running job writes a checkpoint"));
  }
  // The job is perhaps further than its last report, so its next border is no earlier. Before the
  // first report, the number of steps is unknown: 0.
  const uint64_t next = old.progress().step() + 1;
  const uint64_t steps = old.progress().steps();
  const uint64_t wanted = steps == 0 ? next : std::min(next, steps);
  if (wanted <= old.checkpoint_wanted()) return Unchanged(found->second);
  BoardRecord record = found->second.record;
  record.job.set_checkpoint_wanted(wanted);
  return Changed(std::move(record));
}

absl::StatusOr<BoardPlan> JobBoard::Remove(const v1::RemoveJobRequest& request) const {
  EPS_RETURN_IF_ERROR(CheckRemoval(request));
  const auto found = jobs_.find(request.name());
  if (found == jobs_.end()) {
    BoardPlan plan;
    plan.head = head_;
    plan.removes = true;
    return plan;
  }
  const v1::Job& job = found->second.record.job;
  if (!HasEnded(job.phase())) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.name(), " has not ended, it is ",
                                                      PhaseName(job.phase()),
                                                      ": cancel it before you remove it"));
  }
  BoardPlan plan = Changed(found->second.record);
  plan.removes = true;
  std::vector<uint64_t>& removed = plan.head.removed;
  if (job.job_id() != 0) removed.push_back(job.job_id());
  if (removed.size() > kMaxRemoved) removed.erase(removed.begin());
  return plan;
}

// Returns the job that a driver gets if it names none; null if there is none.
const JobBoard::Entry* JobBoard::FindClaim(const v1::ClaimJobRequest& request) const {
  const Entry* its_own = nullptr;
  const Entry* oldest = nullptr;
  for (const auto& named : jobs_) {
    const Entry& entry = named.second;
    const v1::Job& job = entry.record.job;
    if (job.owner() != JobOwnerOf(request.owner())) continue;
    if (job.driver().driver_nonce() == request.driver_nonce()) return &entry;
    if (!WaitsForDriver(job)) continue;
    if (entry.record.lease_expired && entry.record.last_driver == request.driver_nonce()) {
      its_own = &entry;
    }
    if (oldest == nullptr || entry.record.submitted < oldest->record.submitted) oldest = &entry;
  }
  return its_own != nullptr ? its_own : oldest;
}

absl::StatusOr<BoardPlan> JobBoard::Claim(const v1::ClaimJobRequest& request) const {
  EPS_RETURN_IF_ERROR(CheckClaim(request));
  const Entry* entry = nullptr;
  if (request.name().empty()) {
    entry = FindClaim(request);
    if (entry == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("no job of owner ", JobOwnerOf(request.owner()), " waits for a driver"));
    }
  } else {
    const auto found = jobs_.find(request.name());
    if (found == jobs_.end()) return NoSuchJob(request.name());
    entry = &found->second;
  }
  const v1::Job& old = entry->record.job;
  if (old.owner() != JobOwnerOf(request.owner())) {
    return absl::NotFoundError(absl::StrCat("job ", old.name(), " does not belong to owner ",
                                            JobOwnerOf(request.owner())));
  }
  if (HasEnded(old.phase())) return HasEndedError(old);
  if (old.driver().driver_nonce() == request.driver_nonce()) {
    BoardPlan plan = Unchanged(*entry);
    plan.renews = true;
    return plan;
  }
  if (!old.driver().driver_nonce().empty()) {
    return absl::UnavailableError(absl::StrCat("job ", old.name(), ": ", HolderText(old)));
  }
  if (!WaitsForDriver(old)) {
    return absl::UnavailableError(absl::StrCat("job ", old.name(), " is paused; `eps job resume ",
                                               old.name(), "` lets a driver claim it"));
  }
  BoardRecord record = entry->record;
  v1::Job& job = record.job;
  const bool comes_back = record.lease_expired && record.last_driver == request.driver_nonce();
  if (!comes_back || job.phase() == v1::JOB_PHASE_QUEUED) job.set_phase(v1::JOB_PHASE_STARTING);
  job.clear_reason();
  job.mutable_driver()->set_driver_nonce(request.driver_nonce());
  job.mutable_driver()->set_host(request.host());
  // No other lease of this board has that generation, whichever job it is for.
  if (!comes_back) job.mutable_driver()->set_generation(head_.revision + 1);
  record.last_driver = request.driver_nonce();
  record.lease_expired = false;
  BoardPlan plan = Changed(std::move(record));
  plan.renews = true;
  return plan;
}

absl::StatusOr<BoardPlan> JobBoard::Report(const v1::ReportJobRequest& request) const {
  EPS_RETURN_IF_ERROR(CheckReport(request));
  const auto found = jobs_.find(request.name());
  if (found == jobs_.end()) {
    return absl::AbortedError(absl::StrCat("job ", request.name(), " is not on the board: stop"));
  }
  const v1::Job& old = found->second.record.job;
  if (!HoldsLease(old, request)) {
    if (RepeatsTheEnd(found->second.record, request)) return Unchanged(found->second);
    return absl::AbortedError(
        absl::StrCat("job ", old.name(), ": this driver's lease (generation ",
                     request.lease_generation(), ") is over, ",
                     old.driver().driver_nonce().empty() ? "and no driver has it" : HolderText(old),
                     ": stop, and write nothing more"));
  }
  if (request.phase() == v1::JOB_PHASE_CANCELLED && old.desired() != v1::DESIRED_CANCEL) {
    return absl::InvalidArgumentError(absl::StrCat(
        "phase: expected CANCELLED only after somebody cancelled the job, found it of job ",
        old.name()));
  }
  BoardRecord record = found->second.record;
  v1::Job& job = record.job;
  bool durable = TakeProgressOf(request, &record);
  if (request.job_id() != 0 && request.job_id() != old.job_id()) {
    job.set_job_id(request.job_id());
    durable = true;
  }
  if (request.phase() != v1::JOB_PHASE_UNSPECIFIED && request.phase() != old.phase()) {
    job.set_phase(request.phase());
    job.clear_reason();
    durable = true;
  }
  if (HasEnded(job.phase())) {
    *job.mutable_result() = request.result();
    job.mutable_result()->set_text(request.result().text().substr(0, kMaxResultTextBytes));
    if (job.phase() == v1::JOB_PHASE_CANCELLED)
      job.mutable_result()->set_exit_code(static_cast<uint32_t>(ExitCode::kCancelled));
  }
  const bool ends = request.ended() || HasEnded(job.phase());
  if (ends) EndLease(&record, /*expired=*/false);
  if (ends || durable) {
    BoardPlan plan = Changed(std::move(record));
    plan.renews = !ends;
    return plan;
  }
  BoardPlan plan = Unchanged(found->second);
  plan.renews = true;
  plan.progress = !SameProgress(old.progress(), record.job.progress());
  plan.record = std::move(record);
  return plan;
}

std::optional<BoardPlan> JobBoard::Expired(int64_t now_ms) const {
  for (const auto& named : jobs_) {
    const Entry& entry = named.second;
    if (entry.record.job.driver().driver_nonce().empty()) continue;
    if (now_ms < entry.lease_end_ms) continue;
    BoardRecord record = entry.record;
    record.job.set_reason(
        absl::StrCat("its driver was not heard from for ", kLeaseMs / 1000, " s"));
    EndLease(&record, /*expired=*/true);
    return Changed(std::move(record));
  }
  return std::nullopt;
}

void JobBoard::Commit(const BoardPlan& plan, int64_t now_ms) {
  const v1::Job& job = plan.record.job;
  if (!plan.durable) {
    if (plan.removes) return;
    Entry& entry = jobs_.at(job.name());
    if (plan.progress) *entry.record.job.mutable_progress() = job.progress();
    entry.moved = entry.moved || plan.progress;
    if (plan.renews) entry.lease_end_ms = now_ms + kLeaseMs;
    return;
  }
  EPS_CHECK_MSG(plan.head.revision == head_.revision + 1,
                "a plan for revision " << plan.head.revision << " after " << head_.revision);
  head_ = plan.head;
  v1::JobEvent event;
  event.set_revision(head_.revision);
  if (plan.removes) {
    event.set_kind(v1::JobEvent::KIND_REMOVED);
    event.mutable_job()->set_name(job.name());
    event.mutable_job()->set_uid(job.uid());
    jobs_.erase(job.name());
  } else {
    event.set_kind(v1::JobEvent::KIND_PUT);
    *event.mutable_job() = job;
    Entry& entry = jobs_[job.name()];
    entry.record = plan.record;
    entry.moved = false;
    if (plan.renews) entry.lease_end_ms = now_ms + kLeaseMs;
  }
  Remember(std::move(event));
}

void JobBoard::Remember(v1::JobEvent event) {
  event_bytes_ += event.ByteSizeLong();
  events_.push_back(std::make_shared<const v1::JobEvent>(std::move(event)));
  while (events_.size() > kMaxEvents || event_bytes_ > kMaxEventBytes) {
    event_bytes_ -= events_.front()->ByteSizeLong();
    events_.pop_front();
  }
}

v1::ListJobsReply JobBoard::List(const v1::ListJobsRequest& request) const {
  v1::ListJobsReply reply;
  reply.set_board(head_.board);
  reply.set_revision(head_.revision);
  for (const auto& entry : jobs_) {
    if (!request.name().empty() && entry.first != request.name()) continue;
    *reply.add_jobs() = entry.second.record.job;
  }
  return reply;
}

absl::Status JobBoard::CheckWatch(uint64_t board, uint64_t from_revision) const {
  if (board != head_.board) {
    return absl::OutOfRangeError(
        "the board that the request names is not this one: list the jobs again");
  }
  const uint64_t oldest = head_.revision - events_.size();
  if (from_revision >= oldest && from_revision <= head_.revision) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("from_revision: expected ", oldest, " to ",
                                            head_.revision, ", found ", from_revision,
                                            ": list the jobs again"));
}

JobBoard::Event JobBoard::NextEvent(uint64_t revision) const {
  const uint64_t oldest = head_.revision - events_.size();
  if (revision < oldest || revision >= head_.revision) return nullptr;
  return events_[revision - oldest];
}

std::vector<JobBoard::Event> JobBoard::TakeProgress() {
  std::vector<Event> events;
  for (auto& named : jobs_) {
    Entry& entry = named.second;
    if (!entry.moved) continue;
    entry.moved = false;
    v1::JobEvent event;
    event.set_kind(v1::JobEvent::KIND_PROGRESS);
    event.set_revision(head_.revision);
    *event.mutable_job() = entry.record.job;
    events.push_back(std::make_shared<const v1::JobEvent>(std::move(event)));
  }
  return events;
}

bool JobBoard::has_leases() const {
  for (const auto& entry : jobs_) {
    if (!entry.second.record.job.driver().driver_nonce().empty()) return true;
  }
  return false;
}

}  // namespace eps
