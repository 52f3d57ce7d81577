#include "cli/launch/metrics_log.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checkpoint/checkpoint.h"
#include "base/files/files.h"
#include "cli/launch/progress.h"
#include "cli/launch/run_config.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "base/job/data_position.h"

namespace eps {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxHistory = 2000;
constexpr size_t kMaxLastLosses = 1000;

double NumberOr(const ordered_json& line, const char* key, double otherwise) {
  return line.contains(key) && line[key].is_number() ? line[key].get<double>() : otherwise;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& path,
                                                             uint64_t base_step) {
  std::unique_ptr<MetricsLog> log(new MetricsLog());
  log->path_ = path;
  if (path.empty()) return log;
  std::string kept;
  absl::StatusOr<std::string> before = ReadTextFile(path);
  if (base_step > 0 && before.ok()) {
    for (absl::string_view text : absl::StrSplit(*before, '\n')) {
      const ordered_json line =
          ordered_json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
      if (!line.is_object() || !line.contains("step") || !line["step"].is_number_unsigned())
        continue;
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
      log->Remember(record);
      absl::StrAppend(&kept, text, "\n");
    }
  }
  EPS_RETURN_IF_ERROR(ReplaceFile(path, kept));
  log->file_ = std::fopen(path.c_str(), "ae");
  if (log->file_ == nullptr) {
    return IoError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  return log;
}

MetricsLog::~MetricsLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void MetricsLog::History::Remember(uint64_t place, const v1::StepRecord& record) {
  if (place % stride != 0) return;
  records.emplace_back(place, record);
  if (records.size() < kMaxHistory) return;
  stride *= 2;
  records.erase(std::remove_if(records.begin(), records.end(),
                               [&](const auto& entry) { return entry.first % stride != 0; }),
                records.end());
}

void MetricsLog::Remember(const v1::StepRecord& record) {
  if (!record.has_evaluation()) {
    last_step_ = record.step();
    return steps_.Remember(record.step(), record);
  }
  evaluations_.Remember(evaluations_seen_++, record);
  last_evaluated_ = record.step();
}

absl::Status MetricsLog::Add(const v1::StepRecord& record) {
  if (record.has_evaluation() && record.step() <= last_evaluated_) return absl::OkStatus();
  Remember(record);
  if (record.has_evaluation()) return Write(record);
  if (last_losses_.size() == kMaxLastLosses) last_losses_.erase(last_losses_.begin());
  last_losses_.push_back(record.loss());
  return Write(record);
}

absl::Status MetricsLog::Write(const v1::StepRecord& record) {
  if (file_ == nullptr) return absl::OkStatus();
  const std::string line = MetricsLine(record) + "\n";
  // Flushed at once: readers follow the file while training goes on.
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0) {
    return IoError(absl::StrCat("cannot write ", path_, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

std::string MetricsLog::TrainerState(const JobSpec& spec, uint64_t step,
                                     uint64_t eval_steps) const {
  const double samples = static_cast<double>(WholeSamples(spec));
  const auto epoch_of = [&](uint64_t at) {
    return static_cast<double>(at) * static_cast<double>(spec.samples_per_step()) / samples;
  };
  ordered_json state;
  state["best_metric"] = nullptr;
  state["best_model_checkpoint"] = nullptr;
  state["epoch"] = epoch_of(step);
  state["global_step"] = step;
  state["is_hyper_param_search"] = false;
  state["is_local_process_zero"] = true;
  state["is_world_process_zero"] = true;
  ordered_json& history = state["log_history"] = ordered_json::array();
  auto evaluation = evaluations_.records.begin();
  const auto add_evaluations = [&](uint64_t below) {
    for (; evaluation != evaluations_.records.end(); ++evaluation) {
      const v1::StepRecord& record = evaluation->second;
      if (record.step() >= below) return;
      history.push_back({{"epoch", epoch_of(record.step())},
                         {"eval_loss", record.evaluation().loss()},
                         {"eval_runtime", record.step_seconds()},
                         {"step", record.step()}});
    }
  };
  for (const auto& [place, record] : steps_.records) {
    if (record.step() > step) break;
    add_evaluations(record.step());
    history.push_back({{"epoch", epoch_of(record.step())},
                       {"grad_norm", record.grad_norm()},
                       {"learning_rate", record.lr()},
                       {"loss", record.loss()},
                       {"step", record.step()}});
  }
  add_evaluations(step + 1);
  if (eval_steps > 0) state["eval_steps"] = eval_steps;
  state["logging_steps"] = steps_.stride;
  state["max_steps"] = spec.training.steps;
  state["num_train_epochs"] = static_cast<uint64_t>(std::ceil(epoch_of(spec.training.steps)));
  state["train_batch_size"] = spec.samples_per_step();
  return state.dump(2) + "\n";
}

double MetricsLog::MeanLoss(size_t steps) const {
  const size_t count = std::min(steps, last_losses_.size());
  double sum = 0;
  for (size_t i = last_losses_.size() - count; i < last_losses_.size(); ++i) sum += last_losses_[i];
  return count == 0 ? NAN : sum / static_cast<double>(count);
}

}  // namespace eps
