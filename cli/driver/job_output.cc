#include "cli/driver/job_output.h"

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "base/job/evaluation/evaluation_metrics.h"
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

EvaluationRules JobOutput::RulesOf(const DriverJob& job) {
  EvaluationRules rules;
  // Settings that do not fit the model were refused before.
  const auto metrics = ChooseMetrics(job.spec.model, job.config.eval.metrics);
  if (metrics.ok()) rules.metrics = *metrics;
  rules.best_metric = job.config.eval.best_metric;
  rules.patience = job.config.training.eval_steps > 0 ? job.config.training.early_stop_patience : 0;
  return rules;
}

absl::Status JobOutput::Open(uint64_t border) {
  const std::string& out = job_->out();
  metrics_.reset();
  tensorboard_.reset();
  EPS_ASSIGN_OR_RETURN(metrics_, MetricsLog::Open(out.empty() ? "" : out + "/metrics.jsonl", border,
                                                  RulesOf(*job_)));
  UpdateBest(border);
  if (!out.empty() && job_->config.metrics.tensorboard) {
    EPS_ASSIGN_OR_RETURN(tensorboard_, TensorBoardLog::Open(out + "/tensorboard", border));
  }
  return absl::OkStatus();
}

bool JobOutput::SavesBest() const {
  const bool evaluates = job_->config.training.eval_steps > 0;
  return !job_->out().empty() && evaluates && job_->config.checkpoint.save_best.value_or(true);
}

void JobOutput::UpdateBest(uint64_t step) {
  if (!SavesBest()) return;
  const std::string& out = job_->out();
  std::vector<uint64_t> saved;
  for (const CheckpointFolder& folder : ListCheckpoints(out)) {
    if (folder.complete.ok() && folder.step <= step) saved.push_back(folder.step);
  }
  const std::optional<BestEvaluation::Evaluated> found = metrics_->evaluations().BestOf(saved);
  const std::string name = found.has_value() ? absl::StrCat("checkpoint-", found->step) : "";
  best_.folder = found.has_value() ? absl::StrCat(out, "/", name) : "";
  best_.figure = found.has_value() ? found->figure : 0;
  if (name == BestCheckpointName(out)) return;
  const absl::Status status = SetBestCheckpoint(out, name);
  if (!status.ok()) return Print(absl::StrCat("note: ", status.message(), "\n"));
  if (name.empty()) return;
  Print(absl::StrCat("best: ", best_.folder, " (",
                     FigureText(job_->config.eval.best_metric, best_.figure), ")\n"));
}

absl::Status JobOutput::Add(const v1::StepRecord& record) {
  if (tensorboard_ != nullptr) {
    std::vector<Figure> figures;
    if (record.has_evaluation()) {
      figures = FiguresOf(record.evaluation(), metrics_->evaluations().rules().metrics);
    }
    const absl::Status status = tensorboard_->Add(record, figures);
    if (!status.ok()) {  // do not end the run for a chart
      Print(absl::StrCat("note: ", std::string(status.message()),
                         "; writing no more events there\n"));
      tensorboard_.reset();
    }
  }
  EPS_RETURN_IF_ERROR(metrics_->Add(record));
  if (record.has_evaluation()) UpdateBest(record.step());
  return absl::OkStatus();
}

absl::Status JobOutput::WriteCheckpoint(uint64_t step, ControlClient* client,
                                        std::function<absl::Status()> confirm) {
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
  CheckpointOrigin origin;
  origin.driver = job_->lease;
  origin.confirm = std::move(confirm);
  EPS_RETURN_IF_ERROR(writer->Commit(border, files, origin));
  last_checkpoint_ = writer->folder();
  Print(absl::StrCat("checkpoint: ", last_checkpoint_, "\n"));
  UpdateBest(step);  // a run that goes on from an earlier border may have evaluated this one
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
  return metrics_->history().Text(job_->spec, step, job_->config.training.eval_steps, best_);
}

}  // namespace eps
