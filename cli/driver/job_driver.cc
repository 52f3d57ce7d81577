#include "cli/driver/job_driver.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "checkpoint/job_state.h"
#include "cli/driver/room_wait.h"
#include "cli/driver/terminal.h"
#include "eps/v1/control.pb.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::seconds kConnectTimeout{30};
constexpr std::chrono::milliseconds kFirstReconnect{200};  // doubles with each attempt
constexpr std::chrono::milliseconds kLastReconnect{6'400};
constexpr std::chrono::seconds kRejoinTimeout{300};  // for servers to answer again
constexpr std::chrono::seconds kStatusTimeout{10};
constexpr std::chrono::seconds kSilence{30};  // time without a step before waits are shown
constexpr std::chrono::seconds kStepsAfterWorkers{10};  // for records in flight after they ended
constexpr std::chrono::milliseconds kEvaluationAfterWorkers{2'000};  // the same for an evaluation

void ShowWaits(ControlClient* client) {
  for (size_t s = 0; s < client->servers().size(); ++s) {
    const absl::StatusOr<v1::StatusReply> status = client->GetStatus(s, std::chrono::seconds(5));
    if (!status.ok()) {
      Print(absl::StrCat("waiting: ", status.status().message(), "\n"));
    } else if (status->waits_size() == 0) {
      Print(absl::StrCat("waiting: server ", s, " is at step ", status->step(), " with ",
                         status->joined_workers(), " workers, and waits for their next request\n"));
    } else {
      const v1::Wait& wait = status->waits(0);
      Print(absl::StrFormat("waiting: server %d: %s waits %.0f s for %s\n", s, wait.what(),
                            wait.seconds(), wait.waits_for()));
    }
  }
}

// Returns the job's status once its servers have agreed on what is durable.
absl::StatusOr<v1::StatusReply> AwaitRecovery(const DriverJob& job, ControlClient* client,
                                              DriverHost* host) {
  // Allow 20 MB/s, so that a slow disk does not look like a dead server.
  uint64_t elements = 0;
  for (const Chunk& chunk : job.chunks.chunks()) elements += chunk.elements;
  const auto deadline = Clock::now() + std::chrono::seconds(120 + elements * 12 / 20'000'000);
  auto show = Clock::now() + kSilence;
  for (;;) {
    EPS_ASSIGN_OR_RETURN(v1::StatusReply status, client->GetStatus(0, kStatusTimeout));
    // The lead knows first; another server that does not know yet refuses the import.
    bool recovered = status.state() != v1::JOB_STATE_RECOVERING;
    for (size_t s = 1; recovered && s < client->servers().size(); ++s) {
      EPS_ASSIGN_OR_RETURN(const v1::StatusReply other, client->GetStatus(s, kStatusTimeout));
      recovered = other.state() != v1::JOB_STATE_RECOVERING;
    }
    if (recovered) return status;
    EPS_RETURN_IF_ERROR(host->CheckProcesses());
    if (host->Interrupted()) return absl::CancelledError("interrupted");
    if (Clock::now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the servers do not agree on what is durable; they wait for ",
                       status.waits_size() > 0 ? status.waits(0).waits_for() : "each other"));
    }
    if (Clock::now() > show) {
      ShowWaits(client);
      show = Clock::now() + kSilence;
    }
    std::this_thread::sleep_for(kTick);
  }
}

SaveGate::Borders BordersOf(const DriverJob& job) {
  SaveGate::Borders borders;
  if (!job.out().empty()) borders.save_every = job.config.checkpoint.save_steps;
  if (JobOutput::RulesOf(job).patience > 0) borders.decide_every = job.config.training.eval_steps;
  borders.last = job.spec.training.steps;
  return borders;
}

uint64_t BorderOf(const v1::StatusReply& job) { return job.step() > 0 ? job.step() - 1 : 0; }

}  // namespace

JobDriver::JobDriver(DriverJob job, DriverHost* host)
    : job_(std::move(job)), host_(host), output_(&job_), gate_(BordersOf(job_)) {}

absl::StatusOr<std::unique_ptr<JobDriver>> JobDriver::Open(DriverJob job, DriverHost* host) {
  std::unique_ptr<JobDriver> driver(new JobDriver(std::move(job), host));
  EPS_ASSIGN_OR_RETURN(driver->start_, JobStart::Open(&driver->job_));
  return driver;
}

absl::StatusOr<v1::StatusReply> JobDriver::Connect(const std::vector<std::string>& addresses,
                                                   std::chrono::milliseconds timeout) {
  EPS_ASSIGN_OR_RETURN(client_, ControlClient::Connect(addresses, Clock::now() + timeout));
  client_->SetDriverLease(job_.lease);
  const absl::Status created = client_->CreateJob(job_.spec, job_.KeptConfig()).status();
  if (!created.ok()) return start_->ExplainRefusal(created, client_.get());
  return AwaitRecovery(job_, client_.get(), host_);
}

absl::Status JobDriver::Start(const std::vector<std::string>& addresses,
                              const std::string& state_folder) {
  EPS_ASSIGN_OR_RETURN(const v1::StatusReply job, Connect(addresses, kConnectTimeout));
  EPS_RETURN_IF_ERROR(start_->TakeRecovered(job, *client_, state_folder));
  if (!state_folder.empty()) {
    // Store the configuration for tools that turn the servers' state into checkpoints.
    EPS_RETURN_IF_ERROR(
        ReplaceFile(JobConfigFile(state_folder, job_.spec.id()), job_.KeptConfig()));
  }
  const uint64_t first = start_->step();
  EPS_RETURN_IF_ERROR(output_.Open(first));
  EPS_RETURN_IF_ERROR(start_->Import(job.state(), client_.get()));
  // The records of a recovered job continue after the end of the log. Its next checkpoint is due
  // after its current border.
  step_ = start_->recovered() ? std::min(first, output_.metrics().history().last_step()) : first;
  return SetGate(std::max(first, BorderOf(job)));
}

// Sets the gate of a job that goes on from `border`.
absl::Status JobDriver::SetGate(uint64_t border) {
  if (stopping_) return gate_.SetFrom(border + 1, client_.get());
  if (EndsEarly()) return gate_.Hold(border, client_.get());
  EPS_RETURN_IF_ERROR(gate_.SetAfter(border, step_, client_.get()));
  return gate_.requested() > border ? gate_.SaveFrom(border + 1, client_.get()) : absl::OkStatus();
}

absl::Status JobDriver::Follow() {
  started_ = Clock::now();
  Print(absl::StrFormat("job: %016x at step %d (eps status --servers=%s)\n", client_->job().value(),
                        step_, absl::StrJoin(client_->servers(), ",")));
  const absl::Status status = FollowToEnd();
  RemoveLastLine();
  output_.WriteReport(Outcome(status), client_.get());
  return status;
}

// Returns how far the run came and what ended it, for its report.
std::string JobDriver::Outcome(const absl::Status& status) const {
  if (!status.ok()) return absl::StrCat("failed: ", status.message());
  if (ended_early_) {
    return absl::StrCat("ended early after step ", step_, ": ",
                        output_.metrics().evaluations().StopText());
  }
  if (step_ < job_.spec.training.steps) return absl::StrCat("interrupted after step ", step_);
  return "complete";
}

absl::Status JobDriver::FollowToEnd() {
  for (;;) {
    absl::Status status = FollowSteps();
    if (GoesOnFromACut(status)) {
      status = Rejoin(status);
      if (status.ok()) continue;
    }
    return status.ok() ? status : CauseOf(status);
  }
}

// Returns why the servers gave the job up, with the exit code that they give; `status` if they did
// not, or give none.
absl::Status JobDriver::CauseOf(const absl::Status& status) {
  const absl::StatusOr<v1::StatusReply> job = client_->GetStatus(0, kStatusTimeout);
  const std::optional<ExitCode> code = job.ok() ? FailureCodeOf(*job) : std::nullopt;
  if (!code.has_value()) return status;
  return WithExitCode(
      absl::FailedPreconditionError(absl::StrCat("the job failed: ", job->failure())), *code);
}

// Follows the job over one connection, to the last step or to the one at which the run stops.
absl::Status JobDriver::FollowSteps() {
  const uint64_t last = job_.spec.training.steps;
  const uint64_t evaluated = job_.config.training.eval_steps > 0 ? last : 0;
  StepWatch watch(client_.get(), step_, evaluated);
  last_record_ = Clock::now();
  // The job had ended, but its run was killed before it wrote the last checkpoint.
  if (step_ == last || EndsEarly()) EPS_RETURN_IF_ERROR(OnBorder());
  while (step_ < last) {
    if (ended_early_) return absl::OkStatus();
    const std::optional<v1::StepRecord> record = watch.Next(kTick);
    if (record.has_value()) {
      EPS_RETURN_IF_ERROR(OnRecord(*record));
    } else {
      EPS_RETURN_IF_ERROR(OnQuiet(&watch));
    }
    if (host_->Interrupted() && !stopping_) EPS_RETURN_IF_ERROR(StopAtNextBorder());
    if (host_->TakeSaveRequest() && !stopping_) EPS_RETURN_IF_ERROR(SaveAtNextBorder());
    if (stopping_ && step_ >= gate_.border()) return absl::OkStatus();
  }
  if (evaluated == 0 || stopping_) return absl::OkStatus();
  // The run is complete and its weights are saved, so do not fail it for a missing figure.
  const absl::Status status = AwaitEvaluation(&watch);
  if (!status.ok()) {
    Print(absl::StrCat("note: no evaluation after the last step: ", std::string(status.message()),
                       "\n"));
  }
  return absl::OkStatus();
}

absl::Status JobDriver::OnEvaluation(const v1::StepRecord& record) {
  last_record_ = Clock::now();
  longest_step_ = std::max(longest_step_, record.step_seconds());
  if (stopping_) ExtendPatience();
  const std::vector<Metric>& metrics = output_.metrics().evaluations().rules().metrics;
  Print(EvaluationLine(record, job_.spec.training.steps, FiguresOf(record.evaluation(), metrics)) +
        "\n");
  // A resumed run evaluates its border again, with the same figure.
  const bool known = output_.metrics().history().Evaluated(record.step());
  return known ? absl::OkStatus() : output_.Add(record);
}

absl::Status JobDriver::OnRecord(const v1::StepRecord& record) {
  host_->OnRecord(record);
  if (record.has_evaluation()) return OnEvaluation(record);
  step_ = record.step();
  tokens_ += record.tokens();
  last_record_ = Clock::now();
  eta_.Add(record.step_seconds());
  longest_step_ = std::max(longest_step_, record.step_seconds());
  if (stopping_) ExtendPatience();
  EPS_RETURN_IF_ERROR(output_.Add(record));
  const uint64_t every = std::max<uint64_t>(1, job_.config.metrics.log_every_steps);
  const uint64_t steps = job_.spec.training.steps;
  const double eta = eta_.SecondsFor(steps - step_);
  if (step_ < steps && TerminalReplacesLines()) {
    ShowLastLine(ProgressBar(record, steps, eta, TerminalColumns()));
  } else if (step_ % every == 0 || step_ == steps || step_ == start_->step() + 1) {
    Print(ProgressLine(record, steps, eta) + "\n");
  }
  return step_ == gate_.border() || step_ == steps ? OnBorder() : absl::OkStatus();
}

// Writes the checkpoint of step_, if one is due, while the servers wait there, and releases them.
absl::Status JobDriver::OnBorder() {
  // No gate holds a finished job.
  const bool is_last = step_ == job_.spec.training.steps;
  const bool ends = !is_last && !stopping_ && EndsEarly();
  const bool saves = is_last || stopping_ || ends || gate_.Saves(step_);
  if (saves) {
    EPS_RETURN_IF_ERROR(host_->BeforeCheckpoint());
    EPS_RETURN_IF_ERROR(AwaitRoom([this] {
      return output_.WriteCheckpoint(step_, client_.get(), [this] { return ConfirmSave(); });
    }));
  }
  if (ends) {
    ended_early_ = true;
    Print(absl::StrCat("early stop after step ", step_, ": ",
                       output_.metrics().evaluations().StopText(), "\n"));
  }
  if (!is_last && !stopping_ && !ends) {
    EPS_RETURN_IF_ERROR(gate_.SetAfter(step_, step_, client_.get()));
  }
  if (saves && !output_.last_checkpoint().empty()) {
    host_->OnCheckpoint(output_.last_checkpoint(), step_);
  }
  return absl::OkStatus();
}

// Nobody else can drive a job that is not on the board of jobs.
absl::Status JobDriver::ConfirmSave() {
  return job_.lease.exists() ? gate_.Confirm(step_, client_.get()) : absl::OkStatus();
}

bool JobDriver::EndsEarly() const {
  const std::optional<uint64_t> border = output_.metrics().evaluations().stop_border();
  return border.has_value() && *border <= step_ && step_ < job_.spec.training.steps;
}

absl::Status JobDriver::AwaitRoom(const std::function<absl::Status()>& write) {
  const absl::Status status =
      RetryWithoutRoom(write, absl::StrCat("after step ", step_, " for room"), host_);
  last_record_ = Clock::now();
  return status;
}

absl::Status JobDriver::Finish() {
  return AwaitRoom([this] { return output_.WriteTrainerState(step_); });
}

// Extends the deadline by which the current step of an interrupted run must end.
void JobDriver::ExtendPatience() {
  const double patience =
      std::max(static_cast<double>(job_.config.servers.worker_timeout_ms) / 1e3, 3 * longest_step_);
  stop_by_ = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(patience * 1e3));
}

// Returns true if live workers of this run have to finish an evaluation before the next step.
bool JobDriver::Evaluating() const {
  const uint64_t every = job_.config.training.eval_steps;
  return every > 0 && step_ > 0 && step_ % every == 0 && job_.config.worker.count > 0 &&
         !output_.metrics().history().Evaluated(step_);
}

bool JobDriver::HeldForASave() {
  const absl::StatusOr<v1::StatusReply> status = client_->GetStatus(0, kStatusTimeout);
  if (!status.ok()) return false;
  return std::any_of(status->gates().begin(), status->gates().end(), [this](const auto& gate) {
    return absl::StartsWith(gate.holder(), kSaveHolder) && gate.step() < gate_.border();
  });
}

absl::Status JobDriver::StopAtNextBorder() {
  Print(
      "interrupted: finishing the step and writing a checkpoint; interrupt again to exit at "
      "once\n");
  stopping_ = true;
  ExtendPatience();
  return gate_.SetFrom(step_ + 1, client_.get());
}

absl::Status JobDriver::SaveAtNextBorder() {
  if (job_.out().empty()) {
    Print("note: checkpoint.dir is empty, so no checkpoint is written\n");
    return absl::OkStatus();
  }
  // The last step has a checkpoint anyway.
  if (step_ + 1 >= job_.spec.training.steps) return absl::OkStatus();
  return gate_.SaveFrom(step_ + 1, client_.get());
}

// Checks processes, deadlines and the connection while no record arrives. An error ends the run.
absl::Status JobDriver::OnQuiet(StepWatch* watch) {
  const uint64_t steps = job_.spec.training.steps;
  EPS_RETURN_IF_ERROR(host_->CheckProcesses());
  // A worker may have finished before the servers rolled the job back to a cut.
  if (went_back_) EPS_RETURN_IF_ERROR(host_->RestartFinishedWorkers());
  if (const std::optional<absl::Status> end = watch->end(); end.has_value()) {
    if (!end->ok()) return *end;
    return absl::UnavailableError(absl::StrCat("the job ended at step ", step_, " of ", steps));
  }
  if (job_.config.worker.count > 0 && host_->WorkersEnded()) {
    if (Clock::now() - last_record_ > kStepsAfterWorkers) {
      return absl::InternalError(absl::StrCat("all workers ended at step ", step_, " of ", steps,
                                              "; their logs are in ", host_->log_folder()));
    }
  }
  if (stopping_ && Clock::now() > stop_by_ && !Evaluating() && !HeldForASave()) {
    ShowWaits(client_.get());
    return absl::CancelledError(absl::StrCat("interrupted, and step ", gate_.border(),
                                             " did not end in time (servers.worker_timeout)"));
  }
  if (Clock::now() - last_record_ > kSilence) {
    ShowWaits(client_.get());
    last_record_ = Clock::now();
  }
  return absl::OkStatus();
}

// Reads records until the evaluation after the last step arrives. Returns an error if it cannot
// arrive any more: workers of this run have all ended, or other workers no longer fetch weights.
absl::Status JobDriver::AwaitEvaluation(StepWatch* watch) {
  const bool own_workers = job_.config.worker.count > 0;
  const std::chrono::milliseconds patience =
      own_workers ? kEvaluationAfterWorkers
                  : std::chrono::milliseconds(job_.config.servers.worker_timeout_ms);
  uint64_t fetches = 0;
  Clock::time_point last_sign = Clock::now();
  while (!output_.metrics().history().Evaluated(job_.spec.training.steps)) {
    if (const std::optional<v1::StepRecord> record = watch->Next(kTick); record.has_value()) {
      EPS_RETURN_IF_ERROR(OnRecord(*record));
      continue;
    }
    EPS_RETURN_IF_ERROR(host_->CheckProcesses());
    if (host_->Interrupted()) return absl::CancelledError("interrupted");
    if (watch->end().has_value()) return absl::UnavailableError("the job's records ended");
    if (own_workers && !host_->WorkersEnded()) continue;
    EPS_ASSIGN_OR_RETURN(const v1::StatusReply status, client_->GetStatus(0, kStatusTimeout));
    const auto counter = status.counters().find("fetches");
    const uint64_t now = counter == status.counters().end() ? 0 : counter->second;
    if (now != std::exchange(fetches, now)) last_sign = Clock::now();
    if (Clock::now() - last_sign > patience) {
      return absl::UnavailableError(own_workers ? "the workers ended without it"
                                                : "no worker fetches weights for it");
    }
  }
  return absl::OkStatus();
}

// Returns true if an error may only mean that the servers are rolling back to their last cut.
bool JobDriver::GoesOnFromACut(const absl::Status& status) const {
  const StorageConfig& storage = job_.config.storage;
  return storage.durable() && storage.max_restarts > 0 && !host_->Interrupted() &&
         (absl::IsUnavailable(status) || absl::IsAborted(status));
}

// Resumes the job at the current border of its servers.
absl::Status JobDriver::TryRejoin(std::chrono::milliseconds timeout) {
  const std::vector<std::string> addresses = client_->servers();
  EPS_ASSIGN_OR_RETURN(const v1::StatusReply job, Connect(addresses, timeout));
  EPS_RETURN_IF_ERROR(start_->CheckNotLost(job.state(), step_));
  EPS_RETURN_IF_ERROR(start_->Import(job.state(), client_.get()));
  const uint64_t border = BorderOf(job);
  Print(absl::StrCat("note: the job continues after step ", border, ", term ", job.term(), "\n"));
  EPS_RETURN_IF_ERROR(AwaitRoom([this, border] { return output_.Open(border); }));
  step_ = std::min(border, output_.metrics().history().last_step());
  went_back_ = true;
  last_record_ = Clock::now();
  return SetGate(border);
}

absl::Status JobDriver::Rejoin(const absl::Status& why) {
  RemoveLastLine();  // connecting may log
  const absl::string_view text = why.message();
  Print(absl::StrCat("note: ", text.substr(0, text.find('\n')), "\n"));
  const auto deadline = Clock::now() + kRejoinTimeout;
  for (auto timeout = kFirstReconnect;; timeout = std::min(2 * timeout, kLastReconnect)) {
    EPS_RETURN_IF_ERROR(host_->CheckProcesses());
    const absl::Status status = TryRejoin(timeout);
    if (status.ok()) return status;
    if (!GoesOnFromACut(status) || Clock::now() > deadline) return status;
    std::this_thread::sleep_for(kTick);
  }
}

JobDriver::Result JobDriver::result() const {
  Result result;
  result.step = step_;
  result.first_step = start_->step();
  result.tokens = tokens_;
  result.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  result.interrupted = stopping_;
  if (ended_early_) result.early_stop = output_.metrics().evaluations().StopText();
  result.best = output_.best();
  result.last_checkpoint = output_.last_checkpoint();
  return result;
}

}  // namespace eps
