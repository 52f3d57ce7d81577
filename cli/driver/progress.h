#ifndef EPS_CLI_DRIVER_PROGRESS_H_
#define EPS_CLI_DRIVER_PROGRESS_H_

// Formats a completed step: the progress line (docs/reference/progress.md) and the object in
// metrics.jsonl. Names and their order are stable; new ones are appended.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/job/evaluation/evaluation_metrics.h"
#include "eps/v1/types.pb.h"

namespace eps {

// Writes complete lines to stdout, above the progress bar if there is one, and flushes, so that a
// reader of a pipe receives each line at once.
void Print(absl::string_view text);

// Returns "step: 120/5000 loss: 2.4312 grad_norm: 0.91 lr: 2.98e-4 tps: 1,842 eta: 2h11m". Appends
// " skipped" for a skipped step, and with training.precision=cmp " loss_scale: 2^16". A negative
// `eta_seconds` means unknown and is shown as "-".
std::string ProgressLine(const v1::StepRecord& record, uint64_t steps, double eta_seconds);
// Returns the bar of a terminal, "[=====>     ] 120/5000 loss 2.4312 1,842 tokens/s 2h11m left",
// shorter than `columns`: a narrow terminal gets no bar, and then less text from the end.
std::string ProgressBar(const v1::StepRecord& record, uint64_t steps, double eta_seconds,
                        size_t columns);
// Returns the figures of an evaluation: those of the metrics other than the loss. Leaves out the
// ones for which the workers have not counted.
std::vector<Figure> FiguresOf(const v1::Evaluation& evaluation, const std::vector<Metric>& metrics);
// For the record of an evaluation returns "step: 120/5000 eval_loss: 2.4312 eval_accuracy: 0.8125
// eval_tokens: 8,192 eval_time: 3s".
std::string EvaluationLine(const v1::StepRecord& record, uint64_t steps,
                           const std::vector<Figure>& figures = {});

// Returns one JSON object without a newline: step, loss, grad_norm, lr, tokens, step_seconds,
// tokens_per_second, term, version, "skipped": true for a step that was skipped, and "loss_scale"
// with training.precision=cmp. Doubles are the shortest text that reads back as the same bits, or
// null if not finite. The record of an evaluation has step, eval_loss, eval_tokens, eval_seconds,
// term, and eval_NAME for each of `figures`, which other records have none of.
std::string MetricsLine(const v1::StepRecord& record, const std::vector<Figure>& figures = {});

double TokensPerSecond(const v1::StepRecord& record);

// Estimates the remaining time from the last few steps. Thread-compatible.
class EtaEstimator {
 public:
  void Add(double step_seconds);
  // Returns the estimated duration of `steps` steps; -1 before the first Add.
  double SecondsFor(uint64_t steps) const;

 private:
  std::deque<double> recent_;
  double sum_ = 0;
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_PROGRESS_H_
