#ifndef EPS_VERIFY_TREE_SUM_H_
#define EPS_VERIFY_TREE_SUM_H_

// The reference's canonical summation tree, written as the recursion that defines it. Workers and
// servers use other code (base/numerics/reduction_tree.h, storage/), so that a mistake in either
// one shows.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"

namespace eps {

// sum[i] += addend[i], each rounded once. The calling thread must hold ScopedFlushDenormals; the
// function is in a separate file because a compiler may move inlined arithmetic out of that
// scope. REQUIRES equal sizes.
void AddInto(const std::vector<float>& addend, std::vector<float>* sum);

// Sums leaves [first, first + count). One leaf is its own sum; otherwise the left subtree has the
// largest power of two below `count` leaves and the right subtree has the rest. `leaf(i)` returns a
// StatusOr<Value>, `add(left, right)` a Value. At most log2(count) + 1 values exist at a time.
// REQUIRES count >= 1.
template <class Value, class Leaf, class Add>
absl::StatusOr<Value> TreeSum(uint32_t first, uint32_t count, const Leaf& leaf, const Add& add) {
  if (count == 1) return leaf(first);
  uint32_t left_count = 1;
  while (left_count * 2 < count) left_count *= 2;
  EPS_ASSIGN_OR_RETURN(Value left, (TreeSum<Value>(first, left_count, leaf, add)));
  EPS_ASSIGN_OR_RETURN(Value right,
                       (TreeSum<Value>(first + left_count, count - left_count, leaf, add)));
  return add(std::move(left), std::move(right));
}

}  // namespace eps

#endif  // EPS_VERIFY_TREE_SUM_H_
