#ifndef EPS_BASE_NUMERICS_REDUCTION_TREE_H_
#define EPS_BASE_NUMERICS_REDUCTION_TREE_H_

// The canonical reduction tree over n leaves: split at the largest power of two below n, add left
// and right. Workers (over the micro-batches of a part) and servers (over parts, then uses) follow
// the same tree, so that no sum depends on the order of arrival.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace eps {

// Leaves [first, first + count).
struct TreeRange {
  uint32_t first = 0;
  uint32_t count = 0;
  friend bool operator==(TreeRange a, TreeRange b) {
    return a.first == b.first && a.count == b.count;
  }
  friend bool operator<(TreeRange a, TreeRange b) {
    return a.first != b.first ? a.first < b.first : a.count < b.count;
  }
};

// Size of the left half of a node over n leaves: the largest power of two below n. REQUIRES n >= 2.
inline uint32_t LeftLeaves(uint32_t n) {
  uint32_t p = 1;
  while (p < n - p) p *= 2;
  return p;
}

// The parent of `node` in the tree over `n` leaves; nullopt if `node` is the root or no node of it.
std::optional<TreeRange> TreeParent(uint32_t n, TreeRange node);
// Whether `range` is a node of the tree over `n` leaves: what a merged contribution must be.
bool IsTreeNode(uint32_t n, TreeRange range);

// Folds values that arrive in any order along the tree over `n` leaves, as soon as siblings meet.
// Descending or ascending order holds at most log2(n)+1 values at a time. `add(left, right)`
// returns the sum and may reuse its arguments' memory. Thread-compatible.
template <class Value, class Add>
class TreeAccumulator {
 public:
  TreeAccumulator(uint32_t leaves, Add add) : leaves_(leaves), add_(std::move(add)) {}

  // Adds a leaf or a merged node. REQUIRES IsTreeNode(leaves, range), each leaf exactly once.
  void Insert(TreeRange range, Value value) {
    while (auto parent = TreeParent(leaves_, range)) {
      const uint32_t left_count = LeftLeaves(parent->count);
      const bool is_left = range.first == parent->first && range.count == left_count;
      const TreeRange sibling =
          is_left ? TreeRange{parent->first + left_count, parent->count - left_count}
                  : TreeRange{parent->first, left_count};
      auto it = pending_.find(sibling);
      if (it == pending_.end()) break;
      Value other = std::move(it->second);
      pending_.erase(it);
      value = is_left ? add_(std::move(value), std::move(other))
                      : add_(std::move(other), std::move(value));
      range = *parent;
    }
    pending_.emplace(range, std::move(value));
  }

  // Whether all leaves have been added.
  bool complete() const {
    return pending_.size() == 1 && pending_.begin()->first == TreeRange{0, leaves_};
  }
  // Values held: partial sums whose sibling is still missing, or the whole sum.
  size_t pending() const { return pending_.size(); }
  // REQUIRES complete(). Leaves the accumulator empty.
  Value Take() {
    Value value = std::move(pending_.begin()->second);
    pending_.clear();
    return value;
  }

 private:
  const uint32_t leaves_;
  Add add_;
  std::map<TreeRange, Value> pending_;
};

}  // namespace eps

#endif  // EPS_BASE_NUMERICS_REDUCTION_TREE_H_
