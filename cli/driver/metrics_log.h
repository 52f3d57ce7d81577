#ifndef EPS_CLI_DRIVER_METRICS_LOG_H_
#define EPS_CLI_DRIVER_METRICS_LOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "checkpoint/trainer_state.h"
#include "cli/driver/best_evaluation.h"
#include "eps/v1/types.pb.h"
#include "nlohmann/json.hpp"

namespace eps {

// The records of a run: metrics.jsonl on disk, and a bounded history in memory. Thread-compatible.
class MetricsLog {
 public:
  // Returns the highest step in `path`; 0 if there is no such file or no step in it. Reads only.
  static absl::StatusOr<uint64_t> LastStep(const std::string& path);

  // Keeps the lines of `path` up to `base_step`, including its evaluation, and appends to them; 0
  // starts an empty file. With an empty `path`, keeps only the history. IoError names the path.
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(const std::string& path,
                                                          uint64_t base_step,
                                                          const EvaluationRules& rules = {});
  // Returns the evaluations of `path` up to `base_step`. Reads only; there may be no such file.
  static BestEvaluation ReadEvaluations(const std::string& path, uint64_t base_step,
                                        const EvaluationRules& rules);
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // Appends the record of a step or of an evaluation, unless TrainerHistory::Add ignores it. While
  // the disk is full, keeps the lines for the next call. IoError names the path.
  absl::Status Add(const v1::StepRecord& record);
  // Writes the lines that Add could not write. ResourceExhausted if the disk is still full.
  absl::Status Flush();

  const TrainerHistory& history() const { return history_; }
  // The latest evaluation of this process; nullopt before the first.
  const std::optional<v1::StepRecord>& last_evaluation() const { return last_evaluation_; }
  // Its figures.
  std::vector<Figure> last_figures() const;
  // All evaluations of the run, compared.
  const BestEvaluation& evaluations() const { return evaluations_; }
  // Returns the mean loss of the last `steps` steps of this process; NaN before the first.
  double MeanLoss(size_t steps) const;

 private:
  explicit MetricsLog(const EvaluationRules& rules) : evaluations_(rules) {}
  // Adds a line of an earlier process to the history.
  void Keep(const nlohmann::ordered_json& line);
  absl::Status Write(const v1::StepRecord& record, const std::vector<Figure>& figures);

  std::string path_;
  Descriptor file_;
  uint64_t written_ = 0;  // bytes of whole lines in the file
  std::string pending_;   // lines that the file does not hold yet
  TrainerHistory history_;
  BestEvaluation evaluations_;
  std::optional<v1::StepRecord> last_evaluation_;
  std::vector<double> last_losses_;  // of this process, oldest first
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_METRICS_LOG_H_
