#include "cli/driver/progress.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "cli/driver/terminal.h"
#include "nlohmann/json.hpp"
#include "wire/counts_message.h"

namespace eps {
namespace {

constexpr size_t kEtaSteps = 20;
constexpr size_t kLeastBar = 8;  // a shorter bar shows nothing
constexpr size_t kLongestBar = 40;

// Returns "[=====>     ] ", `width` columns wide without brackets and the space.
std::string Bar(double done, size_t width) {
  const size_t filled = static_cast<size_t>(std::clamp(done, 0., 1.) * static_cast<double>(width));
  std::string bar = std::string(filled, '=') + std::string(width - filled, ' ');
  if (filled < width) bar[filled] = '>';
  return absl::StrCat("[", bar, "] ");
}

}  // namespace

void Print(absl::string_view text) { WriteLines(text); }

std::string ProgressBar(const v1::StepRecord& record, uint64_t steps, double eta_seconds,
                        size_t columns) {
  const size_t room = std::max<size_t>(columns, 1) - 1;  // a full line would wrap
  std::vector<std::string> words = {
      absl::StrCat(record.step(), "/", steps), absl::StrFormat("loss %.4f", record.loss()),
      absl::StrCat(FormatCount(static_cast<uint64_t>(TokensPerSecond(record))), " tokens/s")};
  if (eta_seconds >= 0) words.push_back(absl::StrCat(FormatSeconds(eta_seconds), " left"));
  while (words.size() > 1 && absl::StrJoin(words, " ").size() > room) words.pop_back();
  const std::string text = absl::StrJoin(words, " ");
  if (room < text.size() + kLeastBar + 3) return text.substr(0, room);
  const double done = static_cast<double>(record.step()) / static_cast<double>(steps);
  return Bar(done, std::min(kLongestBar, room - text.size() - 3)) + text;
}

std::string ProgressLine(const v1::StepRecord& record, uint64_t steps, double eta_seconds) {
  std::string line = absl::StrFormat(
      "step: %d/%d loss: %.4f grad_norm: %.3g lr: %s tps: %s eta: %s", record.step(), steps,
      record.loss(), record.grad_norm(), FormatScientific(record.lr()),
      FormatCount(static_cast<uint64_t>(TokensPerSecond(record))),
      eta_seconds < 0 ? "-" : FormatSeconds(eta_seconds));
  if (record.skipped()) line += " skipped";
  if (record.has_loss_scale_log2()) {
    absl::StrAppend(&line, " loss_scale: 2^", record.loss_scale_log2());
  }
  return line;
}

std::vector<Figure> FiguresOf(const v1::Evaluation& evaluation,
                              const std::vector<Metric>& metrics) {
  HeldOutCounts counts;
  if (evaluation.has_counts()) counts = FromMessage(evaluation.counts());
  std::vector<Figure> figures =
      FiguresOf(metrics, evaluation.loss(), evaluation.has_counts() ? &counts : nullptr);
  figures.erase(std::remove_if(figures.begin(), figures.end(),
                               [](const Figure& f) { return f.metric == Metric::kLoss; }),
                figures.end());
  return figures;
}

std::string EvaluationLine(const v1::StepRecord& record, uint64_t steps,
                           const std::vector<Figure>& figures) {
  std::string line = absl::StrFormat("step: %d/%d eval_loss: %.4f", record.step(), steps,
                                     record.evaluation().loss());
  for (const Figure& figure : figures) {
    absl::StrAppendFormat(&line, " eval_%s: %.4f", NameOf(figure.metric), figure.value);
  }
  absl::StrAppend(&line, " eval_tokens: ", FormatCount(record.evaluation().tokens()),
                  " eval_time: ", FormatSeconds(record.step_seconds()));
  return line;
}

std::string MetricsLine(const v1::StepRecord& record, const std::vector<Figure>& figures) {
  nlohmann::ordered_json line;
  if (record.has_evaluation()) {
    line["step"] = record.step();
    line["eval_loss"] = record.evaluation().loss();
    line["eval_tokens"] = record.evaluation().tokens();
    line["eval_seconds"] = record.step_seconds();
    line["term"] = record.term();
    for (const Figure& figure : figures) {
      line[absl::StrCat("eval_", NameOf(figure.metric))] = figure.value;
    }
    return line.dump();
  }
  line["step"] = record.step();
  line["loss"] = record.loss();
  line["grad_norm"] = record.grad_norm();
  line["lr"] = record.lr();
  line["tokens"] = record.tokens();
  line["step_seconds"] = record.step_seconds();
  line["tokens_per_second"] = TokensPerSecond(record);
  line["term"] = record.term();
  line["version"] = record.version();
  if (record.skipped()) line["skipped"] = true;
  if (record.has_loss_scale_log2()) line["loss_scale"] = std::ldexp(1.0, record.loss_scale_log2());
  return line.dump();
}

double TokensPerSecond(const v1::StepRecord& record) {
  if (!(record.step_seconds() > 0)) return 0;
  return static_cast<double>(record.tokens()) / record.step_seconds();
}

void EtaEstimator::Add(double step_seconds) {
  recent_.push_back(step_seconds);
  sum_ += step_seconds;
  if (recent_.size() > kEtaSteps) {
    sum_ -= recent_.front();
    recent_.pop_front();
  }
}

double EtaEstimator::SecondsFor(uint64_t steps) const {
  if (recent_.empty()) return -1;
  return sum_ / static_cast<double>(recent_.size()) * static_cast<double>(steps);
}

}  // namespace eps
