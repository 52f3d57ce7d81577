#ifndef EPS_COMPRESSION_PANEL_AHEAD_H_
#define EPS_COMPRESSION_PANEL_AHEAD_H_

// How far ahead encoders prefetch. This header is free of standard library templates, because
// kernels that are compiled once per instruction set include it.

#include <cstddef>

namespace eps {

// Returns the distance, in elements, to data that is needed soon, in rows that are `ld` apart.
// Encoders process one row of tiles, a panel, after the other. During an update each panel is
// already in cache, so the memory is free to load the panel below. If two panels exceed the
// second-level cache, it loads the tile to the right instead.
inline size_t PanelAhead(size_t ld) {
  constexpr size_t kRows = 32;
  constexpr size_t kCols = 128;
  constexpr size_t kMostElements = size_t{1} << 16;
  return kRows * ld <= kMostElements ? kRows * ld : kCols;
}
// The distance, in rows, for prefetches from the second-level to the first-level cache, which could
// not hold all rows of two tiles whose rows are a power of two apart.
inline constexpr size_t kRowsAhead = 3;

}  // namespace eps

#endif  // EPS_COMPRESSION_PANEL_AHEAD_H_
