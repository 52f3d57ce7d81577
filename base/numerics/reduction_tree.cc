#include "base/numerics/reduction_tree.h"

namespace eps {
namespace {

uint64_t End(TreeRange range) { return uint64_t{range.first} + range.count; }

}  // namespace

std::optional<TreeRange> TreeParent(uint32_t n, TreeRange node) {
  if (node.count == 0 || End(node) > n) return std::nullopt;
  TreeRange current{0, n};
  // Descends from the root towards `node`; every turn at least one leaf is left behind.
  while (node.count < current.count) {
    const uint32_t left_count = LeftLeaves(current.count);
    const TreeRange left{current.first, left_count};
    const TreeRange right{current.first + left_count, current.count - left_count};
    if (node == left || node == right) return current;
    if (End(node) <= End(left)) {
      current = left;
    } else if (node.first >= right.first) {
      current = right;
    } else {
      return std::nullopt;  // lies across the split
    }
  }
  return std::nullopt;
}

bool IsTreeNode(uint32_t n, TreeRange range) {
  return n > 0 && (range == TreeRange{0, n} || TreeParent(n, range).has_value());
}

}  // namespace eps
