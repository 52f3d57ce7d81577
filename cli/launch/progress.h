#ifndef EPS_CLI_LAUNCH_PROGRESS_H_
#define EPS_CLI_LAUNCH_PROGRESS_H_

// How a completed step is shown: the progress line (docs/reference/progress.md) and the object in
// metrics.jsonl. Names and order are stable; new ones are added at the end.

#include <cstdint>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "eps/v1/types.pb.h"

namespace eps {

// "step: 120/5000 loss: 2.4312 grad_norm: 0.91 lr: 2.98e-4 tps: 1,842 eta: 2h11m". A skipped step
// ends with " skipped". `eta_seconds` below 0: unknown, shown as "-".
std::string ProgressLine(const v1::StepRecord& record, uint64_t steps, double eta_seconds);
// Of an evaluation's record: "step: 120/5000 eval_loss: 2.4312 eval_tokens: 8,192 eval_time: 3s".
std::string EvaluationLine(const v1::StepRecord& record, uint64_t steps);

// One JSON object without newline: step, loss, grad_norm, lr, tokens, step_seconds,
// tokens_per_second, term, version, and "skipped": true for a step that was skipped. Doubles are
// the shortest text that reads back as the same bits; what is not finite is null. Of an
// evaluation's record: step, eval_loss, eval_tokens, eval_seconds, term.
std::string MetricsLine(const v1::StepRecord& record);

double TokensPerSecond(const v1::StepRecord& record);

std::string FormatSeconds(double seconds);   // "45s", "3m20s", "2h11m", "4d03h"
std::string FormatBytes(double bytes);       // "512 B", "1.5 MiB"
std::string FormatCount(uint64_t count);     // "1,842"
std::string FormatScientific(double value);  // "2.98e-4"

// Remaining time from the last few steps. Thread-compatible.
class EtaEstimator {
 public:
  void Add(double step_seconds);
  // -1 before the first step.
  double SecondsFor(uint64_t steps) const;

 private:
  std::deque<double> recent_;
  double sum_ = 0;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PROGRESS_H_
