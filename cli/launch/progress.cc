#include "cli/launch/progress.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr size_t kEtaSteps = 20;

}  // namespace

std::string ProgressLine(const v1::StepRecord& record, uint64_t steps, double eta_seconds) {
  std::string line = absl::StrFormat(
      "step: %d/%d loss: %.4f grad_norm: %.3g lr: %s tps: %s eta: %s", record.step(), steps,
      record.loss(), record.grad_norm(), FormatScientific(record.lr()),
      FormatCount(static_cast<uint64_t>(TokensPerSecond(record))),
      eta_seconds < 0 ? "-" : FormatSeconds(eta_seconds));
  if (record.skipped()) line += " skipped";
  return line;
}

std::string EvaluationLine(const v1::StepRecord& record, uint64_t steps) {
  return absl::StrFormat("step: %d/%d eval_loss: %.4f eval_tokens: %s eval_time: %s", record.step(),
                         steps, record.evaluation().loss(),
                         FormatCount(record.evaluation().tokens()),
                         FormatSeconds(record.step_seconds()));
}

std::string MetricsLine(const v1::StepRecord& record) {
  nlohmann::ordered_json line;
  if (record.has_evaluation()) {
    line["step"] = record.step();
    line["eval_loss"] = record.evaluation().loss();
    line["eval_tokens"] = record.evaluation().tokens();
    line["eval_seconds"] = record.step_seconds();
    line["term"] = record.term();
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
  return line.dump();
}

double TokensPerSecond(const v1::StepRecord& record) {
  if (!(record.step_seconds() > 0)) return 0;
  return static_cast<double>(record.tokens()) / record.step_seconds();
}

std::string FormatSeconds(double seconds) {
  const uint64_t s = seconds > 0 ? static_cast<uint64_t>(std::llround(seconds)) : 0;
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  if (s < 48 * 3600) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd%02dh", s / 86400, s / 3600 % 24);
}

std::string FormatBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f %s", bytes, kUnits[unit])
                   : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string FormatCount(uint64_t count) {
  std::string digits = absl::StrCat(count);
  for (size_t place = 3; place < digits.size(); place += 4) {
    digits.insert(digits.size() - place, ",");
  }
  return digits;
}

std::string FormatScientific(double value) {
  std::string text = absl::StrFormat("%.2e", value);
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;  // inf, nan
  // C prints at least two digits of exponent and a plus sign.
  std::string exponent = text.substr(e + 1);
  const bool negative = exponent[0] == '-';
  exponent.erase(0, exponent.find_first_not_of("+-0"));
  if (exponent.empty() || exponent.find_first_of("123456789") == std::string::npos) exponent = "0";
  return absl::StrCat(text.substr(0, e), "e", negative ? "-" : "", exponent);
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
