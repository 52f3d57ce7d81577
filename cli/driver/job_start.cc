#include "cli/driver/job_start.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/job/differences/spec_differences.h"
#include "base/machine/disk_room.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/guard/found_state.h"
#include "checkpoint/initial_weights.h"
#include "checkpoint/job_state.h"
#include "checkpoint/state_folder.h"
#include "cli/driver/best_evaluation.h"
#include "cli/driver/job_output.h"
#include "cli/driver/metrics_log.h"
#include "cli/driver/progress.h"

namespace eps {

namespace fs = std::filesystem;

namespace {

// Refuses to continue a run with other data, another model or seed: that is another run, and most
// likely a slip. Names all differences, so that none has to be found one by one.
absl::Status CheckSameRun(
    const std::string& where, const std::vector<SpecDifference>& differences,
    const std::string& advice = "--allow-changes continues with the new ones") {
  std::vector<std::string> all;
  bool same = true;
  for (const SpecDifference& difference : differences) {
    all.push_back(difference.text);
    same = same && !absl::StartsWith(difference.key, "data.") &&
           !absl::StartsWith(difference.key, "model.") && !absl::EndsWith(difference.key, ".seed");
  }
  if (same) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "checkpoint.resume: ", where,
      " belongs to a run with other settings: ", absl::StrJoin(all, "; "), "; ", advice));
}

// Returns the output folder of the run that a state belongs to; empty if unknown.
std::string OutputOf(const JobStateHead& head) {
  Config config;
  const absl::Status read = config.MergeYaml(head.config, "the configuration of the state");
  return read.ok() ? config.checkpoint.dir : "";
}

// Returns why servers with a failed job cannot start a run.
absl::Status FailureOf(const v1::StatusReply& status) {
  const absl::Status failed = absl::FailedPreconditionError(
      absl::StrCat("these servers hold the failed job of an earlier run (", status.failure(),
                   "); restart them and use --resume=latest"));
  const std::optional<ExitCode> code = FailureCodeOf(status);
  return code.has_value() ? WithExitCode(failed, *code) : failed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStart>> JobStart::Open(const DriverJob* job) {
  std::unique_ptr<JobStart> start(new JobStart(job));
  EPS_ASSIGN_OR_RETURN(const std::string folder, ResumeFolder(job->config.checkpoint));
  if (folder.empty() && job->config.checkpoint.resume == "latest" &&
      !job->config.storage.durable()) {
    Print(absl::StrCat("note: --resume=latest: no checkpoint in ", job->out(),
                       " yet; starting a new job\n"));
  }
  if (!folder.empty()) EPS_RETURN_IF_ERROR(start->OpenCheckpoint(folder));
  return start;
}

absl::Status JobStart::OpenCheckpoint(const std::string& folder) {
  const JobSpec& spec = job_->spec;
  absl::StatusOr<std::unique_ptr<CheckpointReader>> checkpoint = CheckpointReader::Open(folder);
  if (absl::IsDataLoss(checkpoint.status())) {
    const fs::path path =
        fs::path(folder).has_filename() ? fs::path(folder) : fs::path(folder).parent_path();
    return absl::DataLossError(
        absl::StrCat("checkpoint.resume: ", checkpoint.status().message(),
                     ResumeAdvice(path.parent_path().string(), path.filename().string())));
  }
  EPS_RETURN_IF_ERROR(checkpoint.status());
  checkpoint_ = *std::move(checkpoint);
  EPS_RETURN_IF_ERROR(checkpoint_->CheckFits(spec));
  const std::vector<SpecDifference> differences =
      AllDifferences(checkpoint_->spec().ToText(), spec.ToText());
  if (!job_->allow_changes) EPS_RETURN_IF_ERROR(CheckSameRun(folder, differences));
  step_ = checkpoint_->border().step;
  if (step_ >= spec.training.steps) {
    const std::string text = absl::StrCat("checkpoint.resume: ", folder, " is at step ", step_,
                                          " and training.steps is ", spec.training.steps,
                                          ": nothing is left to train; raise training.steps");
    // Someone restarts the job repeatedly with the same arguments, and it is complete.
    complete_ = job_->config.checkpoint.resume == "latest";
    if (!complete_) return absl::InvalidArgumentError(text);
    Print(absl::StrCat("note: ", text, " to continue\n"));
    return absl::OkStatus();
  }
  if (HasEndedEarly()) {
    complete_ = true;
    return absl::OkStatus();
  }
  Print(absl::StrCat("resume: ", folder, ", step ", step_, "\n"));
  for (const SpecDifference& difference : differences) {
    Print(absl::StrCat("note: not the same job as before: ", difference.text, "\n"));
  }
  EPS_ASSIGN_OR_RETURN(residuals_, ResidualImport::Create(checkpoint_->residuals_or_null(),
                                                          checkpoint_->spec(), spec, job_->chunks));
  if (!residuals_->note().empty()) Print(absl::StrCat("note: ", residuals_->note(), "\n"));
  return absl::OkStatus();
}

// Returns whether the run ended at this checkpoint because of its evaluations, and says so.
bool JobStart::HasEndedEarly() const {
  const EvaluationRules rules = JobOutput::RulesOf(*job_);
  if (rules.patience == 0 || !takes_latest()) return false;
  const BestEvaluation evaluations =
      MetricsLog::ReadEvaluations(job_->out() + "/metrics.jsonl", step_, rules);
  const std::optional<uint64_t> border = evaluations.stop_border();
  if (!border.has_value() || *border > step_) return false;
  Print(absl::StrCat("note: the run has ended early after step ", step_, ": ",
                     evaluations.StopText(),
                     "; set it to a larger number, or to 0, to continue\n"));
  return true;
}

absl::StatusOr<uint64_t> JobStart::LoggedStep() const {
  if (job_->out().empty()) return 0;
  return MetricsLog::LastStep(job_->out() + "/metrics.jsonl");
}

absl::Status JobStart::Lost(const std::string& what, uint64_t logged) const {
  const std::string& out = job_->out();
  std::string text = absl::StrCat("checkpoint.resume: latest: ", what);
  if (logged > 0) absl::StrAppend(&text, "; ", out, "/metrics.jsonl ends at step ", logged);
  absl::StrAppend(&text,
                  "; nothing was changed. Bring the state back (is its disk mounted?) and "
                  "repeat the command, or give up its steps: ");
  const std::vector<CheckpointFolder> folders = ListCheckpoints(out);
  const auto last = std::find_if(folders.rbegin(), folders.rend(),
                                 [](const CheckpointFolder& f) { return f.complete.ok(); });
  if (last != folders.rend()) {
    absl::StrAppend(&text, "--resume=", last->path, " continues from the last checkpoint, ");
  } else {
    absl::StrAppend(&text, "there is no checkpoint to continue from; ");
  }
  return absl::NotFoundError(absl::StrCat(text, "--overwrite starts over at step 0"));
}

absl::StatusOr<bool> JobStart::TakeOtherJob(const std::string& state_folder, uint64_t logged) {
  const auto folder = StateFolder::Open(state_folder);
  // A run that was killed before its first cut may leave a catalogue without content.
  if (absl::IsNotFound(folder.status())) return false;
  EPS_RETURN_IF_ERROR(folder.status());
  EPS_ASSIGN_OR_RETURN(const std::optional<JobId> other, (*folder)->JobToReopen());
  if (!other.has_value()) return false;
  const absl::StatusOr<std::unique_ptr<JobState>> state = (*folder)->OpenCut(*other);
  // The first cut may not be everywhere.
  if (absl::IsFailedPrecondition(state.status()) && logged <= step_) return false;
  EPS_RETURN_IF_ERROR(state.status());
  const JobStateHead& head = (*state)->head();
  const uint64_t border = head.border.id.step.value();
  if (border <= step_ || OutputOf(head) != job_->out()) return false;
  const std::vector<SpecDifference> differences =
      AllDifferences(head.spec.ToText(), job_->spec.ToText());
  if (!job_->allow_changes) EPS_RETURN_IF_ERROR(CheckSameRun(state_folder, differences));
  if (border >= job_->spec.training.steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint.resume: ", state_folder, " is at step ", border, " and training.steps is ",
        job_->spec.training.steps, ": nothing is left to train; raise training.steps"));
  }
  Print(absl::StrCat("note: ", state_folder, " holds the job with other settings; its state after ",
                     "step ", border, " becomes a checkpoint\n"));
  EPS_ASSIGN_OR_RETURN(const std::string checkpoint, SaveCheckpoint(**state, job_->out()));
  EPS_RETURN_IF_ERROR(OpenCheckpoint(checkpoint));
  return true;
}

absl::Status JobStart::CheckState(const std::string& state_folder, uint32_t servers) {
  EPS_ASSIGN_OR_RETURN(const FoundState found, FindState(state_folder, servers, job_->spec.id()));
  EPS_ASSIGN_OR_RETURN(const uint64_t logged, LoggedStep());
  if (!found.missing.empty()) {
    if (takes_latest()) return Lost(found.missing, logged);
    EPS_RETURN_IF_ERROR(SetStateAside(state_folder));
    Print(absl::StrCat("note: --resume=", job_->config.checkpoint.resume,
                       ": starting over at step ", step_, ": ", found.missing,
                       "; moved the rest to ", state_folder, "/lost+found\n"));
    return absl::OkStatus();
  }
  if (found.known) return absl::OkStatus();
  if (takes_latest()) {
    EPS_ASSIGN_OR_RETURN(const bool taken, TakeOtherJob(state_folder, logged));
    if (taken) return DropTaken(state_folder);
  }
  if (logged <= step_) return absl::OkStatus();
  // An earlier run may have had no room for cuts, or have removed them after its last checkpoint.
  if (job_->config.storage.chosen && OccupiedBytes(state_folder) == 0) return absl::OkStatus();
  const std::string what = absl::StrFormat("job %016x is not in %s (storage.path)",
                                           job_->spec.id().value(), state_folder);
  if (takes_latest()) return Lost(what, logged);
  Print(absl::StrCat("note: --resume=", job_->config.checkpoint.resume, ": starting over at step ",
                     step_, ": ", what, ", and ", job_->out(), "/metrics.jsonl ended at step ",
                     logged, "\n"));
  return absl::OkStatus();
}

// Removes the state that has become a checkpoint, if it is the run's own.
absl::Status JobStart::DropTaken(const std::string& state_folder) const {
  if (!job_->config.storage.chosen) return absl::OkStatus();
  std::error_code error;
  fs::remove_all(state_folder, error);
  if (!error) return absl::OkStatus();
  return IoError(absl::StrCat("cannot remove ", state_folder, ": ", error.message()));
}

absl::Status JobStart::ExplainRefusal(const absl::Status& refused, ControlClient* client) const {
  if (!absl::IsAlreadyExists(refused) || !takes_latest()) return refused;
  const absl::StatusOr<v1::GetJobReply> there = client->FindJob();
  if (!there.ok() || JobId(there->job_id()) == job_->spec.id()) return refused;
  const std::string servers = absl::StrJoin(client->servers(), ",");
  EPS_RETURN_IF_ERROR(CheckSameRun(
      servers, AllDifferences(there->spec_text(), job_->spec.ToText()),
      "use its settings; or stop these servers, write their state as a checkpoint (eps "
      "checkpoint save), and continue that on others with --allow-changes"));
  return refused;
}

absl::Status JobStart::CheckNotLost(v1::JobState state, uint64_t reached) const {
  // The state that a job starts from is durable on all servers before the first step begins.
  const bool had_state = recovered_ || reached > step_;
  if (state != v1::JOB_STATE_IMPORTING || !had_state) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "the servers have no state of this job any more, which had reached step ", reached,
      "; bring their folders back (storage.path; is the disk mounted?) and use --resume=latest"));
}

absl::Status JobStart::TakeRecovered(const v1::StatusReply& status, const ControlClient& client,
                                     const std::string& state_folder) {
  const bool starts_over = job_->config.checkpoint.resume == "none";
  const bool own_servers = !state_folder.empty();
  if (status.state() == v1::JOB_STATE_FAILED) return FailureOf(status);
  if (job_->config.storage.durable() && status.step() == 0 && takes_latest() && !own_servers) {
    EPS_ASSIGN_OR_RETURN(const uint64_t logged, LoggedStep());
    if (logged > step_) {
      return Lost(absl::StrFormat("job %016x is not on %s", job_->spec.id().value(),
                                  absl::StrJoin(client.servers(), ",")),
                  logged);
    }
  }
  if (!job_->config.storage.durable() || status.step() == 0 || (starts_over && !own_servers)) {
    return absl::OkStatus();
  }
  const uint64_t border = status.step() - 1;
  const std::string where = own_servers ? state_folder : absl::StrJoin(client.servers(), ",");
  if (starts_over) {
    return absl::FailedPreconditionError(
        absl::StrCat("storage.path: ", where, " holds this job at step ", border,
                     "; --resume=latest continues it; to start a new job, name another folder or "
                     "remove this one (eps state rm)"));
  }
  // The servers' state is never older than a checkpoint.
  checkpoint_.reset();
  residuals_.reset();
  step_ = border;
  recovered_ = true;
  Print(absl::StrCat("resume: ", where, ", step ", border, ", term ", status.term(), "\n"));
  return absl::OkStatus();
}

absl::Status JobStart::Import(v1::JobState state, ControlClient* client) const {
  if (state == v1::JOB_STATE_FAILED) {
    EPS_ASSIGN_OR_RETURN(const v1::StatusReply status,
                         client->GetStatus(0, std::chrono::seconds(10)));
    return FailureOf(status);
  }
  if (state != v1::JOB_STATE_IMPORTING) {
    if (!job_->config.storage.durable()) {
      Print("note: the servers already run this job; joining it\n");
    }
    return absl::OkStatus();
  }
  const ChunkMap& chunks = job_->chunks;
  const std::vector<ShardId> placement =
      chunks.Place(static_cast<uint32_t>(client->servers().size()));
  std::unique_ptr<WeightsReader> weights;
  if (checkpoint_ == nullptr && !job_->initial_weights.empty()) {
    EPS_ASSIGN_OR_RETURN(weights, WeightsReader::Open(job_->initial_weights, job_->spec));
    Print(absl::StrCat("weights: from ", job_->initial_weights, "\n"));
    for (const std::string& note : weights->notes()) Print(absl::StrCat("note: ", note, "\n"));
  }
  for (uint32_t s = 0; s < client->servers().size(); ++s) {
    const ShardId shard(s);
    if (checkpoint_ == nullptr && weights == nullptr) {
      EPS_RETURN_IF_ERROR(client->Initialize(shard));
      continue;
    }
    ControlClient::ImportSource source;
    for (const Chunk& chunk : chunks.chunks()) {
      if (placement[chunk.id.value()] != shard) continue;
      source.chunks.push_back(chunk.id);
      if (residuals_ == nullptr) continue;
      for (const ResidualPlace& place : residuals_->PlacesOf(chunk.id)) {
        source.residuals.push_back(place);
      }
    }
    if (checkpoint_ != nullptr) source.border = checkpoint_->border();
    source.read = [&](ChunkId id) {
      return checkpoint_ != nullptr ? checkpoint_->ReadChunk(job_->spec, chunks.chunk(id))
                                    : weights->ReadChunk(job_->spec, chunks.chunk(id));
    };
    source.read_residual = [&](const ResidualPlace& place) { return residuals_->Read(place); };
    EPS_RETURN_IF_ERROR(client->Import(shard, source));
  }
  return absl::OkStatus();
}

}  // namespace eps
