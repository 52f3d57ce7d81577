#include "cli/commands/train.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "cli/launch/cluster.h"
#include "wire/control_client.h"
#include "base/files/files.h"
#include "checkpoint/initial_weights.h"
#include "cli/launch/interrupt.h"
#include "checkpoint/job_state.h"
#include "cli/launch/metrics_log.h"
#include "cli/launch/plan.h"
#include "cli/launch/plan_check.h"
#include "cli/launch/progress.h"
#include "cli/commands/status_command.h"
#include "cli/launch/tensorboard.h"
#include "base/exit_code.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/job/chunk_map.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::seconds kConnectTimeout{30};
constexpr std::chrono::milliseconds kFirstReconnect{200};  // doubles with each attempt
constexpr std::chrono::milliseconds kLastReconnect{6'400};
constexpr std::chrono::seconds kRejoinTimeout{300};  // without a server that answers
constexpr std::chrono::seconds kSilence{30};         // without a step, until the waits are shown
constexpr std::chrono::seconds kWorkerExit{10};      // from the job's end to the workers' own
constexpr std::chrono::milliseconds kRecordsAfterWorkers{2'000};  // records may be on their way
constexpr std::chrono::seconds kStopGrace{5};
constexpr size_t kSummarySteps = 20;

void Print(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string FirstLine(absl::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// The lead's step records, read by a thread, taken in order by the supervisor.
class StepWatch {
 public:
  // `until_evaluation` as ControlClient::Watch.
  StepWatch(ControlClient* client, uint64_t after_step, uint64_t until_evaluation)
      : client_(client),
        thread_([this, after_step, until_evaluation] { Run(after_step, until_evaluation); }) {}
  ~StepWatch() {
    client_->CancelWatch();
    thread_.join();
  }

  // The next record; nothing after kTick, or when the stream has ended (see end()).
  std::optional<v1::StepRecord> Next() EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    const auto deadline = Clock::now() + kTick;
    while (records_.empty() && !end_.has_value() && Clock::now() < deadline) {
      changed_.WaitUntil(&mu_, deadline);
    }
    if (records_.empty()) return std::nullopt;
    v1::StepRecord record = std::move(records_.front());
    records_.pop_front();
    return record;
  }
  // How the stream ended, once all its records were taken.
  std::optional<absl::Status> end() EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return records_.empty() ? end_ : std::nullopt;
  }

 private:
  void Run(uint64_t after_step, uint64_t until_evaluation) {
    const absl::Status status =
        client_->Watch(after_step, until_evaluation, [this](const v1::StepRecord& record) {
          MutexLock lock(&mu_);
          records_.push_back(record);
          changed_.NotifyAll();
        });
    MutexLock lock(&mu_);
    end_ = status;
    changed_.NotifyAll();
  }

  ControlClient* const client_;
  Mutex mu_;
  CondVar changed_;
  std::deque<v1::StepRecord> records_ EPS_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ EPS_GUARDED_BY(mu_);
  std::thread thread_;
};

class TrainRun {
 public:
  explicit TrainRun(TrainPlan plan)
      : plan_(std::move(plan)), spec_(plan_.spec), chunks_(ChunkMap::Build(spec_)) {}
  ~TrainRun();

  absl::Status Run();

 private:
  absl::Status OpenResume();
  absl::Status OpenFolders();
  absl::Status OpenLogs(uint64_t border);
  absl::Status StartJob();
  absl::StatusOr<v1::StatusReply> AwaitRecovery();
  absl::Status TakeRecovered(const v1::StatusReply& status, bool own_servers);
  absl::Status KeepConfig() const;
  std::string ConfigText() const;
  absl::Status SetState(v1::JobState state);
  absl::Status Supervise();
  absl::Status FollowSteps();
  absl::Status CheckCluster();
  bool GoesOnFromACut(const absl::Status& status) const;
  absl::Status Rejoin(const absl::Status& why);
  absl::Status TryRejoin(std::chrono::milliseconds timeout);
  absl::Status OnRecord(const v1::StepRecord& record);
  absl::Status OnEvaluation(const v1::StepRecord& record);
  absl::Status Log(const v1::StepRecord& record);
  void AwaitEvaluation(StepWatch* watch);
  absl::Status AwaitLastEvaluation(StepWatch* watch);
  absl::Status OnBorder(uint64_t step);
  absl::Status OnQuiet(StepWatch* watch);
  absl::Status Blame(const absl::Status& status);
  absl::Status StopAtNextBorder();
  absl::Status GateFrom(uint64_t step);
  void ExtendPatience();
  bool Evaluating() const;
  absl::Status GateNextSave();
  absl::Status WriteCheckpoint(uint64_t step);
  void ShowWaits();
  std::string QuantizationSummary() const;
  void Summarize() const;
  // The next step after `step` at which a checkpoint is due; 0: none but the last.
  uint64_t NextSave(uint64_t step) const;
  const std::string& out() const { return plan_.config.checkpoint.dir; }

  TrainPlan plan_;
  const JobSpec& spec_;
  const ChunkMap chunks_;
  std::unique_ptr<CheckpointReader> resume_;
  std::unique_ptr<ResidualImport> residuals_;  // of resume_
  uint64_t first_step_ = 0;                    // the border that this run starts from
  bool complete_ = false;                      // --resume=latest found the end of the job
  bool recovered_ = false;                     // that border is the servers', of durable state
  bool durable_ = false;                       // servers that are killed come back
  std::string log_folder_;
  bool temporary_ = false;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<TensorBoardLog> tensorboard_;  // null: none is wanted, or it cannot be written
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<ControlClient> client_;
  EtaEstimator eta_;
  uint64_t step_ = 0;          // last completed
  uint64_t gate_ = 0;          // border at which the servers hold; 0: none
  bool stopping_ = false;      // stop at gate_
  Clock::time_point stop_by_;  // of stopping_
  double longest_step_ = 0;    // seconds
  PlanCheck plan_check_;
  bool finished_ = false;
  uint64_t tokens_ = 0;
  Clock::time_point started_;
  Clock::time_point last_record_;
  std::string last_checkpoint_;
};

TrainRun::~TrainRun() {
  if (cluster_ != nullptr) cluster_->Stop(finished_ ? kStopGrace : std::chrono::seconds(1));
  std::error_code ignored;
  if (temporary_ && finished_) fs::remove_all(log_folder_, ignored);
}

uint64_t TrainRun::NextSave(uint64_t step) const {
  const uint64_t every = plan_.config.checkpoint.save_steps;
  if (every == 0 || out().empty()) return 0;
  const uint64_t next = (step / every + 1) * every;
  return next < spec_.training.steps ? next : 0;
}

absl::Status TrainRun::OpenResume() {
  EPS_ASSIGN_OR_RETURN(const std::string folder, ResumeFolder(plan_.config.checkpoint));
  if (folder.empty() && plan_.config.checkpoint.resume == "latest" &&
      !plan_.config.storage.durable()) {
    Print(absl::StrCat("note: --resume=latest: no checkpoint in ", out(), " yet, starting anew\n"));
  }
  if (folder.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<CheckpointReader>> checkpoint = CheckpointReader::Open(folder);
  if (absl::IsDataLoss(checkpoint.status())) {
    const fs::path path =
        fs::path(folder).has_filename() ? fs::path(folder) : fs::path(folder).parent_path();
    return absl::DataLossError(
        absl::StrCat("checkpoint.resume: ", checkpoint.status().message(),
                     ResumeAdvice(path.parent_path().string(), path.filename().string())));
  }
  EPS_RETURN_IF_ERROR(checkpoint.status());
  resume_ = *std::move(checkpoint);
  EPS_RETURN_IF_ERROR(resume_->CheckFits(spec_));
  first_step_ = resume_->border().step;
  if (first_step_ >= spec_.training.steps) {
    const std::string text = absl::StrCat(
        "checkpoint.resume: ", folder, " is at step ", first_step_, " and training.steps is ",
        spec_.training.steps, ": nothing is left to train; raise training.steps");
    // A job that is started again and again with the same arguments has come to its end.
    complete_ = plan_.config.checkpoint.resume == "latest";
    if (!complete_) return absl::InvalidArgumentError(text);
    Print(absl::StrCat("note: ", text, " to go on\n"));
    return absl::OkStatus();
  }
  Print(absl::StrCat("resume: ", folder, ", step ", first_step_, "\n"));
  const std::string difference = FirstDifference(resume_->spec().ToText(), spec_.ToText());
  if (!difference.empty()) {
    Print(absl::StrCat("note: not the same job as before: ", difference, "\n"));
  }
  EPS_ASSIGN_OR_RETURN(residuals_, ResidualImport::Create(resume_->residuals_or_null(),
                                                          resume_->spec(), spec_, chunks_));
  if (!residuals_->note().empty()) Print(absl::StrCat("note: ", residuals_->note(), "\n"));
  return absl::OkStatus();
}

absl::Status TrainRun::OpenFolders() {
  std::error_code error;
  if (out().empty()) {
    EPS_ASSIGN_OR_RETURN(log_folder_, MakeTemporaryFolder("train"));  // kept if something failed
    temporary_ = true;
    Print("note: checkpoint.dir (--out) is empty: no checkpoint will be written\n");
  } else {
    log_folder_ = out() + "/logs";
    fs::create_directories(log_folder_, error);
    if (error) {
      const std::string text =
          absl::StrCat("cannot create ", log_folder_, " (checkpoint.dir): ", error.message());
      return error == std::errc::permission_denied ? absl::PermissionDeniedError(text)
                                                   : IoError(text);
    }
    if (resume_ == nullptr && fs::exists(out() + "/latest", error)) {
      Print(absl::StrCat("note: ", out(),
                         " holds checkpoints of an earlier run; --resume=latest would continue "
                         "it, this run replaces those of equal steps\n"));
    }
  }
  return absl::OkStatus();
}

// With what was written up to a border from which the job goes on.
absl::Status TrainRun::OpenLogs(uint64_t border) {
  metrics_.reset();
  tensorboard_.reset();
  EPS_ASSIGN_OR_RETURN(metrics_,
                       MetricsLog::Open(out().empty() ? "" : out() + "/metrics.jsonl", border));
  if (!out().empty() && plan_.config.metrics.tensorboard) {
    EPS_ASSIGN_OR_RETURN(tensorboard_, TensorBoardLog::Open(out() + "/tensorboard", border));
  }
  return absl::OkStatus();
}

// The job once its servers have agreed on what is durable.
absl::StatusOr<v1::StatusReply> TrainRun::AwaitRecovery() {
  // At 20 MB/s even a slow disk is not taken for a dead server.
  uint64_t elements = 0;
  for (const Chunk& chunk : chunks_.chunks()) elements += chunk.elements;
  const auto deadline = Clock::now() + std::chrono::seconds(120 + elements * 12 / 20'000'000);
  auto show = Clock::now() + kSilence;
  for (;;) {
    EPS_ASSIGN_OR_RETURN(v1::StatusReply status, client_->GetStatus(0, std::chrono::seconds(10)));
    if (status.state() != v1::JOB_STATE_RECOVERING) return status;
    EPS_RETURN_IF_ERROR(CheckCluster());
    if (Interrupted()) return absl::CancelledError("interrupted");
    if (Clock::now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the servers do not agree on what is durable; they wait for ",
                       status.waits_size() > 0 ? status.waits(0).waits_for() : "each other"));
    }
    if (Clock::now() > show) {
      ShowWaits();
      show = Clock::now() + kSilence;
    }
    std::this_thread::sleep_for(kTick);
  }
}

// Whatever the servers have is the newest: a checkpoint is not read.
absl::Status TrainRun::TakeRecovered(const v1::StatusReply& status, bool own_servers) {
  const bool anew = plan_.config.checkpoint.resume == "none";
  if (!durable_ || status.step() == 0 || (anew && !own_servers)) return absl::OkStatus();
  const uint64_t border = status.step() - 1;
  std::string folder = absl::StrJoin(client_->servers(), ",");
  if (own_servers) {
    EPS_ASSIGN_OR_RETURN(folder, StorageFolder(plan_.config));
  }
  if (anew) {
    return absl::FailedPreconditionError(
        absl::StrCat("storage.path: ", folder, " holds this job at step ", border,
                     "; --resume=latest goes on with it; to start anew, name another one or remove "
                     "it (eps state rm)"));
  }
  resume_.reset();
  residuals_.reset();
  first_step_ = border;
  recovered_ = true;
  Print(absl::StrCat("resume: ", folder, ", step ", border, ", term ", status.term(), "\n"));
  return absl::OkStatus();
}

// The configuration, for a checkpoint and beside the state.
std::string TrainRun::ConfigText() const {
  Config config = plan_.config;
  config.checkpoint.resume = "none";
  return config.ToYaml();
}

// For the tools that make checkpoints of the servers' state.
absl::Status TrainRun::KeepConfig() const {
  EPS_ASSIGN_OR_RETURN(const std::string folder, StorageFolder(plan_.config));
  return ReplaceFile(JobConfigFile(folder, spec_.id()), ConfigText());
}

absl::Status TrainRun::SetState(v1::JobState state) {
  if (state == v1::JOB_STATE_FAILED) {
    EPS_ASSIGN_OR_RETURN(const v1::StatusReply status,
                         client_->GetStatus(0, std::chrono::seconds(10)));
    return absl::FailedPreconditionError(
        absl::StrCat("these servers hold the failed job of an earlier run (", status.failure(),
                     "); restart them and use --resume=latest"));
  }
  if (state != v1::JOB_STATE_IMPORTING) {
    if (!plan_.config.storage.durable()) {
      Print("note: the servers already run this job; joining it\n");
    }
    return absl::OkStatus();
  }
  const std::vector<ShardId> placement =
      chunks_.Place(static_cast<uint32_t>(client_->servers().size()));
  std::unique_ptr<WeightsReader> weights;
  if (resume_ == nullptr && !plan_.initial_weights.empty()) {
    EPS_ASSIGN_OR_RETURN(weights, WeightsReader::Open(plan_.initial_weights, spec_));
    Print(absl::StrCat("weights: from ", plan_.initial_weights, "\n"));
    for (const std::string& note : weights->notes()) Print(absl::StrCat("note: ", note, "\n"));
  }
  for (uint32_t s = 0; s < client_->servers().size(); ++s) {
    const ShardId shard(s);
    if (resume_ == nullptr && weights == nullptr) {
      EPS_RETURN_IF_ERROR(client_->Initialize(shard));
      continue;
    }
    ControlClient::ImportSource source;
    for (const Chunk& chunk : chunks_.chunks()) {
      if (placement[chunk.id.value()] != shard) continue;
      source.chunks.push_back(chunk.id);
      if (residuals_ == nullptr) continue;
      for (const ResidualPlace& place : residuals_->PlacesOf(chunk.id)) {
        source.residuals.push_back(place);
      }
    }
    if (resume_ != nullptr) source.border = resume_->border();
    source.read = [&](ChunkId id) {
      return resume_ != nullptr ? resume_->ReadChunk(spec_, chunks_.chunk(id))
                                : weights->ReadChunk(spec_, chunks_.chunk(id));
    };
    source.read_residual = [&](const ResidualPlace& place) { return residuals_->Read(place); };
    EPS_RETURN_IF_ERROR(client_->Import(shard, source));
  }
  return absl::OkStatus();
}

absl::Status TrainRun::StartJob() {
  EPS_ASSIGN_OR_RETURN(const ServerChoice choice, ChooseServers(plan_.config.servers));
  durable_ = plan_.config.storage.durable();
  const uint32_t servers =
      choice.spawn != 0 ? choice.spawn : static_cast<uint32_t>(choice.attach.size());
  EPS_ASSIGN_OR_RETURN(const std::string summary, PlanSummary(plan_, servers));
  Print(summary);
  EPS_ASSIGN_OR_RETURN(plan_check_, PlanCheck::New(plan_.config, spec_));
  Print(plan_check_.summary());
  cluster_ = std::make_unique<Cluster>(plan_.config, log_folder_);
  if (choice.spawn != 0) {
    EPS_RETURN_IF_ERROR(cluster_->StartServers(choice.spawn));
  } else {
    cluster_->UseServers(choice.attach);
  }
  EPS_ASSIGN_OR_RETURN(
      client_, ControlClient::Connect(cluster_->addresses(), Clock::now() + kConnectTimeout));
  EPS_RETURN_IF_ERROR(client_->CreateJob(spec_).status());
  EPS_ASSIGN_OR_RETURN(const v1::StatusReply job, AwaitRecovery());
  EPS_RETURN_IF_ERROR(TakeRecovered(job, choice.spawn != 0));
  if (choice.spawn != 0 && durable_) EPS_RETURN_IF_ERROR(KeepConfig());
  EPS_RETURN_IF_ERROR(OpenLogs(first_step_));
  EPS_RETURN_IF_ERROR(SetState(job.state()));
  // A job that is under way tells its records from where the log ends, and gets its next
  // checkpoint.
  step_ = recovered_ ? std::min(first_step_, metrics_->last_step()) : first_step_;
  gate_ = NextSave(std::max(first_step_, job.step() > 0 ? job.step() - 1 : 0));
  EPS_RETURN_IF_ERROR(GateNextSave());
  return cluster_->StartWorkers(static_cast<uint32_t>(plan_.config.worker.count));
}

// Sets the gate at gate_, or at a later border of a checkpoint if that one is passed by now or
// cannot be exported any more.
absl::Status TrainRun::GateNextSave() {
  while (true) {
    EPS_ASSIGN_OR_RETURN(const uint64_t first, client_->Gate(gate_));
    if (gate_ == 0 || first <= gate_) return absl::OkStatus();
    gate_ = NextSave(first - 1);
  }
}

absl::Status TrainRun::WriteCheckpoint(uint64_t step) {
  if (out().empty()) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWriter> writer,
                       CheckpointWriter::Create(out(), step, spec_, chunks_));
  // At 20 MB/s even a slow disk is not taken for a dead server.
  const std::chrono::seconds timeout(120 + writer->bytes() / 20'000'000);
  Border border;
  for (uint32_t s = 0; s < client_->servers().size(); ++s) {
    EPS_RETURN_IF_ERROR(client_->Export(
        ShardId(s), step, timeout,
        [&](ChunkId chunk, const Border& at, const ChunkState& state) -> absl::Status {
          if (s == 0) border = at;  // the lead knows the norm
          if (at.step != step || at.version != border.version || at.term != border.term) {
            return absl::InternalError(
                absl::StrCat("server ", client_->servers()[s], " is at step ", at.step, " version ",
                             at.version, ", expected step ", step, " version ", border.version));
          }
          return writer->WriteChunk(chunk, state);
        },
        [&](const ResidualPlace& place, const std::string& encoded) {
          return writer->WriteResidual(place, encoded);
        }));
  }
  SmallFiles files = FilesOfJob(spec_);
  files["trainer_state.json"] =
      metrics_->TrainerState(spec_, step, plan_.config.training.eval_steps);
  files["eps/config.yaml"] = ConfigText();
  EPS_RETURN_IF_ERROR(writer->Commit(border, files));
  last_checkpoint_ = writer->folder();
  Print(absl::StrCat("checkpoint: ", last_checkpoint_, "\n"));
  const auto removed = RemoveOldCheckpoints(out(), plan_.config.checkpoint.save_total_limit);
  // The checkpoint is there: what cannot be removed is no reason to end.
  if (!removed.ok()) Print(absl::StrCat("note: ", removed.status().message(), "\n"));
  return absl::OkStatus();
}

absl::Status TrainRun::OnBorder(uint64_t step) {
  EPS_RETURN_IF_ERROR(WriteCheckpoint(step));
  if (stopping_) return absl::OkStatus();
  gate_ = NextSave(step);
  return GateNextSave();
}

absl::Status TrainRun::Log(const v1::StepRecord& record) {
  if (tensorboard_ != nullptr) {
    const absl::Status status = tensorboard_->Add(record);
    if (!status.ok()) {  // a picture for people: not worth a run
      Print(absl::StrCat("note: ", std::string(status.message()), "; no more is written there\n"));
      tensorboard_.reset();
    }
  }
  return metrics_->Add(record);
}

absl::Status TrainRun::OnEvaluation(const v1::StepRecord& record) {
  last_record_ = Clock::now();
  longest_step_ = std::max(longest_step_, record.step_seconds());
  plan_check_.AddStep(record.step_seconds());
  if (stopping_) ExtendPatience();
  Print(EvaluationLine(record, spec_.training.steps) + "\n");
  // A resume evaluates its border again: the same figure.
  return metrics_->Evaluated(record.step()) ? absl::OkStatus() : Log(record);
}

absl::Status TrainRun::OnRecord(const v1::StepRecord& record) {
  if (record.has_evaluation()) return OnEvaluation(record);
  step_ = record.step();
  tokens_ += record.tokens();
  last_record_ = Clock::now();
  eta_.Add(record.step_seconds());
  longest_step_ = std::max(longest_step_, record.step_seconds());
  if (stopping_) ExtendPatience();
  EPS_RETURN_IF_ERROR(Log(record));
  const uint64_t every = std::max<uint64_t>(1, plan_.config.metrics.log_every_steps);
  const uint64_t steps = spec_.training.steps;
  if (step_ % every == 0 || step_ == steps || step_ == first_step_ + 1) {
    Print(ProgressLine(record, steps, eta_.SecondsFor(steps - step_)) + "\n");
  }
  if (step_ == gate_ || step_ == steps) return OnBorder(step_);
  return absl::OkStatus();
}

// From now on, how long the step that runs may take before an interrupted run is given up.
void TrainRun::ExtendPatience() {
  const double patience = std::max(
      static_cast<double>(plan_.config.servers.worker_timeout_ms) / 1e3, 3 * longest_step_);
  stop_by_ = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(patience * 1e3));
}

// Whether workers of ours, which are alive, have an evaluation to finish before the next step.
bool TrainRun::Evaluating() const {
  const uint64_t every = plan_.config.training.eval_steps;
  return every > 0 && step_ > 0 && step_ % every == 0 && plan_.config.worker.count > 0 &&
         !metrics_->Evaluated(step_);
}

absl::Status TrainRun::StopAtNextBorder() {
  Print("interrupted: finishing the step, then a checkpoint; once more ends at once\n");
  stopping_ = true;
  ExtendPatience();
  return GateFrom(step_ + 1);
}

// Moves the gate to the first border from `step` on that no server has passed and at which all of
// them hold all of their state: with quantization.residual_home=worker that is often the one after.
absl::Status TrainRun::GateFrom(uint64_t step) {
  gate_ = step;
  while (true) {
    EPS_ASSIGN_OR_RETURN(const uint64_t first, client_->Gate(gate_));
    if (first <= gate_) return absl::OkStatus();
    gate_ = first;
  }
}

void TrainRun::ShowWaits() {
  for (size_t s = 0; s < client_->servers().size(); ++s) {
    const absl::StatusOr<v1::StatusReply> status = client_->GetStatus(s, std::chrono::seconds(5));
    if (!status.ok()) {
      Print(absl::StrCat("waiting: ", status.status().message(), "\n"));
    } else if (status->waits_size() == 0) {
      Print(absl::StrCat("waiting: server ", s, " stands at step ", status->step(), " with ",
                         status->joined_workers(), " workers, for their next request\n"));
    } else {
      const v1::Wait& wait = status->waits(0);
      Print(absl::StrFormat("waiting: server %d: %s waits %.0f s for %s\n", s, wait.what(),
                            wait.seconds(), wait.waits_for()));
    }
  }
}

// Looks after everything but the steps. The status ends the run.
absl::Status TrainRun::OnQuiet(StepWatch* watch) {
  EPS_RETURN_IF_ERROR(CheckCluster());
  if (const std::optional<absl::Status> end = watch->end(); end.has_value()) {
    if (!end->ok()) return *end;
    return absl::UnavailableError(
        absl::StrCat("the job ended at step ", step_, " of ", spec_.training.steps));
  }
  if (plan_.config.worker.count > 0 && cluster_->WorkersEnded()) {
    // Their last step may be on its way to us.
    if (Clock::now() - last_record_ > kWorkerExit) {
      return absl::InternalError(absl::StrCat("all workers ended at step ", step_, " of ",
                                              spec_.training.steps, "; their logs are in ",
                                              log_folder_));
    }
  }
  if (stopping_ && Clock::now() > stop_by_ && !Evaluating()) {
    ShowWaits();
    return absl::CancelledError(absl::StrCat("interrupted, and step ", gate_,
                                             " did not come to an end (servers.worker_timeout)"));
  }
  if (Clock::now() - last_record_ > kSilence) {
    ShowWaits();
    last_record_ = Clock::now();
  }
  return absl::OkStatus();
}

// Reads records until the evaluation behind the last step is there. The status says why it will not
// come: workers that evaluate are alive, as processes of ours or by what they fetch.
absl::Status TrainRun::AwaitLastEvaluation(StepWatch* watch) {
  const std::chrono::milliseconds patience(plan_.config.servers.worker_timeout_ms);
  uint64_t fetches = 0;
  Clock::time_point last_sign = Clock::now();
  while (!metrics_->Evaluated(spec_.training.steps)) {
    if (const std::optional<v1::StepRecord> record = watch->Next(); record.has_value()) {
      EPS_RETURN_IF_ERROR(OnRecord(*record));
      continue;
    }
    EPS_RETURN_IF_ERROR(CheckCluster());
    if (Interrupted()) return absl::CancelledError("interrupted");
    if (watch->end().has_value()) return absl::UnavailableError("the job's records ended");
    if (plan_.config.worker.count > 0 && !cluster_->WorkersEnded()) continue;
    EPS_ASSIGN_OR_RETURN(const v1::StatusReply status,
                         client_->GetStatus(0, std::chrono::seconds(10)));
    const auto counter = status.counters().find("fetches");
    const uint64_t now = counter == status.counters().end() ? 0 : counter->second;
    if (now != std::exchange(fetches, now)) last_sign = Clock::now();
    const bool spawned = plan_.config.worker.count > 0;
    if (Clock::now() - last_sign > (spawned ? kRecordsAfterWorkers : patience)) {
      return absl::UnavailableError(spawned ? "the workers ended without it"
                                            : "no worker fetches weights for it");
    }
  }
  return absl::OkStatus();
}

// The run is complete and its weights are saved: it does not fail for want of a figure.
void TrainRun::AwaitEvaluation(StepWatch* watch) {
  const absl::Status status = AwaitLastEvaluation(watch);
  if (status.ok()) return;
  Print(absl::StrCat("note: the evaluation behind the last step did not come: ",
                     std::string(status.message()), "\n"));
}

// OK while every process of ours runs, or runs again.
absl::Status TrainRun::CheckCluster() { return durable_ ? cluster_->Mend() : cluster_->Check(); }

// Whether an error is only what is seen here of servers that go back to their last cut.
bool TrainRun::GoesOnFromACut(const absl::Status& status) const {
  return durable_ && plan_.config.storage.max_restarts > 0 && !Interrupted() &&
         (absl::IsUnavailable(status) || absl::IsAborted(status));
}

// Takes the job up where its servers stand now.
absl::Status TrainRun::TryRejoin(std::chrono::milliseconds timeout) {
  EPS_ASSIGN_OR_RETURN(client_,
                       ControlClient::Connect(cluster_->addresses(), Clock::now() + timeout));
  EPS_RETURN_IF_ERROR(client_->CreateJob(spec_).status());
  EPS_ASSIGN_OR_RETURN(const v1::StatusReply job, AwaitRecovery());
  EPS_RETURN_IF_ERROR(SetState(job.state()));
  const uint64_t border = job.step() > 0 ? job.step() - 1 : 0;
  Print(absl::StrCat("note: the job goes on behind step ", border, ", term ", job.term(), "\n"));
  EPS_RETURN_IF_ERROR(OpenLogs(border));
  step_ = std::min(border, metrics_->last_step());
  last_record_ = Clock::now();
  if (stopping_) return GateFrom(border + 1);
  gate_ = NextSave(border);
  return GateNextSave();
}

absl::Status TrainRun::Rejoin(const absl::Status& why) {
  Print(absl::StrCat("note: ", FirstLine(why.message()), "\n"));
  const auto deadline = Clock::now() + kRejoinTimeout;
  for (auto timeout = kFirstReconnect;; timeout = std::min(2 * timeout, kLastReconnect)) {
    EPS_RETURN_IF_ERROR(CheckCluster());
    const absl::Status status = TryRejoin(timeout);
    if (status.ok()) return status;
    if (!GoesOnFromACut(status) || Clock::now() > deadline) return status;
    std::this_thread::sleep_for(kTick);
  }
}

absl::Status TrainRun::Supervise() {
  started_ = Clock::now();
  SetGraceful(true);
  const std::string servers = absl::StrJoin(client_->servers(), ",");
  Print(absl::StrFormat("job: %016x at step %d (eps status --servers=%s)\n", client_->job().value(),
                        step_, servers));
  for (;;) {
    const absl::Status status = FollowSteps();
    if (!GoesOnFromACut(status)) return status;
    EPS_RETURN_IF_ERROR(Rejoin(status));
  }
}

// To the last step, or the one at which the run stops.
absl::Status TrainRun::FollowSteps() {
  const uint64_t evaluated =
      plan_.config.training.eval_steps > 0 ? spec_.training.steps : uint64_t{0};
  StepWatch watch(client_.get(), step_, evaluated);
  last_record_ = Clock::now();
  // A job that ended, and whose run was killed before it had its checkpoint.
  if (step_ == spec_.training.steps) EPS_RETURN_IF_ERROR(OnBorder(step_));
  while (step_ < spec_.training.steps) {
    const std::optional<v1::StepRecord> record = watch.Next();
    if (record.has_value()) {
      EPS_RETURN_IF_ERROR(OnRecord(*record));
    } else {
      EPS_RETURN_IF_ERROR(OnQuiet(&watch));
    }
    if (Interrupted() && !stopping_) EPS_RETURN_IF_ERROR(StopAtNextBorder());
    if (stopping_ && step_ >= gate_) return absl::OkStatus();
  }
  if (evaluated > 0 && !stopping_) AwaitEvaluation(&watch);
  return absl::OkStatus();
}

void TrainRun::Summarize() const {
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  const uint64_t done = step_ > first_step_ ? step_ - first_step_ : 0;
  std::string text = absl::StrFormat(
      "done: %d steps, %s tokens in %s, %s tokens/s\n", done, FormatCount(tokens_),
      FormatSeconds(seconds),
      FormatCount(static_cast<uint64_t>(static_cast<double>(tokens_) / std::max(seconds, 1e-9))));
  const double mean = metrics_->MeanLoss(kSummarySteps);
  if (plan_.unigram_entropy > 0 && !std::isnan(mean)) {
    absl::StrAppendFormat(
        &text,
        "loss: %.4f over the last %d steps; guessing from letter frequencies alone "
        "gives %.4f (ratio %.2f)\n",
        mean, std::min<uint64_t>(kSummarySteps, done), plan_.unigram_entropy,
        mean / plan_.unigram_entropy);
  }
  absl::StrAppend(&text, plan_check_.Verdict());
  if (spec_.codecs.weights != "fp32") absl::StrAppend(&text, QuantizationSummary());
  if (!last_checkpoint_.empty()) {
    absl::StrAppend(&text, "next:\n");
    if (spec_.model.type == ModelType::kGpt2) {
      absl::StrAppend(&text, "  eps generate --model=", last_checkpoint_,
                      " --prompt=\"This License\"\n");
    }
    const uint64_t steps = stopping_ && step_ < spec_.training.steps ? 0 : 2 * spec_.training.steps;
    absl::StrAppend(&text, "  eps train --out=", out(), " --resume=latest",
                    steps == 0 ? "" : absl::StrCat(" --training.steps=", steps), "\n");
  }
  Print(text);
}

// What quantizing just in time took and saved, server by server.
std::string TrainRun::QuantizationSummary() const {
  std::string text;
  for (size_t i = 0; i < client_->servers().size(); ++i) {
    const absl::StatusOr<v1::StatusReply> status = client_->GetStatus(i, std::chrono::seconds(10));
    if (!status.ok()) continue;  // the run is over and saved: it does not fail for want of a figure
    absl::StrAppend(&text, "server ", client_->servers()[i], ":\n", StageTimesText(*status));
  }
  return text;
}

// A dead child is the cause, a call that failed the consequence: gives it a moment to be seen.
absl::Status TrainRun::Blame(const absl::Status& status) {
  if (status.ok() || cluster_ == nullptr || absl::IsInvalidArgument(status)) return status;
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  while (Clock::now() < deadline) {
    EPS_RETURN_IF_ERROR(cluster_->Check());
    std::this_thread::sleep_for(kTick);
  }
  return status;
}

absl::Status TrainRun::Run() {
  EPS_RETURN_IF_ERROR(OpenResume());
  if (complete_) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(OpenFolders());
  EPS_RETURN_IF_ERROR(Blame(StartJob()));
  EPS_RETURN_IF_ERROR(Blame(Supervise()));
  const auto deadline = Clock::now() + kWorkerExit;
  while (!stopping_ && !cluster_->WorkersEnded() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kTick);
  }
  finished_ = true;
  if (!out().empty()) {
    // As Trainer.save_state: with the evaluation behind the last step, which the last checkpoint is
    // too early for.
    EPS_RETURN_IF_ERROR(
        ReplaceFile(out() + "/trainer_state.json",
                    metrics_->TrainerState(spec_, step_, plan_.config.training.eval_steps)));
  }
  Summarize();
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTrain(const RunConfig& run) {
  HandleInterrupts();
  EPS_ASSIGN_OR_RETURN(TrainPlan plan, MakePlan(run));
  const std::string out = plan.config.checkpoint.dir;
  Print(absl::StrCat("settings: ", run.origin.empty() ? "defaults" : run.origin, "\n"));
  absl::Status status;
  {
    TrainRun train(std::move(plan));
    status = train.Run();
  }
  std::error_code error;
  // A checkpoint that cannot be resumed from has said what can.
  const bool unreadable = absl::StartsWith(status.message(), "checkpoint.resume: ");
  if (!status.ok() && !unreadable && !out.empty() && fs::exists(out + "/latest", error)) {
    std::fprintf(stderr, "to go on from the last checkpoint: eps train --out=%s --resume=latest\n",
                 out.c_str());
  }
  return status;
}

}  // namespace eps
