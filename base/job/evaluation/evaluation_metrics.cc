#include "base/job/evaluation/evaluation_metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/job/models/model_family.h"
#include "base/numerics/deterministic_math.h"

namespace eps {
namespace {

bool Has(const std::vector<Metric>& metrics, Metric metric) {
  return std::find(metrics.begin(), metrics.end(), metric) != metrics.end();
}

double ValueOf(Metric metric, double loss, const HeldOutCounts* counts) {
  switch (metric) {
    case Metric::kLoss:
      break;
    case Metric::kPerplexity:
      return DeterministicExp(loss);
    case Metric::kAccuracy:
      return Accuracy(*counts);
    case Metric::kF1:
      return F1(*counts);
    case Metric::kMatthews:
      return Matthews(*counts);
    case Metric::kPearson:
      return Pearson(*counts);
  }
  return loss;
}

}  // namespace

std::vector<Metric> MetricsOf(const ModelSpec& model) {
  const ModelFamily& family = FamilyOf(model.type);
  if (!family.ReadsData(model)) return {Metric::kLoss};
  switch (family.labels(model)) {
    case LabelKind::kTokens:
    case LabelKind::kMaskedTokens:
      break;
    case LabelKind::kClasses:
      if (ClassesToCount(model) == 0) return {Metric::kLoss, Metric::kAccuracy};
      return {Metric::kLoss, Metric::kAccuracy, Metric::kF1, Metric::kMatthews};
    case LabelKind::kNumbers:
      return {Metric::kLoss, Metric::kPearson};
  }
  return {Metric::kLoss, Metric::kPerplexity};
}

absl::StatusOr<std::vector<Metric>> ChooseMetrics(const ModelSpec& model,
                                                  const std::vector<Metric>& asked) {
  const std::vector<Metric> all = MetricsOf(model);
  if (asked.empty()) return all;
  for (const Metric metric : asked) {
    if (Has(all, metric)) continue;
    std::string text = absl::StrCat(
        "eval.metrics: the model has no ", NameOf(metric), "; it has ",
        absl::StrJoin(all, ", ", [](std::string* out, Metric m) { out->append(NameOf(m)); }));
    const uint32_t classes = FamilyOf(model.type).classes(model);
    if (classes > kMostCountedClasses) {
      absl::StrAppend(&text, " (f1 and matthews need at most ", kMostCountedClasses,
                      " classes, and it has ", classes, ")");
    }
    return absl::InvalidArgumentError(text);
  }
  std::vector<Metric> chosen;
  for (const Metric metric : all) {
    if (Has(asked, metric)) chosen.push_back(metric);
  }
  return chosen;
}

uint32_t ClassesToCount(const ModelSpec& model) {
  const ModelFamily& family = FamilyOf(model.type);
  if (family.labels(model) != LabelKind::kClasses) return 0;
  const uint32_t classes = family.classes(model);
  return classes <= kMostCountedClasses ? classes : 0;
}

bool NeedPredictions(const std::vector<Metric>& metrics) {
  return std::any_of(metrics.begin(), metrics.end(),
                     [](Metric m) { return m != Metric::kLoss && m != Metric::kPerplexity; });
}

bool LowerIsBetter(Metric metric) {
  return metric == Metric::kLoss || metric == Metric::kPerplexity;
}

std::vector<Figure> FiguresOf(const std::vector<Metric>& metrics, double loss,
                              const HeldOutCounts* counts_or_null) {
  std::vector<Figure> figures;
  for (const Metric metric : metrics) {
    if (counts_or_null == nullptr && NeedPredictions({metric})) continue;
    figures.push_back({metric, ValueOf(metric, loss, counts_or_null)});
  }
  return figures;
}

}  // namespace eps
