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

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& path,
                                                             uint64_t base_step) {
  std::unique_ptr<MetricsLog> log(new MetricsLog());
  log->path_ = path;
  if (path.empty()) return log;
  std::string kept;
  absl::StatusOr<std::string> before = ReadTextFile(path);
  if (base_step > 0 && before.ok()) {
    for (absl::string_view text : absl::StrSplit(*before, '\n')) {
      const std::optional<ordered_json> parsed = ParseLine(text);
      if (!parsed.has_value()) continue;
      const ordered_json& line = *parsed;
      v1::StepRecord record;
      record.set_step(line["step"].get<uint64_t>());
      if (record.step() > base_step) continue;
      if (line.contains("eval_loss")) {
        record.mutable_evaluation()->set_loss(NumberOr(line, "eval_loss", NAN));
        record.set_step_seconds(NumberOr(line, "eval_seconds", 0));
      }
      record.set_loss(NumberOr(line, "loss", NAN));
      record.set_grad_norm(NumberOr(line, "grad_norm", NAN));
      record.set_lr(NumberOr(line, "lr", 0));
      log->history_.Add(record);
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
  if (!history_.Add(record)) return absl::OkStatus();
  if (record.has_evaluation()) {
    last_evaluation_ = record;
    return Write(record);
  }
  if (last_losses_.size() == kMaxLastLosses) last_losses_.erase(last_losses_.begin());
  last_losses_.push_back(record.loss());
  return Write(record);
}

absl::Status MetricsLog::Write(const v1::StepRecord& record) {
  if (!file_.ok()) return absl::OkStatus();
  absl::StrAppend(&pending_, MetricsLine(record), "\n");
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

double MetricsLog::MeanLoss(size_t steps) const {
  const size_t count = std::min(steps, last_losses_.size());
  double sum = 0;
  for (size_t i = last_losses_.size() - count; i < last_losses_.size(); ++i) sum += last_losses_[i];
  return count == 0 ? NAN : sum / static_cast<double>(count);
}

}  // namespace eps
