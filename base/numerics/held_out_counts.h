#ifndef EPS_BASE_NUMERICS_HELD_OUT_COUNTS_H_
#define EPS_BASE_NUMERICS_HELD_OUT_COUNTS_H_

// The counts of an evaluation's predictions, and the figures that follow from them. Counts are
// integers, and sums follow the canonical tree, so that a figure has the same bits however the
// samples are divided among workers. All functions are pure.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/numerics/reduction_tree.h"

namespace eps {

// Sums over pairs of a predicted number x and its target y.
struct PairSums {
  double x = 0, y = 0, xx = 0, yy = 0, xy = 0;
};
PairSums AddPairs(PairSums left, PairSums right);

// Adds the leaves of a sum along the tree.
using PairTree = TreeAccumulator<PairSums, PairSums (*)(PairSums, PairSums)>;

// The counts of any number of samples. The three counts by class are the confusion matrix without
// what no figure needs: its diagonal, and the sums of its columns and of its rows.
struct HeldOutCounts {
  uint64_t rows = 0;     // samples that count
  uint64_t correct = 0;  // of these, the ones whose class was predicted
  // By class; empty if classes are not counted one by one.
  std::vector<uint64_t> class_correct = {};
  std::vector<uint64_t> class_predicted = {};
  std::vector<uint64_t> class_labels = {};
  PairSums sums = {};  // of models that predict numbers
};

// Returns the counts of samples with these labels, of which those that are negative do not count.
// Counts the first `classes` classes one by one. REQUIRES predicted.size() == labels.size().
HeldOutCounts CountClasses(absl::Span<const int32_t> predicted, absl::Span<const int32_t> labels,
                           uint32_t classes);
// Returns the counts of samples with these targets; the sums are added in order. REQUIRES
// predicted.size() == targets.size().
HeldOutCounts SumPairs(absl::Span<const float> predicted, absl::Span<const float> targets);
// Adds the integers of `more` to *counts, and leaves the sums to the caller. Classes that *counts
// does not have are added to it.
void AddIntegers(const HeldOutCounts& more, HeldOutCounts* counts);

// The figures are those of scikit-learn (accuracy_score, f1_score, matthews_corrcoef) and SciPy
// (pearsonr), except that they are 0 where those are not defined: without samples, and, but for
// accuracy, where all predictions or all labels are equal.
double Accuracy(const HeldOutCounts& counts);
// With two classes, that of class 1; else the mean over the classes that are predicted or occur
// ("macro"). REQUIRES counts by class.
double F1(const HeldOutCounts& counts);
// R_K for any number of classes (Gorodkin, 2004). REQUIRES counts by class.
double Matthews(const HeldOutCounts& counts);
// The correlation of predictions and targets.
double Pearson(const HeldOutCounts& counts);

}  // namespace eps

#endif  // EPS_BASE_NUMERICS_HELD_OUT_COUNTS_H_
