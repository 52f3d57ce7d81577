// The loop of every rule over the elements of a tile, for the files of the rules to include once
// per instruction set.

#include <cstddef>

#include "hwy/highway.h"
#include "optimizer/rules/element_rule.h"

// Highway's include guard for files that are compiled once per instruction set.
#if defined(EPS_OPTIMIZER_RULES_TILE_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_OPTIMIZER_RULES_TILE_LOOP_INL_H_
#undef EPS_OPTIMIZER_RULES_TILE_LOOP_INL_H_
#else
#define EPS_OPTIMIZER_RULES_TILE_LOOP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

// One cache line of floats per step, on vectors of at most that size.
constexpr size_t kStep = 16;
// The prefetch distance. In long runs it covers the latency of memory. The rows of a tile are short
// runs in distant pages that no hardware prefetcher follows: there it reaches the same row of the
// next tile (kTileCols).
constexpr size_t kPrefetchLong = 512;
constexpr size_t kPrefetchTile = 128;
constexpr size_t kLongRun = 2 * kPrefetchLong;

// Updates `n` consecutive elements; as UpdateTile.
template <class Rule, class... Arrays>
HWY_INLINE void UpdateRow(const Rule& shared, size_t n, size_t ahead,
                          const float* HWY_RESTRICT grad, Arrays... arrays) {
  const Rule rule = shared;  // a copy that no store can alias: its values stay in registers
  const HWY_CAPPED(float, kStep) d;
  const HWY_CAPPED(float, 1) d1;
  const size_t lanes = hwy::HWY_NAMESPACE::Lanes(d);
  size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    // Writes follow at once, so lines of weights and state are fetched for writing.
    (__builtin_prefetch(arrays + i + ahead, 1, 3), ...);
    __builtin_prefetch(grad + i + ahead, 0, 3);
    for (size_t j = i; j < i + kStep; j += lanes) rule.Vector(d, grad + j, (arrays + j)...);
  }
  for (; i < n; ++i) rule.Vector(d1, grad + i, (arrays + i)...);
}

// Calls rule.Vector(d, gradient, array...) for every vector of a tile, each element once. `arrays`
// are those of the tile that the rule uses, each a float*.
template <class Rule, class... Arrays>
HWY_INLINE void UpdateTile(const Rule& rule, const RuleTile& tile, Arrays... arrays) {
  size_t rows = tile.rows, cols = tile.cols;
  const size_t ld = tile.state.ld;
  if (ld == cols && tile.grad_ld == cols) {
    cols *= rows;
    rows = 1;
  }
  const size_t ahead = tile.more_follow || cols >= kLongRun ? kPrefetchLong : kPrefetchTile;
  for (size_t r = 0; r < rows; ++r) {
    UpdateRow(rule, cols, ahead, tile.grad + r * tile.grad_ld, (arrays + r * ld)...);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#endif  // EPS_OPTIMIZER_RULES_TILE_LOOP_INL_H_
