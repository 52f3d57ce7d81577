#include "cli/driver/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "cli/driver/progress.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxLastLosses = 1000;

double NumberOr(const ordered_json& line, const char* key, double otherwise) {
  return line.contains(key) && line[key].is_number() ? line[key].get<double>() : otherwise;
}

// Returns the line as JSON if it is one of a step or of an evaluation.
std::optional<ordered_json> ParseLine(absl::string_view text) {
  ordered_json line =
      ordered_json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!line.is_object() || !line.contains("step") || !line["step"].is_number_unsigned()) {
    return std::nullopt;
  }
  return line;
}

std::string EvalKey(Metric metric) { return absl::StrCat("eval_", NameOf(metric)); }

// Returns the figure of an evaluation's line that compares it; NaN if it has none.
double ComparedFigure(const ordered_json& line, const EvaluationRules& rules) {
  return NumberOr(line, EvalKey(rules.best_metric).c_str(), NAN);
}

}  // namespace

absl::StatusOr<uint64_t> MetricsLog::LastStep(const std::string& path) {
  const absl::StatusOr<std::string> content = ReadTextFile(path);
  if (absl::IsNotFound(content.status())) return 0;
  EPS_RETURN_IF_ERROR(content.status());
  uint64_t last = 0;
  for (absl::string_view text : absl::StrSplit(*content, '\n')) {
    const std::optional<ordered_json> line = ParseLine(text);
    if (line.has_value()) last = std::max(last, (*line)["step"].get<uint64_t>());
  }
  return last;
}

BestEvaluation MetricsLog::ReadEvaluations(const std::string& path, uint64_t base_step,
                                           const EvaluationRules& rules) {
  BestEvaluation evaluations(rules);
  const absl::StatusOr<std::string> content = ReadTextFile(path);
  if (!content.ok()) return evaluations;
  for (absl::string_view text : absl::StrSplit(*content, '\n')) {
    const std::optional<ordered_json> line = ParseLine(text);
    if (!line.has_value() || !line->contains("eval_loss")) continue;
    const uint64_t step = (*line)["step"].get<uint64_t>();
    if (step <= base_step) evaluations.Add(step, ComparedFigure(*line, rules));
  }
  return evaluations;
}

void MetricsLog::Keep(const ordered_json& line) {
  v1::StepRecord record;
  record.set_step(line["step"].get<uint64_t>());
  std::vector<Figure> figures;
  if (line.contains("eval_loss")) {
    record.mutable_evaluation()->set_loss(NumberOr(line, "eval_loss", NAN));
    record.set_step_seconds(NumberOr(line, "eval_seconds", 0));
    for (const Metric metric : evaluations_.rules().metrics) {
      const std::string key = EvalKey(metric);
      if (metric == Metric::kLoss || !line.contains(key)) continue;
      figures.push_back({metric, NumberOr(line, key.c_str(), NAN)});
    }
  }
  record.set_loss(NumberOr(line, "loss", NAN));
  record.set_grad_norm(NumberOr(line, "grad_norm", NAN));
  record.set_lr(NumberOr(line, "lr", 0));
  const bool is_new = history_.Add(record, figures);
  if (is_new && record.has_evaluation()) {
    evaluations_.Add(record.step(), ComparedFigure(line, evaluations_.rules()));
  }
}

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& path,
                                                             uint64_t base_step,
                                                             const EvaluationRules& rules) {
  std::unique_ptr<MetricsLog> log(new MetricsLog(rules));
  log->path_ = path;
  if (path.empty()) return log;
  std::string kept;
  absl::StatusOr<std::string> before = ReadTextFile(path);
  if (base_step > 0 && before.ok()) {
    for (absl::string_view text : absl::StrSplit(*before, '\n')) {
      const std::optional<ordered_json> parsed = ParseLine(text);
      if (!parsed.has_value() || (*parsed)["step"].get<uint64_t>() > base_step) continue;
      log->Keep(*parsed);
      absl::StrAppend(&kept, text, "\n");
    }
  }
  EPS_RETURN_IF_ERROR(ReplaceFile(path, kept));
  log->written_ = kept.size();
  log->file_ = Descriptor(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!log->file_.ok()) {
    return IoError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  return log;
}

absl::Status MetricsLog::Add(const v1::StepRecord& record) {
  const EvaluationRules& rules = evaluations_.rules();
  std::vector<Figure> figures;
  if (record.has_evaluation()) figures = FiguresOf(record.evaluation(), rules.metrics);
  if (!history_.Add(record, figures)) return absl::OkStatus();
  if (record.has_evaluation()) {
    last_evaluation_ = record;
    double compared = rules.best_metric == Metric::kLoss ? record.evaluation().loss() : NAN;
    for (const Figure& figure : figures) {
      if (figure.metric == rules.best_metric) compared = figure.value;
    }
    evaluations_.Add(record.step(), compared);
    return Write(record, figures);
  }
  if (last_losses_.size() == kMaxLastLosses) last_losses_.erase(last_losses_.begin());
  last_losses_.push_back(record.loss());
  return Write(record, {});
}

absl::Status MetricsLog::Write(const v1::StepRecord& record, const std::vector<Figure>& figures) {
  if (!file_.ok()) return absl::OkStatus();
  absl::StrAppend(&pending_, MetricsLine(record, figures), "\n");
  const absl::Status status = Flush();  // readers follow the file during training
  return absl::IsResourceExhausted(status) ? absl::OkStatus() : status;
}

absl::Status MetricsLog::Flush() {
  if (pending_.empty()) return absl::OkStatus();
  const absl::Status status = WriteTo(file_.get(), path_, pending_);
  if (!status.ok()) {
    // Leave no part of a line. Shortening a file takes no room.
    if (ftruncate(file_.get(), static_cast<off_t>(written_)) == 0) return status;
    return IoError(absl::StrCat("cannot shorten ", path_, ": ", std::strerror(errno)));
  }
  written_ += pending_.size();
  pending_.clear();
  return absl::OkStatus();
}

std::vector<Figure> MetricsLog::last_figures() const {
  if (!last_evaluation_.has_value()) return {};
  return FiguresOf(last_evaluation_->evaluation(), evaluations_.rules().metrics);
}

double MetricsLog::MeanLoss(size_t steps) const {
  const size_t count = std::min(steps, last_losses_.size());
  double sum = 0;
  for (size_t i = last_losses_.size() - count; i < last_losses_.size(); ++i) sum += last_losses_[i];
  return count == 0 ? NAN : sum / static_cast<double>(count);
}

}  // namespace eps
