#include "cli/driver/job_output.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "base/job/models/model_family.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/guard/checkpoint_room.h"
#include "cli/driver/progress.h"
#include "cli/driver/report/run_report.h"
#include "cli/driver/save/border_export.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kReportTimeout{2};  // of one server: do not delay the run's end

// Returns how the workers of the job compute, one profile per line; empty if the lead does not say.
std::string ComputeProfiles(ControlClient* client) {
  const absl::StatusOr<v1::StatusReply> status = client->GetStatus(0, kReportTimeout);
  std::string lines;
  if (!status.ok()) return lines;
  for (const std::string& profile : status->compute_profiles()) {
    absl::StrAppend(&lines, profile, "\n");
  }
  return lines;
}

}  // namespace

absl::Status JobOutput::Open(uint64_t border) {
  const std::string& out = job_->out();
  metrics_.reset();
  tensorboard_.reset();
  EPS_ASSIGN_OR_RETURN(metrics_,
                       MetricsLog::Open(out.empty() ? "" : out + "/metrics.jsonl", border));
  if (!out.empty() && job_->config.metrics.tensorboard) {
    EPS_ASSIGN_OR_RETURN(tensorboard_, TensorBoardLog::Open(out + "/tensorboard", border));
  }
  return absl::OkStatus();
}

absl::Status JobOutput::Add(const v1::StepRecord& record) {
  if (tensorboard_ != nullptr) {
    const absl::Status status = tensorboard_->Add(record);
    if (!status.ok()) {  // do not end the run for a chart
      Print(absl::StrCat("note: ", std::string(status.message()),
                         "; writing no more events there\n"));
      tensorboard_.reset();
    }
  }
  return metrics_->Add(record);
}

absl::Status JobOutput::WriteCheckpoint(uint64_t step, ControlClient* client) {
  const std::string& out = job_->out();
  if (out.empty()) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(metrics_->Flush());
  EPS_RETURN_IF_ERROR(CheckRoom(out, job_->spec, job_->chunks));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWriter> writer,
                       CheckpointWriter::Create(out, step, job_->spec, job_->chunks));
  EPS_ASSIGN_OR_RETURN(const Border border, ExportBorder(step, client, writer.get()));
  SmallFiles files = FilesOfJob(job_->spec, job_->model_files);
  files["trainer_state.json"] = TrainerState(step);
  files[kConfigFile] = job_->KeptConfig();
  if (const std::string profiles = ComputeProfiles(client); !profiles.empty()) {
    files[kProfilesFile] = profiles;
  }
  EPS_RETURN_IF_ERROR(writer->Commit(border, files));
  last_checkpoint_ = writer->folder();
  Print(absl::StrCat("checkpoint: ", last_checkpoint_, "\n"));
  const auto removed = RemoveOldCheckpoints(out, job_->config.checkpoint.save_total_limit);
  // The checkpoint is complete, so failing to remove an old one does not end the run.
  if (!removed.ok()) Print(absl::StrCat("note: ", removed.status().message(), "\n"));
  WriteReport(absl::StrCat("running; checkpoint after step ", step), client);
  return absl::OkStatus();
}

absl::Status JobOutput::WriteTrainerState(uint64_t step) const {
  if (job_->out().empty()) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(metrics_->Flush());
  return ReplaceFile(job_->out() + "/trainer_state.json", TrainerState(step));
}

void JobOutput::WriteReport(const std::string& outcome, ControlClient* client) {
  const std::string& out = job_->out();
  if (out.empty()) return;
  servers_.resize(client->servers().size());
  for (size_t s = 0; s < servers_.size(); ++s) {
    absl::StatusOr<v1::StatusReply> status = client->GetStatus(s, kReportTimeout);
    if (status.ok()) servers_[s] = *std::move(status);
  }
  RunFacts facts;
  facts.model = absl::StrCat(FamilyOf(job_->spec.model.type).Title(job_->spec.model), ", ",
                             FormatCount(job_->spec.total_elements()), " parameters");
  facts.outcome = outcome;
  facts.steps = job_->spec.training.steps;
  facts.unigram_entropy = job_->unigram_entropy;
  facts.servers = servers_;
  facts.planned = job_->planned;
  facts.settings = job_->KeptConfig();
  const absl::StatusOr<std::string> metrics = ReadTextFile(out + "/metrics.jsonl");
  const absl::Status written = metrics.ok()
                                   ? ReplaceFile(out + "/report.html", RunReport(facts, *metrics))
                                   : metrics.status();
  if (!written.ok()) Print(absl::StrCat("note: no report: ", written.message(), "\n"));
}

std::string JobOutput::TrainerState(uint64_t step) const {
  return metrics_->history().Text(job_->spec, step, job_->config.training.eval_steps);
}

}  // namespace eps
