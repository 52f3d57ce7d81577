#include "base/numerics/reduction_tree.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

// Shows the order and the nesting of the additions.
struct StringAdd {
  std::string operator()(std::string left, std::string right) const {
    return "(" + left + "+" + right + ")";
  }
};
using StringTree = TreeAccumulator<std::string, StringAdd>;

// The definition: split at the largest power of two below n.
std::string Defined(uint32_t first, uint32_t n) {
  if (n == 1) return std::to_string(first);
  uint32_t left = 1;
  while (left * 2 < n) left *= 2;
  return StringAdd()(Defined(first, left), Defined(first + left, n - left));
}

std::vector<TreeRange> Leaves(uint32_t n) {
  std::vector<TreeRange> leaves;
  for (uint32_t i = 0; i < n; ++i) leaves.push_back({i, 1});
  return leaves;
}

std::string Fold(uint32_t n, const std::vector<TreeRange>& order, size_t* most_pending) {
  StringTree tree(n, StringAdd());
  *most_pending = 0;
  for (TreeRange range : order) {
    EXPECT_FALSE(tree.complete());
    tree.Insert(range, Defined(range.first, range.count));
    *most_pending = std::max(*most_pending, tree.pending());
  }
  EXPECT_TRUE(tree.complete());
  std::string sum = tree.Take();
  EXPECT_EQ(tree.pending(), 0u);
  return sum;
}

size_t MostHeld(uint32_t n) {  // floor(log2(n)) + 1
  size_t held = 1;
  while (n >>= 1) ++held;
  return held;
}

TEST(TreeAccumulator, AddsAlongTheDefinedTreeInBothOrders) {
  for (uint32_t n = 1; n <= 17; ++n) {
    std::vector<TreeRange> order = Leaves(n);
    size_t pending = 0;
    EXPECT_EQ(Fold(n, order, &pending), Defined(0, n));
    EXPECT_LE(pending, MostHeld(n)) << n;
    std::reverse(order.begin(), order.end());
    EXPECT_EQ(Fold(n, order, &pending), Defined(0, n));
    EXPECT_LE(pending, MostHeld(n)) << n;
  }
}

TEST(TreeAccumulator, AddsAlongTheSameTreeInAnyOrder) {
  std::mt19937 random(1);
  for (uint32_t n = 1; n <= 17; ++n) {
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<TreeRange> order = Leaves(n);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
      size_t pending = 0;
      EXPECT_EQ(Fold(n, order, &pending), Defined(0, n));
    }
  }
}

TEST(TreeAccumulator, TakesMergedNodesForTheirLeaves) {
  size_t pending = 0;
  EXPECT_EQ(Fold(7, {{4, 2}, {0, 4}, {6, 1}}, &pending), Defined(0, 7));
  EXPECT_EQ(Fold(7, {{4, 3}, {2, 2}, {1, 1}, {0, 1}}, &pending), Defined(0, 7));
  EXPECT_EQ(Fold(7, {{0, 7}}, &pending), Defined(0, 7));
  // A worker's four micro-batches, then two parts, are the tree over eight.
  EXPECT_EQ(Fold(8, {{4, 4}, {0, 4}}, &pending), Defined(0, 8));
}

// All nodes by the definition.
void CollectNodes(TreeRange node, std::optional<TreeRange> parent,
                  std::vector<std::pair<TreeRange, std::optional<TreeRange>>>* nodes) {
  nodes->push_back({node, parent});
  if (node.count == 1) return;
  uint32_t left = 1;
  while (left * 2 < node.count) left *= 2;
  CollectNodes({node.first, left}, node, nodes);
  CollectNodes({node.first + left, node.count - left}, node, nodes);
}

TEST(ReductionTree, KnowsItsNodesAndTheirParents) {
  for (uint32_t n = 1; n <= 33; ++n) {
    std::vector<std::pair<TreeRange, std::optional<TreeRange>>> nodes;
    CollectNodes({0, n}, std::nullopt, &nodes);
    for (uint32_t first = 0; first <= n + 1; ++first) {
      for (uint32_t count = 0; count <= n + 1; ++count) {
        const TreeRange range{first, count};
        const auto it = std::find_if(nodes.begin(), nodes.end(),
                                     [&](const auto& node) { return node.first == range; });
        EXPECT_EQ(IsTreeNode(n, range), it != nodes.end()) << n << " " << first << " " << count;
        EXPECT_EQ(TreeParent(n, range), it != nodes.end() ? it->second : std::nullopt);
      }
    }
  }
}

TEST(ReductionTree, RefusesRangesFromOutsideWithoutOverflow) {
  EXPECT_FALSE(IsTreeNode(0, {0, 0}));
  EXPECT_FALSE(IsTreeNode(8, {UINT32_MAX, 2}));
  EXPECT_FALSE(IsTreeNode(8, {4, UINT32_MAX - 1}));
  EXPECT_EQ(LeftLeaves(2), 1u);
  EXPECT_EQ(LeftLeaves(UINT32_MAX), 1u << 31);
  EXPECT_TRUE(IsTreeNode(UINT32_MAX, {1u << 31, UINT32_MAX - (1u << 31)}));
}

}  // namespace
}  // namespace eps
