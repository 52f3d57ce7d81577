#include "cli/launch/model/evaluation_rules.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/job/evaluation/evaluation_metrics.h"
#include "base/status_macros.h"

namespace eps {
namespace {

absl::Status CheckMetrics(const JobSpec& spec, const EvalConfig& eval) {
  EPS_ASSIGN_OR_RETURN(const std::vector<Metric> metrics, ChooseMetrics(spec.model, eval.metrics));
  // Every evaluation has a loss.
  if (eval.best_metric == Metric::kLoss) return absl::OkStatus();
  if (std::find(metrics.begin(), metrics.end(), eval.best_metric) != metrics.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "eval.best_metric: the evaluations have no ", NameOf(eval.best_metric), "; they have ",
      absl::StrJoin(metrics, ", ", [](std::string* out, Metric m) { out->append(NameOf(m)); }),
      " (eval.metrics)"));
}

absl::Status CheckSaveBest(const Config& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.dir.empty()) {
    return absl::InvalidArgumentError(
        "checkpoint.save_best needs checkpoint.dir (--out), where the checkpoints are");
  }
  if (checkpoint.save_steps % config.training.eval_steps == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "checkpoint.save_best compares checkpoints by the evaluations of their steps, but "
      "checkpoint.save_steps, ",
      checkpoint.save_steps, ", is no multiple of training.eval_steps, ",
      config.training.eval_steps));
}

}  // namespace

absl::Status CheckEvaluations(const JobSpec& spec, const Config& config) {
  EPS_RETURN_IF_ERROR(CheckMetrics(spec, config.eval));
  const bool saves_best = config.checkpoint.save_best.value_or(false);
  if (config.training.eval_steps > 0) return saves_best ? CheckSaveBest(config) : absl::OkStatus();
  if (!saves_best && config.training.early_stop_patience == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      saves_best ? "checkpoint.save_best compares" : "training.early_stop_patience compares",
      " evaluations, and the run has none; set training.eval_steps, and data.eval_path "
      "for a model that reads data"));
}

std::string FiguresText(const JobSpec& spec, const Config& config) {
  std::vector<std::string> words;
  const auto metrics = ChooseMetrics(spec.model, config.eval.metrics);
  for (const Metric metric : metrics.ok() ? *metrics : std::vector<Metric>()) {
    if (metric != Metric::kLoss) words.push_back(NameOf(metric));
  }
  std::string text;
  if (!words.empty()) text = absl::StrCat("; ", absl::StrJoin(words, ", "));
  const uint64_t patience = config.training.early_stop_patience;
  if (patience == 0) return text;
  return absl::StrCat(text, "; ", patience, patience == 1 ? " evaluation" : " evaluations",
                      " without a better ", NameOf(config.eval.best_metric), " end the run");
}

}  // namespace eps
