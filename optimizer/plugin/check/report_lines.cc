#include "optimizer/plugin/check/report_lines.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/plugin/names.h"
#include "optimizer/plugin/eps_updater.h"

namespace eps {
namespace {

constexpr size_t kMaxRounds = 100;

absl::Status Garbage(absl::string_view line) {
  return absl::InvalidArgumentError(
      absl::StrCat("the checks' process wrote \"", line, "\", which no check writes"));
}

std::string Printable(absl::string_view text) {
  std::string printable(text);
  for (char& c : printable) {
    if (!absl::ascii_isprint(c)) c = '?';
  }
  return printable;
}

// Splits off the first word of a line.
absl::string_view Word(absl::string_view* line) {
  const size_t end = std::min(line->find(' '), line->size());
  const absl::string_view word = line->substr(0, end);
  line->remove_prefix(std::min(end + 1, line->size()));
  return word;
}

// Returns the ends and the middle of dividend / divisor.
PluginRate RateOf(const std::vector<double>& dividends, const std::vector<double>& divisors) {
  std::vector<double> rates;
  for (size_t i = 0; i < divisors.size(); ++i) rates.push_back(dividends[i] / divisors[i]);
  std::sort(rates.begin(), rates.end());
  return {rates.front(), rates[rates.size() / 2], rates.back()};
}

}  // namespace

const std::vector<std::string>& PluginCheckNames() {
  static const auto* const names = new std::vector<std::string>{
      "bounds", "splits", "alignment", "threads", "values", "parameters", "mode"};
  return *names;
}

void WriteReportLine(absl::string_view line) {
  std::string text = Printable(line.substr(0, kMaxReportLine - 1));
  text.push_back('\n');
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = write(kReportDescriptor, &text[done], text.size() - done);
    if (put < 0 && errno != EINTR) std::_Exit(1);
    if (put > 0) done += static_cast<size_t>(put);
  }
}

ReportReader::ReportReader() {
  for (const std::string& name : PluginCheckNames()) report_.checks.emplace_back().name = name;
}

absl::Status ReportReader::Take(absl::string_view bytes) {
  taken_ += bytes.size();
  if (taken_ > kMaxReportBytes) return Garbage("too much");
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    absl::StrAppend(&pending_, bytes.substr(0, end));
    if (pending_.size() >= kMaxReportLine) return Garbage("a line that is too long");
    if (end == absl::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    const absl::Status status = TakeLine(Printable(pending_));
    pending_.clear();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReportReader::TakeLine(absl::string_view line) {
  absl::string_view rest = line;
  const absl::string_view word = Word(&rest);
  if (ended_ || !error_.ok()) return Garbage(line);
  if (word == "error" && !described_) {
    int code = 0;
    if (!absl::SimpleAtoi(Word(&rest), &code) || code < 1 || code > 16) return Garbage(line);
    error_ = absl::Status(static_cast<absl::StatusCode>(code), rest);
    return absl::OkStatus();
  }
  if (!described_) return TakeDescription(word, rest);
  if (word == "speed" || word == "round") return TakeSpeed(word, rest);
  if (word != "end") return TakeCheck(word, rest);
  if (running_ != nullptr) return Garbage(line);
  ended_ = true;
  return absl::OkStatus();
}

absl::Status ReportReader::TakeDescription(absl::string_view word, absl::string_view rest) {
  const absl::Status garbage = Garbage(absl::StrCat(word, " ", rest));
  if (word == "described" && !report_.sha256.empty() && !report_.name.empty()) {
    described_ = true;
    return absl::OkStatus();
  }
  if (word == "sha256" && IsSha256(rest)) {
    report_.sha256 = std::string(rest);
    return absl::OkStatus();
  }
  const absl::string_view name = Word(&rest);
  // The child has checked names already, but the plug-in may have written this line itself.
  if (!IsPluginName(name)) return garbage;
  if (word == "name") {
    report_.name = std::string(name);
    return absl::OkStatus();
  }
  if (word == "field" && report_.fields.size() < EPS_UPDATER_MAX_FIELDS) {
    report_.fields.emplace_back(name);
    return absl::OkStatus();
  }
  PluginParameter parameter;
  parameter.name = std::string(name);
  if (word != "parameter" || report_.parameters.size() >= EPS_UPDATER_MAX_PARAMETERS ||
      !absl::SimpleAtod(Word(&rest), &parameter.usual) ||
      !absl::SimpleAtod(Word(&rest), &parameter.least) ||
      !absl::SimpleAtod(Word(&rest), &parameter.most)) {
    return garbage;
  }
  report_.parameters.push_back(std::move(parameter));
  return absl::OkStatus();
}

absl::Status ReportReader::TakeCheck(absl::string_view word, absl::string_view rest) {
  const absl::Status garbage = Garbage(absl::StrCat(word, " ", rest));
  if (word == "at") {
    at_ = std::string(rest);
    return running_ == nullptr ? garbage : absl::OkStatus();
  }
  const absl::string_view name = Word(&rest);
  const auto check = std::find_if(report_.checks.begin(), report_.checks.end(),
                                  [name](const PluginCheck& c) { return c.name == name; });
  if (check == report_.checks.end()) return garbage;
  if (word == "begin") {
    // In their order: a check that was left out cannot look as if it had passed.
    const size_t index = static_cast<size_t>(check - report_.checks.begin());
    if (running_ != nullptr || check->outcome != PluginCheck::Outcome::kNotRun ||
        (index > 0 && report_.checks[index - 1].outcome == PluginCheck::Outcome::kNotRun)) {
      return garbage;
    }
    running_ = &*check;
    return absl::OkStatus();
  }
  if (running_ != &*check || (word != "passed" && word != "failed")) return garbage;
  check->outcome = word == "passed" ? PluginCheck::Outcome::kPassed : PluginCheck::Outcome::kFailed;
  check->finding = std::string(rest);
  running_ = nullptr;
  at_.clear();
  return absl::OkStatus();
}

absl::Status ReportReader::TakeSpeed(absl::string_view word, absl::string_view rest) {
  const absl::Status garbage = Garbage(absl::StrCat(word, " ", rest));
  if (word == "speed") {
    PluginSpeed speed;
    if (report_.speed.has_value() || !absl::SimpleAtoi(Word(&rest), &speed.elements) ||
        !absl::SimpleAtoi(Word(&rest), &speed.bytes_per_element)) {
      return garbage;
    }
    report_.speed = speed;
    return absl::OkStatus();
  }
  double update = 0;
  double plain = 0;
  if (!report_.speed.has_value() || update_rounds_.size() >= kMaxRounds ||
      !absl::SimpleAtod(Word(&rest), &update) || !absl::SimpleAtod(Word(&rest), &plain) ||
      !(update > 0) || !(plain > 0) || !std::isfinite(update) || !std::isfinite(plain)) {
    return garbage;
  }
  update_rounds_.push_back(update);
  plain_rounds_.push_back(plain);
  return absl::OkStatus();
}

absl::StatusOr<PluginReport> ReportReader::Finish(absl::string_view end, absl::string_view reason) {
  if (!error_.ok()) return error_;
  if (!described_) {
    return absl::InvalidArgumentError(absl::StrCat("while it was loaded, its process ", end));
  }
  for (PluginCheck& check : report_.checks) {
    if (ended_ || check.outcome != PluginCheck::Outcome::kNotRun) continue;
    check.outcome = PluginCheck::Outcome::kFailed;
    check.finding = absl::StrCat(reason, at_.empty() ? "" : ", at ", at_);
    break;
  }
  if (report_.speed.has_value()) {
    if (update_rounds_.empty()) {
      report_.speed.reset();
    } else {
      const double bytes = static_cast<double>(report_.speed->elements) *
                           static_cast<double>(report_.speed->bytes_per_element);
      const std::vector<double> gigabytes(update_rounds_.size(), bytes / 1e9);
      report_.speed->update = RateOf(gigabytes, update_rounds_);
      report_.speed->plain = RateOf(gigabytes, plain_rounds_);
      report_.speed->ratio = RateOf(plain_rounds_, update_rounds_);
    }
  }
  return report_;
}

}  // namespace eps
