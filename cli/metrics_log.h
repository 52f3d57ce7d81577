#ifndef EPS_CLI_METRICS_LOG_H_
#define EPS_CLI_METRICS_LOG_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eps/v1/types.pb.h"
#include "spec/job_spec.h"

namespace eps {

// The records of a run: metrics.jsonl on disk, a bounded history in memory. Thread-compatible.
class MetricsLog {
 public:
  // Keeps the lines of `path` up to `base_step` (a resume takes up there; 0 starts anew) and adds
  // to them. An empty path keeps the history only. IoError with the path.
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(const std::string& path,
                                                          uint64_t base_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  absl::Status Add(const v1::StepRecord& record);

  // trainer_state.json as Hugging Face's Trainer writes it, with a log_history of at most some
  // thousand steps, evenly spread.
  std::string TrainerState(const JobSpec& spec, uint64_t step) const;
  // Mean loss of the last `steps` steps of this process; NaN before the first.
  double MeanLoss(size_t steps) const;

 private:
  MetricsLog() = default;
  void Remember(const v1::StepRecord& record);

  std::string path_;
  std::FILE* file_ = nullptr;
  uint64_t stride_ = 1;  // history_ holds the steps that are multiples of it
  std::vector<v1::StepRecord> history_;
  std::vector<double> last_losses_;
};

}  // namespace eps

#endif  // EPS_CLI_METRICS_LOG_H_
