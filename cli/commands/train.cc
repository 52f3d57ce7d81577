#include "cli/commands/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/machine/disk_room.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/guard/checkpoint_room.h"
#include "cli/driver/best_evaluation.h"
#include "cli/driver/job_driver.h"
#include "cli/driver/progress.h"
#include "cli/driver/status_text.h"
#include "cli/driver/train_text.h"
#include "cli/launch/cluster.h"
#include "cli/launch/hook/checkpoint_hook.h"
#include "cli/launch/interrupt.h"
#include "cli/launch/model/model_export.h"
#include "cli/launch/output_folder.h"
#include "cli/launch/plan.h"
#include "cli/launch/plan_check.h"
#include "cli/launch/planned_run.h"
#include "cli/launch/security/local_authority.h"
#include "cli/launch/state/state_home.h"
#include "cli/launch/tools/wandb_export.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::minutes kBetweenNotes{1};
constexpr std::chrono::seconds kWorkerExit{10};  // from the end of the job to that of its workers
constexpr std::chrono::seconds kStopGrace{5};
constexpr size_t kSummarySteps = 20;

Survives WhatSurvives(const TrainPlan& plan) {
  if (plan.config.storage.durable()) return Survives::kKilledProcesses;
  return plan.spec.training.mode == Mode::kSealed ? Survives::kKilledWorkers
                                                  : Survives::kStoppedWorkers;
}

// One `eps train`: starts the processes of the run, drives the job, and prints a summary.
class TrainRun final : public DriverHost {
 public:
  // `state` is the line about the durable state; may be empty.
  // `authority_or_null` gives the run's processes their certificates.
  TrainRun(const RunConfig& run, TrainPlan plan, std::unique_ptr<OutputFolder> output,
           std::string state, std::unique_ptr<LocalAuthority> authority_or_null)
      : plan_(std::move(plan)),
        output_(std::move(output)),
        authority_(std::move(authority_or_null)),
        state_(std::move(state)),
        allow_changes_(run.allow_changes),
        driver_lease_(run.driver_lease) {}
  ~TrainRun() override;

  absl::Status Run();

  absl::Status CheckProcesses() override {
    HookRuns();
    return AllStopped() ? Stopped() : cluster_->Mend();
  }
  absl::Status RestartFinishedWorkers() override { return cluster_->RestartFinishedWorkers(); }
  bool WorkersEnded() override { return cluster_->WorkersEnded(); }
  const std::string& log_folder() const override { return log_folder_; }
  bool Interrupted() const override { return eps::Interrupted(); }
  bool TakeSaveRequest() override { return eps::TakeSaveRequest(); }
  absl::Status BeforeCheckpoint() override {
    return AwaitHook([this] { return CheckProcesses(); });
  }
  void OnCheckpoint(const std::string& folder, uint64_t step) override;
  void OnRecord(const v1::StepRecord& record) override {
    if (!record.has_evaluation()) cluster_->OnStep();
    plan_check_.OnRecord(record);
  }

 private:
  absl::Status OpenFolders();
  absl::Status DropOldState() const;
  void DropState();
  absl::Status StartJob();
  absl::Status Blame(const absl::Status& status);
  std::string QuantizationSummary() const;
  void Summarize() const;
  // Returns whether the run was interrupted before the last step of the job.
  bool StoppedEarly() const;
  // Returns whether a signal reached not only this process, but its servers, too.
  bool AllStopped() const { return Interrupted() && cluster_->ServersStopped(); }
  static absl::Status Stopped() {
    return absl::CancelledError("interrupted, and the servers of the run were stopped, too");
  }
  const std::string& out() const { return plan_.config.checkpoint.dir; }
  // Returns whether checkpoint.on_saved runs, and prints how it failed if it has.
  bool HookRuns();
  // Waits for the end of checkpoint.on_saved. Fails if `check` does.
  absl::Status AwaitHook(const std::function<absl::Status()>& check);

  const TrainPlan plan_;
  const std::unique_ptr<OutputFolder> output_;
  const std::unique_ptr<LocalAuthority> authority_;  // null: they have those of the configuration
  const std::string state_;
  const bool allow_changes_;  // whether to resume with other data, another model or seed
  const DriverLease driver_lease_;
  std::string log_folder_;
  bool temporary_ = false;  // log_folder_ is removed if the run succeeds
  PlanCheck plan_check_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<CheckpointHook> hook_;  // set by OpenFolders
  std::unique_ptr<JobDriver> driver_;
  bool finished_ = false;
};

TrainRun::~TrainRun() {
  if (cluster_ != nullptr) cluster_->Stop(finished_ ? kStopGrace : std::chrono::seconds(1));
  std::error_code ignored;
  if (temporary_ && finished_) fs::remove_all(log_folder_, ignored);
}

void TrainRun::OnCheckpoint(const std::string& folder, uint64_t step) {
  const absl::Status started = hook_->Start(folder, step);
  if (!started.ok()) Print(absl::StrCat("note: ", started.message(), "\n"));
}

bool TrainRun::HookRuns() {
  absl::Status end;
  const bool runs = hook_->Runs(&end);
  if (!end.ok()) Print(absl::StrCat("note: ", end.message(), "\n"));
  return runs;
}

absl::Status TrainRun::AwaitHook(const std::function<absl::Status()>& check) {
  auto note = Clock::now() + kBetweenNotes;
  while (HookRuns()) {
    EPS_RETURN_IF_ERROR(check());
    if (Clock::now() > note) {
      Print(absl::StrCat("waiting: checkpoint.on_saved has run for ",
                         FormatSeconds(hook_->seconds()), "\n"));
      note = Clock::now() + kBetweenNotes;
    }
    std::this_thread::sleep_for(kTick);
  }
  return absl::OkStatus();
}

absl::Status TrainRun::OpenFolders() {
  const CheckpointConfig& config = plan_.config.checkpoint;
  hook_ = std::make_unique<CheckpointHook>(config.on_saved,
                                           std::chrono::milliseconds(config.on_saved_timeout_ms),
                                           out() + "/logs/on_saved.log");
  if (out().empty()) {
    EPS_ASSIGN_OR_RETURN(log_folder_, MakeTemporaryFolder("train"));
    temporary_ = true;
    Print("note: checkpoint.dir (--out) is empty: no checkpoint will be written\n");
    return absl::OkStatus();
  }
  log_folder_ = out() + "/logs";
  return CreateFolder(log_folder_);
}

absl::Status TrainRun::StartJob() {
  EPS_ASSIGN_OR_RETURN(const ServerChoice choice, ChooseServers(plan_.config.servers));
  const uint32_t servers =
      choice.spawn != 0 ? choice.spawn : static_cast<uint32_t>(choice.attach.size());
  EPS_ASSIGN_OR_RETURN(const std::string summary, PlanSummary(plan_, servers));
  Print(summary);
  Print(state_);
  EPS_ASSIGN_OR_RETURN(plan_check_, PlanCheck::New(plan_.config, plan_.spec));
  Print(plan_check_.summary());
  std::string state_folder;
  if (choice.spawn != 0 && plan_.config.storage.durable()) {
    EPS_ASSIGN_OR_RETURN(state_folder, StorageFolder(plan_.config));
    // Without storage.path the state is the run's own.
    std::error_code ignored;
    if (output_->overwrites() && plan_.config.storage.path.empty()) {
      fs::remove_all(state_folder, ignored);
    }
    EPS_RETURN_IF_ERROR(DropOldState());
    EPS_RETURN_IF_ERROR(driver_->CheckState(state_folder, choice.spawn));
  }
  cluster_ = std::make_unique<Cluster>(plan_.config, log_folder_, WhatSurvives(plan_));
  if (authority_ != nullptr) {
    cluster_->UseAuthority(*authority_);
    Print(
        absl::StrCat("tls: mutual TLS with certificates of this run alone (eps status "
                     "--security.tls=always --security.dir=",
                     authority_->Of(v1::ROLE_DRIVER).dir, ")\n"));
  }
  if (choice.spawn != 0) {
    EPS_RETURN_IF_ERROR(cluster_->StartServers(choice.spawn));
  } else {
    cluster_->UseServers(choice.attach);
  }
  EPS_RETURN_IF_ERROR(driver_->Start(cluster_->addresses(), state_folder));
  EPS_RETURN_IF_ERROR(output_->RemoveOldRun());
  return cluster_->StartWorkers(static_cast<uint32_t>(plan_.config.worker.count));
}

// Returns the failure of a dead child (the cause) instead of a failed call (the consequence). Waits
// a moment, so that the child's end is noticed. If the job has failed (FailedPrecondition), workers
// end with an error because of that.
absl::Status TrainRun::Blame(const absl::Status& status) {
  if (status.ok() || cluster_ == nullptr || absl::IsInvalidArgument(status)) return status;
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  while (Clock::now() < deadline) {
    if (AllStopped()) return Stopped();
    const absl::Status cause =
        absl::IsFailedPrecondition(status) ? cluster_->CheckLost() : cluster_->Check();
    if (!cause.ok()) {
      EPS_LOG_INFO("first seen as " << status.ToString());
      return cause;
    }
    std::this_thread::sleep_for(kTick);
  }
  return status;
}

absl::Status TrainRun::Run() {
  DriverJob job(plan_.config, plan_.spec, plan_.initial_weights, allow_changes_);
  job.lease = driver_lease_;
  job.model_files = plan_.model_files;
  job.unigram_entropy = plan_.unigram_entropy;
  EPS_ASSIGN_OR_RETURN(job.planned, PlannedServerMemory(plan_.config, plan_.spec));
  EPS_ASSIGN_OR_RETURN(driver_, JobDriver::Open(std::move(job), this));
  if (driver_->start().complete()) return absl::OkStatus();
  if (!out().empty()) {
    EPS_RETURN_IF_ERROR(CheckRoom(out(), plan_.spec, ChunkMap::Build(plan_.spec)));
  }
  EPS_RETURN_IF_ERROR(OpenFolders());
  EPS_RETURN_IF_ERROR(Blame(StartJob()));
  SetGraceful(true);
  EPS_RETURN_IF_ERROR(Blame(driver_->Follow()));
  const JobDriver::Result ended = driver_->result();
  const bool stopped = ended.interrupted || !ended.early_stop.empty();
  const auto deadline = Clock::now() + kWorkerExit;
  while (!stopped && !cluster_->WorkersEnded() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kTick);
  }
  finished_ = true;
  EPS_RETURN_IF_ERROR(driver_->Finish());
  Summarize();
  // All is written, and the processes of the run may end.
  EPS_RETURN_IF_ERROR(AwaitHook([] { return absl::OkStatus(); }));
  DropState();
  if (!StoppedEarly()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("interrupted after step ", driver_->result().step,
                                           " of ", plan_.spec.training.steps));
}

// Removes the state that an earlier run in this folder left, unless this run continues it.
absl::Status TrainRun::DropOldState() const {
  const StorageConfig& storage = plan_.config.storage;
  if (!storage.chosen || plan_.config.checkpoint.resume == "latest") return absl::OkStatus();
  if (OccupiedBytes(storage.path) == 0) return absl::OkStatus();
  Print(absl::StrCat("note: removing the state of an earlier run in ", storage.path,
                     ", which --resume=latest would continue\n"));
  return RemoveChosenState(plan_.config);
}

// Removes the state once the last checkpoint holds everything in it.
void TrainRun::DropState() {
  const StorageConfig& storage = plan_.config.storage;
  if (!storage.chosen || storage.keep) return;
  cluster_->Stop(kStopGrace);
  const absl::Status removed = RemoveChosenState(plan_.config);
  if (!removed.ok()) Print(absl::StrCat("note: ", removed.message(), "\n"));
}

bool TrainRun::StoppedEarly() const {
  const JobDriver::Result result = driver_->result();
  return result.interrupted && result.step < plan_.spec.training.steps;
}

void TrainRun::Summarize() const {
  const JobDriver::Result result = driver_->result();
  const uint64_t done = result.step > result.first_step ? result.step - result.first_step : 0;
  std::string text =
      absl::StrFormat("done: %d steps, %s tokens in %s, %s tokens/s\n", done,
                      FormatCount(result.tokens), FormatSeconds(result.seconds),
                      FormatCount(static_cast<uint64_t>(static_cast<double>(result.tokens) /
                                                        std::max(result.seconds, 1e-9))));
  const double mean = driver_->metrics().MeanLoss(kSummarySteps);
  if (plan_.unigram_entropy > 0 && !std::isnan(mean)) {
    absl::StrAppend(&text, LossText(plan_.spec.model, mean, std::min<uint64_t>(kSummarySteps, done),
                                    plan_.unigram_entropy));
  }
  if (const auto& evaluation = driver_->metrics().last_evaluation(); evaluation.has_value()) {
    absl::StrAppend(&text, HeldOutText(*evaluation, driver_->metrics().last_figures()));
  }
  if (!result.best.folder.empty()) {
    absl::StrAppend(&text, "best: ", result.best.folder, " (",
                    FigureText(plan_.config.eval.best_metric, result.best.figure), ")\n");
  }
  if (!result.early_stop.empty()) {
    absl::StrAppend(&text, "early stop: ", result.early_stop, "\n");
  }
  absl::StrAppend(&text, plan_check_.Verdict());
  if (plan_.spec.codecs.weights != "fp32") absl::StrAppend(&text, QuantizationSummary());
  if (!result.last_checkpoint.empty()) {
    absl::StrAppend(&text, "report: ", out(), "/report.html\nnext:\n",
                    GenerateHint(plan_.spec.model, result.last_checkpoint));
    absl::StrAppend(&text, "  eps train --out=", out(), " --resume=latest",
                    !result.early_stop.empty() ? " --training.early_stop_patience=0"
                    : StoppedEarly()
                        ? ""
                        : absl::StrCat(" --training.steps=", 2 * plan_.spec.training.steps),
                    "\n");
  }
  Print(text);
}

// Returns the time and the memory of just-in-time quantization, server by server.
std::string TrainRun::QuantizationSummary() const {
  ControlClient* const client = driver_->client();
  std::string text;
  for (size_t i = 0; i < client->servers().size(); ++i) {
    const absl::StatusOr<v1::StatusReply> status = client->GetStatus(i, std::chrono::seconds(10));
    if (!status.ok()) continue;  // the run is saved: do not fail it for a missing figure
    absl::StrAppend(&text, "server ", client->servers()[i], ":\n", StageTimesText(*status));
  }
  return text;
}

// Writes the offline run for wandb. A failure is printed and ends nothing.
void PrintWandbRun(const std::string& folder) {
  const absl::StatusOr<std::string> line = WriteWandbRun(folder);
  Print(line.ok() ? *line : absl::StrCat("note: ", line.status().message(), "\n"));
}

}  // namespace

absl::Status RunTrain(const RunConfig& given) {
  HandleInterrupts();
  HandleSaveRequests();
  RunConfig run = given;
  std::unique_ptr<OutputFolder> output;
  if (NeedsExport(run.config)) {
    EPS_ASSIGN_OR_RETURN(output, OutputFolder::Claim(run.config.checkpoint, run.overwrite));
    EPS_RETURN_IF_ERROR(ExportModelOfRun(&run.config));
  }
  EPS_ASSIGN_OR_RETURN(TrainPlan plan, MakePlan(run));
  const std::string out = plan.config.checkpoint.dir;
  if (output == nullptr) {
    EPS_ASSIGN_OR_RETURN(output, OutputFolder::Claim(plan.config.checkpoint, run.overwrite));
  }
  EPS_ASSIGN_OR_RETURN(const ServerChoice servers, ChooseServers(plan.config.servers));
  std::string state;
  if (servers.spawn > 0) {
    EPS_ASSIGN_OR_RETURN(state, ChooseState(plan.spec, servers.spawn, &plan.config));
  }
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<LocalAuthority> authority,
                       UseSecurityOfRun(plan.config.security, servers.spawn > 0));
  EPS_RETURN_IF_ERROR(CheckWandb(plan.config));
  const bool with_wandb = plan.config.metrics.wandb;
  const std::string chosen = plan.config.storage.chosen ? plan.config.storage.path : "";
  Print(absl::StrCat("settings: ", run.origin.empty() ? "defaults" : run.origin, "\n"));
  absl::Status status;
  {
    TrainRun train(run, std::move(plan), std::move(output), std::move(state), std::move(authority));
    status = train.Run();
  }
  if (absl::IsCancelled(status) && Interrupted()) status = WithExitCode(status, InterruptCode());
  std::error_code error;
  if (with_wandb && fs::exists(out + "/metrics.jsonl", error)) PrintWandbRun(out);
  // The error for an unusable checkpoint already says which one is usable.
  const bool unreadable = absl::StartsWith(status.message(), "checkpoint.resume: ");
  if (status.ok() || unreadable || out.empty()) return status;
  if (fs::exists(out + "/latest", error)) {
    std::fprintf(stderr,
                 "to continue from the last checkpoint: eps train --out=%s --resume=latest\n",
                 out.c_str());
  } else if (!chosen.empty() && fs::exists(chosen, error)) {
    std::fprintf(stderr,
                 "to continue from the last cut: repeat the command with --resume=latest\n");
  }
  return status;
}

}  // namespace eps
