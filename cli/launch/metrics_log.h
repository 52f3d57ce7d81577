#ifndef EPS_CLI_LAUNCH_METRICS_LOG_H_
#define EPS_CLI_LAUNCH_METRICS_LOG_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eps/v1/types.pb.h"
#include "base/job/job_spec.h"

namespace eps {

// The records of a run: metrics.jsonl on disk, a bounded history in memory. Thread-compatible.
class MetricsLog {
 public:
  // Keeps the lines of `path` up to `base_step` (a resume takes up there; 0 starts anew), those of
  // its evaluation among them, and adds to them. An empty path keeps the history only. IoError with
  // the path.
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(const std::string& path,
                                                          uint64_t base_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // A step's record, or an evaluation's; one of a border that the log already has is left out (a
  // resume evaluates its border again).
  absl::Status Add(const v1::StepRecord& record);

  // trainer_state.json as Hugging Face's Trainer writes it, with a log_history of at most some
  // thousand steps, evenly spread; evaluations have entries of their own. `eval_steps` as
  // configured.
  std::string TrainerState(const JobSpec& spec, uint64_t step, uint64_t eval_steps = 0) const;
  // Whether the evaluation behind `step` stands in the log.
  bool Evaluated(uint64_t step) const { return step > 0 && last_evaluated_ >= step; }
  // The last step whose record stands in the log; 0: none.
  uint64_t last_step() const { return last_step_; }
  // Mean loss of the last `steps` steps of this process; NaN before the first.
  double MeanLoss(size_t steps) const;

 private:
  MetricsLog() = default;
  // At most some thousand records, evenly spread: those whose places are multiples of `stride`.
  struct History {
    uint64_t stride = 1;
    std::vector<std::pair<uint64_t, v1::StepRecord>> records;  // with their places
    void Remember(uint64_t place, const v1::StepRecord& record);
  };
  void Remember(const v1::StepRecord& record);
  absl::Status Write(const v1::StepRecord& record);

  std::string path_;
  std::FILE* file_ = nullptr;
  History steps_;
  History evaluations_;
  uint64_t evaluations_seen_ = 0;
  uint64_t last_evaluated_ = 0;  // step
  uint64_t last_step_ = 0;
  std::vector<double> last_losses_;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_METRICS_LOG_H_
