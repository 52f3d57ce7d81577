#ifndef EPS_CLI_DRIVER_BEST_EVALUATION_H_
#define EPS_CLI_DRIVER_BEST_EVALUATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/job/evaluation/metric.h"

namespace eps {

// The settings of a run about its evaluations.
struct EvaluationRules {
  std::vector<Metric> metrics = {};    // of each evaluation, beside its loss
  Metric best_metric = Metric::kLoss;  // compares evaluations
  uint64_t patience = 0;               // evaluations without a better one that end the run; 0: none
};

// Compares the evaluations of a run by one figure. Its answers are functions of the figures alone,
// so that they are the same in a run that is resumed. Thread-compatible.
class BestEvaluation {
 public:
  // An evaluation of the weights after a step.
  struct Evaluated {
    uint64_t step = 0;
    double figure = 0;
  };

  explicit BestEvaluation(EvaluationRules rules) : rules_(std::move(rules)) {}

  // Adds the evaluation of a step later than those before. Of equal figures the first is the best;
  // one that is not finite is never the best.
  void Add(uint64_t step, double figure);

  // Returns the best of all evaluations; nullopt before the first finite one.
  const std::optional<Evaluated>& best() const { return best_; }
  // Returns the best of those after the steps in `steps`; nullopt if none is finite.
  std::optional<Evaluated> BestOf(const std::vector<uint64_t>& steps) const;
  // Returns the border at which the run ends early: that of the step after the evaluation which
  // exhausted the patience, because workers evaluate a step during the next one. nullopt if none
  // has.
  std::optional<uint64_t> stop_border() const { return stop_border_; }
  // Says why the run ends early. REQUIRES stop_border().
  std::string StopText() const;
  const EvaluationRules& rules() const { return rules_; }

 private:
  bool IsBetter(double figure, const std::optional<Evaluated>& than) const;

  const EvaluationRules rules_;
  std::vector<Evaluated> all_;  // by step
  std::optional<Evaluated> best_;
  uint64_t in_vain_ = 0;  // evaluations since the best one
  std::optional<uint64_t> stop_border_;
};

// Returns "eval_accuracy 0.8125".
std::string FigureText(Metric metric, double figure);

}  // namespace eps

#endif  // EPS_CLI_DRIVER_BEST_EVALUATION_H_
