#ifndef EPS_BASE_JOB_EVALUATION_EVALUATION_METRICS_H_
#define EPS_BASE_JOB_EVALUATION_EVALUATION_METRICS_H_

// The figures of an evaluation: which ones a model has, what workers have to count for them, and
// their values. This is the one place that computes them. All functions are pure.

#include <vector>

#include "absl/status/statusor.h"
#include "base/job/evaluation/metric.h"
#include "base/job/models/model_spec.h"
#include "base/numerics/held_out_counts.h"

namespace eps {

// With more classes than this a model has accuracy, but neither f1 nor matthews: each part reports
// three numbers for each class.
inline constexpr uint32_t kMostCountedClasses = 1024;

// Returns the metrics that the model has, in the order of Metric: loss; perplexity if it predicts
// tokens; accuracy, f1 and matthews if it predicts classes; pearson if it predicts numbers.
std::vector<Metric> MetricsOf(const ModelSpec& model);

// Returns the metrics of eval.metrics in the order of Metric, each once; all of MetricsOf if
// `asked` is empty. InvalidArgument names a metric that the model does not have, and those that it
// has.
absl::StatusOr<std::vector<Metric>> ChooseMetrics(const ModelSpec& model,
                                                  const std::vector<Metric>& asked);

// Returns how many classes the workers count one by one; 0: none.
uint32_t ClassesToCount(const ModelSpec& model);
// Whether one of the metrics follows from predictions, and not from the loss alone.
bool NeedPredictions(const std::vector<Metric>& metrics);

bool LowerIsBetter(Metric metric);

// The value of a metric.
struct Figure {
  Metric metric = Metric::kLoss;
  double value = 0;
};

// Returns the figures of an evaluation in the order of `metrics`, the loss among them. Leaves out
// those that need counts if `counts_or_null` is null.
std::vector<Figure> FiguresOf(const std::vector<Metric>& metrics, double loss,
                              const HeldOutCounts* counts_or_null);

}  // namespace eps

#endif  // EPS_BASE_JOB_EVALUATION_EVALUATION_METRICS_H_
