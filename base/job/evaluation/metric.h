#ifndef EPS_BASE_JOB_EVALUATION_METRIC_H_
#define EPS_BASE_JOB_EVALUATION_METRIC_H_

#include <array>

#include "base/job/names.h"

namespace eps {

// A figure of an evaluation on held-out data. base/job/evaluation/evaluation_metrics.h says which
// ones a model has and computes them.
enum class Metric { kLoss, kPerplexity, kAccuracy, kF1, kMatthews, kPearson };
template <>
inline constexpr std::array<const char*, 6> kNames<Metric> = {"loss", "perplexity", "accuracy",
                                                              "f1",   "matthews",   "pearson"};

}  // namespace eps

#endif  // EPS_BASE_JOB_EVALUATION_METRIC_H_
