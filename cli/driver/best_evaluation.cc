#include "cli/driver/best_evaluation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/job/evaluation/evaluation_metrics.h"

namespace eps {

bool BestEvaluation::IsBetter(double figure, const std::optional<Evaluated>& than) const {
  if (!std::isfinite(figure)) return false;
  if (!than.has_value()) return true;
  return LowerIsBetter(rules_.best_metric) ? figure < than->figure : figure > than->figure;
}

void BestEvaluation::Add(uint64_t step, double figure) {
  all_.push_back({step, figure});
  if (IsBetter(figure, best_)) {
    best_ = all_.back();
    in_vain_ = 0;
    return;
  }
  ++in_vain_;
  if (rules_.patience > 0 && in_vain_ >= rules_.patience && !stop_border_.has_value()) {
    stop_border_ = step + 1;
  }
}

std::optional<BestEvaluation::Evaluated> BestEvaluation::BestOf(
    const std::vector<uint64_t>& steps) const {
  std::optional<Evaluated> best;
  for (const Evaluated& evaluated : all_) {
    const bool asked = std::find(steps.begin(), steps.end(), evaluated.step) != steps.end();
    if (asked && IsBetter(evaluated.figure, best)) best = evaluated;
  }
  return best;
}

std::string BestEvaluation::StopText() const {
  std::string text = absl::StrCat("eval_", NameOf(rules_.best_metric), " of ", rules_.patience,
                                  rules_.patience == 1 ? " evaluation" : " evaluations",
                                  " was no better (training.early_stop_patience)");
  if (best_.has_value()) {
    absl::StrAppend(&text, "; the best is ", FigureText(rules_.best_metric, best_->figure),
                    " after step ", best_->step);
  }
  return text;
}

std::string FigureText(Metric metric, double figure) {
  return absl::StrFormat("eval_%s %.4f", NameOf(metric), figure);
}

}  // namespace eps
