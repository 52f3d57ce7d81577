#include "base/numerics/held_out_counts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace eps {
namespace {

double Real(uint64_t count) { return static_cast<double>(count); }

void AddTo(const std::vector<uint64_t>& more, std::vector<uint64_t>* counts) {
  counts->resize(std::max(counts->size(), more.size()));
  for (size_t c = 0; c < more.size(); ++c) (*counts)[c] += more[c];
}

double F1OfClass(const HeldOutCounts& counts, size_t c) {
  const uint64_t both = counts.class_predicted[c] + counts.class_labels[c];
  return both == 0 ? 0 : 2 * Real(counts.class_correct[c]) / Real(both);
}

// Returns n * sum(aa) - sum(a)^2; 0 if that is no more than the rounding of the sums.
double Spread(double n, double sum, double sum_of_squares) {
  constexpr double kRounding = 1e-12;
  const double spread = n * sum_of_squares - sum * sum;
  return spread > kRounding * n * sum_of_squares ? spread : 0;
}

}  // namespace

PairSums AddPairs(PairSums left, PairSums right) {
  return {left.x + right.x, left.y + right.y, left.xx + right.xx, left.yy + right.yy,
          left.xy + right.xy};
}

HeldOutCounts CountClasses(absl::Span<const int32_t> predicted, absl::Span<const int32_t> labels,
                           uint32_t classes) {
  EPS_CHECK(predicted.size() == labels.size());
  HeldOutCounts counts;
  counts.class_correct.resize(classes);
  counts.class_predicted.resize(classes);
  counts.class_labels.resize(classes);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0) continue;
    const auto label = static_cast<uint32_t>(labels[i]);
    const auto guess = static_cast<uint32_t>(predicted[i]);
    ++counts.rows;
    counts.correct += label == guess ? 1 : 0;
    if (label < classes) ++counts.class_labels[label];
    if (guess < classes) ++counts.class_predicted[guess];
    if (label < classes && label == guess) ++counts.class_correct[label];
  }
  return counts;
}

HeldOutCounts SumPairs(absl::Span<const float> predicted, absl::Span<const float> targets) {
  EPS_CHECK(predicted.size() == targets.size());
  HeldOutCounts counts;
  counts.rows = targets.size();
  for (size_t i = 0; i < targets.size(); ++i) {
    const double x = predicted[i];
    const double y = targets[i];
    counts.sums = AddPairs(counts.sums, {x, y, x * x, y * y, x * y});
  }
  return counts;
}

void AddIntegers(const HeldOutCounts& more, HeldOutCounts* counts) {
  counts->rows += more.rows;
  counts->correct += more.correct;
  AddTo(more.class_correct, &counts->class_correct);
  AddTo(more.class_predicted, &counts->class_predicted);
  AddTo(more.class_labels, &counts->class_labels);
}

double Accuracy(const HeldOutCounts& counts) {
  return counts.rows == 0 ? 0 : Real(counts.correct) / Real(counts.rows);
}

double F1(const HeldOutCounts& counts) {
  const size_t classes = counts.class_labels.size();
  if (classes == 2) return F1OfClass(counts, 1);
  double sum = 0;
  uint64_t seen = 0;
  for (size_t c = 0; c < classes; ++c) {
    if (counts.class_predicted[c] + counts.class_labels[c] == 0) continue;
    sum += F1OfClass(counts, c);
    ++seen;
  }
  return seen == 0 ? 0 : sum / Real(seen);
}

double Matthews(const HeldOutCounts& counts) {
  const double rows = Real(counts.rows);
  double both = 0, predicted = 0, labels = 0;
  for (size_t c = 0; c < counts.class_labels.size(); ++c) {
    const double p = Real(counts.class_predicted[c]);
    const double t = Real(counts.class_labels[c]);
    both += p * t;
    predicted += p * p;
    labels += t * t;
  }
  const double spread = (rows * rows - predicted) * (rows * rows - labels);
  return spread > 0 ? (Real(counts.correct) * rows - both) / std::sqrt(spread) : 0;
}

double Pearson(const HeldOutCounts& counts) {
  const double n = Real(counts.rows);
  const PairSums& s = counts.sums;
  const double spread = Spread(n, s.x, s.xx) * Spread(n, s.y, s.yy);
  if (!(spread > 0)) return 0;
  return std::clamp((n * s.xy - s.x * s.y) / std::sqrt(spread), -1.0, 1.0);
}

}  // namespace eps
