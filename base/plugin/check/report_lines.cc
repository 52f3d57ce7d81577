#include "base/plugin/check/report_lines.h"

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

// Returns the ends and the middle of some figures.
PluginRate RateOf(std::vector<double> figures) {
  std::sort(figures.begin(), figures.end());
  return {figures.front(), figures[figures.size() / 2], figures.back()};
}

}  // namespace

void WriteReportLine(absl::string_view line) {
  std::string text = Printable(line.substr(0, kMaxReportLine - 1));
  text.push_back('\n');
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = write(kReportDescriptor, &text[done], text.size() - done);
    if (put < 0 && errno != EINTR) std::_Exit(1);
    if (put > 0) done += static_cast<size_t>(put);
  }
}

absl::string_view TakeWord(absl::string_view* line) {
  const size_t end = std::min(line->find(' '), line->size());
  const absl::string_view word = line->substr(0, end);
  line->remove_prefix(std::min(end + 1, line->size()));
  return word;
}

PluginRate TimedRounds::Speed(size_t loop, double bytes_per_round) const {
  std::vector<double> speeds;
  for (const double s : seconds[loop]) speeds.push_back(bytes_per_round / 1e9 / s);
  return RateOf(std::move(speeds));
}

PluginRate TimedRounds::Ratio(size_t loop, size_t other) const {
  std::vector<double> ratios;
  for (size_t round = 0; round < seconds[loop].size(); ++round) {
    ratios.push_back(seconds[other][round] / seconds[loop][round]);
  }
  return RateOf(std::move(ratios));
}

ReportLineReader::ReportLineReader(const std::vector<std::string>& checks, size_t loops)
    : loops_(loops) {
  for (const std::string& name : checks) checks_.emplace_back().name = name;
}

absl::Status ReportLineReader::Take(absl::string_view bytes) {
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

absl::Status ReportLineReader::TakeLine(absl::string_view line) {
  absl::string_view rest = line;
  const absl::string_view word = TakeWord(&rest);
  if (ended_ || !error_.ok()) return Garbage(line);
  if (word == "error" && !described_) {
    int code = 0;
    if (!absl::SimpleAtoi(TakeWord(&rest), &code) || code < 1 || code > 16) return Garbage(line);
    error_ = absl::Status(static_cast<absl::StatusCode>(code), rest);
    return absl::OkStatus();
  }
  if (!described_) return TakeDescription(word, rest);
  if (word == "speed" || word == "round") return TakeRounds(word, rest);
  if (word != "end") return TakeCheck(word, rest);
  if (running_ != nullptr) return Garbage(line);
  ended_ = true;
  return absl::OkStatus();
}

absl::Status ReportLineReader::TakeDescription(absl::string_view word, absl::string_view rest) {
  if (word == "described" && !sha256_.empty() && !name_.empty()) {
    described_ = true;
  } else if (word == "sha256" && IsSha256(rest)) {
    sha256_ = std::string(rest);
  } else if (word == "name" && IsPluginName(rest)) {
    // The child has checked the name already, but the plug-in may have written this line itself.
    name_ = std::string(rest);
  } else if (!TakeFact(word, rest)) {
    return Garbage(absl::StrCat(word, " ", rest));
  }
  return absl::OkStatus();
}

absl::Status ReportLineReader::TakeCheck(absl::string_view word, absl::string_view rest) {
  const absl::Status garbage = Garbage(absl::StrCat(word, " ", rest));
  if (word == "at") {
    at_ = std::string(rest);
    return running_ == nullptr ? garbage : absl::OkStatus();
  }
  const absl::string_view name = TakeWord(&rest);
  const auto check = std::find_if(checks_.begin(), checks_.end(),
                                  [name](const PluginCheck& c) { return c.name == name; });
  if (check == checks_.end()) return garbage;
  if (word == "begin") {
    // In their order: a check that was left out cannot look as if it had passed.
    const size_t index = static_cast<size_t>(check - checks_.begin());
    if (running_ != nullptr || check->outcome != PluginCheck::Outcome::kNotRun ||
        (index > 0 && checks_[index - 1].outcome == PluginCheck::Outcome::kNotRun)) {
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

absl::Status ReportLineReader::TakeRounds(absl::string_view word, absl::string_view rest) {
  const absl::Status garbage = Garbage(absl::StrCat(word, " ", rest));
  if (word == "speed") {
    TimedRounds rounds;
    if (rounds_.has_value() || !absl::SimpleAtoi(TakeWord(&rest), &rounds.elements) ||
        !absl::SimpleAtoi(TakeWord(&rest), &rounds.bytes)) {
      return garbage;
    }
    rounds.seconds.resize(loops_);
    rounds_ = rounds;
    return absl::OkStatus();
  }
  if (!rounds_.has_value() || rounds_->seconds[0].size() >= kMaxRounds) return garbage;
  for (std::vector<double>& loop : rounds_->seconds) {
    double seconds = 0;
    if (!absl::SimpleAtod(TakeWord(&rest), &seconds) || !(seconds > 0) || !std::isfinite(seconds)) {
      return garbage;
    }
    loop.push_back(seconds);
  }
  return absl::OkStatus();
}

absl::Status ReportLineReader::End(absl::string_view end, absl::string_view reason) {
  if (!error_.ok()) return error_;
  if (!described_) {
    return absl::InvalidArgumentError(absl::StrCat("while it was loaded, its process ", end));
  }
  for (PluginCheck& check : checks_) {
    if (ended_ || check.outcome != PluginCheck::Outcome::kNotRun) continue;
    check.outcome = PluginCheck::Outcome::kFailed;
    check.finding = absl::StrCat(reason, at_.empty() ? "" : ", at ", at_);
    break;
  }
  if (rounds_.has_value() && rounds_->seconds.back().empty()) rounds_.reset();
  return absl::OkStatus();
}

}  // namespace eps
