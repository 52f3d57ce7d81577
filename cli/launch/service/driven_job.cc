#include "cli/launch/service/driven_job.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/spec_builder.h"
#include "base/files/files.h"
#include "base/folder.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_folders.h"
#include "cli/launch/interrupt.h"
#include "cli/launch/run_config.h"
#include "cli/launch/security/security_flags.h"
#include "cli/launch/service/submitted_config.h"
#include "cli/launch/siblings.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kTick{20};
constexpr int kMaxFruitless = 3;
// A server that is being moved or upgraded may be away for some minutes.
constexpr int kMaxFruitlessWhileAway = 10;
constexpr std::chrono::seconds kFirstRestartPause{1};  // doubles with each fruitless restart
constexpr std::chrono::seconds kLastRestartPause{30};
// An interrupted driver has about half a minute before whoever stops it loses patience.
constexpr std::chrono::seconds kInterruptPatience{20};
constexpr char kJobFile[] = "job.yaml";
constexpr char kLogFile[] = "train.log";

// Servers with another job refuse a run with these words (eps_server/shell/job_host.cc), unless
// JobStart::ExplainRefusal finds better ones.
constexpr char kHoldAnother[] = "Start another server for it";

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Returns whether the folder holds files of a run.
bool HoldsRun(const std::string& folder) {
  return Exists(folder + "/metrics.jsonl") || !ListCheckpoints(folder).empty();
}

// Returns whether a run that ended with this code may succeed if it is started again.
bool MayPass(ExitCode code) {
  return code == ExitCode::kUnavailable || code == ExitCode::kInternal || code == ExitCode::kIo ||
         code == ExitCode::kInterrupted || code == ExitCode::kTerminated;
}

}  // namespace

DrivenJob::DrivenJob(const DrivePlan* plan, JobLease lease)
    : plan_(plan),
      lease_(std::move(lease)),
      folder_(absl::StrCat(plan->out, "/", lease_.job().name())) {}

DrivenJob::Result DrivenJob::Run() {
  const absl::Status prepared = Prepare();
  progress_ = std::make_unique<JobProgressReader>(folder_, absl::StrCat(folder_, "/", kLogFile));
  if (!prepared.ok()) {
    return End(Outcome::kEnded, v1::JOB_PHASE_FAILED, ExitCodeOf(prepared),
               std::string(prepared.message()));
  }
  for (;;) {
    absl::Status status = Report(v1::JOB_PHASE_STARTING);
    if (!status.ok()) return Lost(status);
    // Somebody may have changed their mind before the first child started.
    ObeyDesired();
    if (stop_ != Stop::kNone) return EndOfChild();
    status = StartChild();
    if (!status.ok()) {
      return End(Outcome::kEnded, v1::JOB_PHASE_FAILED, ExitCodeOf(status),
                 std::string(status.message()));
    }
    status = FollowChild();
    if (!status.ok()) return Lost(status);
    const absl::StatusOr<bool> again = StartsAgain();
    if (!again.ok()) return Lost(again.status());
    if (!*again) return EndOfChild();
  }
}

// Checks the configuration, which anybody may have submitted, and creates the job's folder.
absl::Status DrivenJob::Prepare() {
  const v1::Job& job = lease_.job();
  EPS_ASSIGN_OR_RETURN(const Config config, ReadSubmittedConfig(job.config(), kJobFile));
  EPS_RETURN_IF_ERROR(plan_->roots.Check(config));
  EPS_RETURN_IF_ERROR(CreateFolder(folder_));
  const std::string file = absl::StrCat(folder_, "/", kJobFile);
  if (HoldsRun(folder_)) {
    const absl::StatusOr<std::string> there = ReadTextFile(file);
    if (!there.ok() || *there != job.config()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "checkpoint.dir: ", folder_, " holds the run of another job of this name, with another ",
          kJobFile, "; move it away, or submit the job under another name"));
    }
  }
  return ReplaceFile(file, job.config());
}

absl::StatusOr<std::vector<std::string>> DrivenJob::Command() const {
  EPS_ASSIGN_OR_RETURN(const Config config, ReadSubmittedConfig(lease_.job().config(), kJobFile));
  const std::string& resume = config.checkpoint.resume;
  // A checkpoint elsewhere is only where the job begins.
  const bool begins = lease_.job().job_id() == 0 && !HoldsRun(folder_);
  std::vector<std::string> command = {
      OwnPath(), "train", absl::StrCat("--config=", folder_, "/", kJobFile),
      absl::StrCat("--servers=", absl::StrJoin(plan_->servers, ",")), "--worker.count=0",
      absl::StrCat("--out=", folder_),
      absl::StrCat("--resume=", begins && resume != "none" ? resume : "latest"),
      absl::StrCat("--driver-lease=", ToText(lease_.id())),
      // The state of the servers is that of the job, and the job goes on there.
      "--storage.kind=nvme"};
  if (!plan_->on_saved.empty()) {
    command.push_back(absl::StrCat("--checkpoint.on_saved=", plan_->on_saved));
  }
  if (config.optimizer.name == OptimizerName::kPlugin && !plan_->updater_plugin.empty()) {
    command.push_back(absl::StrCat("--optimizer.plugin=", plan_->updater_plugin));
  }
  if (UsesPluginCodec(config.quantization) && !plan_->codec_plugin.empty()) {
    command.push_back(absl::StrCat("--quantization.plugin=", plan_->codec_plugin));
  }
  for (std::string& argument : SecurityArguments(plan_->security)) {
    command.push_back(std::move(argument));
  }
  return command;
}

absl::Status DrivenJob::StartChild() {
  ChildOptions options;
  options.name = absl::StrCat("eps train of job ", job().name());
  EPS_ASSIGN_OR_RETURN(options.argv, Command());
  options.environment = EnvironmentWithoutConfig();
  options.log_path = absl::StrCat(folder_, "/", kLogFile);
  progress_ = std::make_unique<JobProgressReader>(folder_, options.log_path);
  progress_->Read();
  started_after_ = progress_->progress().step();
  asked_for_ = 0;
  EPS_ASSIGN_OR_RETURN(child_, ChildProcess::Start(std::move(options)));
  return absl::OkStatus();
}

absl::Status DrivenJob::FollowChild() {
  while (child_->Running()) {
    if (Interrupted() && stop_ == Stop::kNone) {
      StopChild(Stop::kInterrupt);
      kill_at_ = Clock::now() + kInterruptPatience;
    }
    if (Clock::now() >= lease_.due()) {
      progress_->Read();
      const bool runs = progress_->job_id() != 0;
      const absl::Status status = Report(runs ? v1::JOB_PHASE_RUNNING : v1::JOB_PHASE_UNSPECIFIED);
      if (!status.ok()) {
        // Another driver may write to the servers by now, so this child may not.
        child_->Signal(SIGKILL);
        child_->WaitExit(Clock::now() + std::chrono::seconds(10));
        return status;
      }
      ObeyDesired();
    }
    if (Clock::now() >= kill_at_) child_->Signal(SIGKILL);
    std::this_thread::sleep_for(kTick);
  }
  progress_->Read();
  return absl::OkStatus();
}

v1::ReportJobRequest DrivenJob::ReportOf(v1::JobPhase phase) const {
  v1::ReportJobRequest report;
  report.set_phase(phase);
  // A driver with another folder knows less at first than the board.
  *report.mutable_progress() = job().progress();
  report.mutable_progress()->MergeFrom(progress_->progress());
  report.set_job_id(progress_->job_id() != 0 ? progress_->job_id() : job().job_id());
  return report;
}

absl::Status DrivenJob::Report(v1::JobPhase phase) { return lease_.Report(ReportOf(phase)); }

void DrivenJob::ObeyDesired() {
  const v1::Desired desired = lease_.job().desired();
  if (desired == v1::DESIRED_CANCEL && stop_ != Stop::kCancel && stop_ != Stop::kInterrupt) {
    if (stop_ == Stop::kNone) StopChild(Stop::kCancel);
    stop_ = Stop::kCancel;  // also of a job that is just being paused
  } else if (desired == v1::DESIRED_PAUSE && stop_ == Stop::kNone) {
    StopChild(Stop::kPause);
  }
  const uint64_t wanted = lease_.job().checkpoint_wanted();
  // The signal would end a child that has only just begun.
  const uint64_t step = progress_ != nullptr ? progress_->progress().step() : 0;
  const bool follows = child_ != nullptr && step > started_after_ && stop_ == Stop::kNone;
  if (follows && wanted > asked_for_ && wanted > progress_->progress().checkpoint_step()) {
    asked_for_ = wanted;
    child_->Signal(SIGUSR1);
  }
}

void DrivenJob::StopChild(Stop why) {
  stop_ = why;
  if (child_ != nullptr) child_->Signal(SIGTERM);
}

ExitCode DrivenJob::ChildCode() const {
  const int status = child_->wait_status();
  // A killed child says nothing about the job.
  return WIFEXITED(status) ? static_cast<ExitCode>(WEXITSTATUS(status)) : ExitCode::kUnavailable;
}

absl::StatusOr<bool> DrivenJob::StartsAgain() {
  if (stop_ != Stop::kNone || !MayPass(ChildCode())) return false;
  if (progress_->progress().step() > started_after_) fruitless_ = 0;
  const bool away = ChildCode() == ExitCode::kUnavailable;
  if (++fruitless_ > (away ? kMaxFruitlessWhileAway : kMaxFruitless)) return false;
  const std::string failure(child_->Failure().message());
  std::printf("note: job %s: %s; starting it again\n", job().name().c_str(),
              failure.substr(0, failure.find('\n')).c_str());
  std::fflush(stdout);
  const auto until =
      Clock::now() +
      std::min<Clock::duration>(kFirstRestartPause * (1 << (fruitless_ - 1)), kLastRestartPause);
  while (Clock::now() < until && !Interrupted() && stop_ == Stop::kNone) {
    if (Clock::now() >= lease_.due()) {
      EPS_RETURN_IF_ERROR(Report(v1::JOB_PHASE_UNSPECIFIED));
      ObeyDesired();
    }
    std::this_thread::sleep_for(kTick);
  }
  if (Interrupted() && stop_ == Stop::kNone) stop_ = Stop::kInterrupt;
  return stop_ == Stop::kNone;
}

// Returns whether the error of a child says that the servers hold another job.
bool DrivenJob::SaysNoRoom(const std::string& error) const {
  // With other data, a job that this one created is the other one.
  const std::string other =
      absl::StrCat(absl::StrJoin(plan_->servers, ","), " belongs to a run with other settings");
  return absl::StrContains(error, kHoldAnother) ||
         (job().job_id() == 0 && absl::StrContains(error, other));
}

// Reports how the job is after its child has ended, or before it has begun.
DrivenJob::Result DrivenJob::EndOfChild() {
  if (child_ != nullptr && ChildCode() == ExitCode::kOk) {
    return End(Outcome::kEnded, v1::JOB_PHASE_SUCCEEDED, ExitCode::kOk, "");
  }
  switch (stop_) {
    case Stop::kPause:
      return End(Outcome::kPaused, v1::JOB_PHASE_PAUSED, ExitCode::kOk, "");
    case Stop::kCancel:
      return End(Outcome::kEnded, v1::JOB_PHASE_CANCELLED, ExitCode::kCancelled,
                 "cancelled through the board");
    case Stop::kInterrupt:
      return End(Outcome::kStopped, v1::JOB_PHASE_UNSPECIFIED, InterruptCode(), "");
    case Stop::kNone:
      break;
  }
  const std::string error = progress_->Error();
  if (ChildCode() == ExitCode::kUsage && SaysNoRoom(error)) {
    Result busy = End(Outcome::kNoRoom, v1::JOB_PHASE_QUEUED, ExitCode::kUnavailable, "");
    if (busy.outcome == Outcome::kNoRoom) busy.text = error;
    return busy;
  }
  return End(Outcome::kEnded, v1::JOB_PHASE_FAILED, ChildCode(),
             error.empty() ? std::string(child_->Failure().message()) : error);
}

DrivenJob::Result DrivenJob::End(Outcome outcome, v1::JobPhase phase, ExitCode code,
                                 const std::string& text) {
  v1::ReportJobRequest report = ReportOf(phase);
  if (HasEnded(phase)) {
    report.mutable_result()->set_exit_code(static_cast<uint32_t>(code));
    report.mutable_result()->set_text(text);
  }
  const absl::Status status = lease_.End(std::move(report));
  if (!status.ok()) return Lost(status);
  return {outcome, code, text};
}

DrivenJob::Result DrivenJob::Lost(const absl::Status& status) {
  return {Outcome::kLost, ExitCode::kFenced, std::string(status.message())};
}

}  // namespace eps
