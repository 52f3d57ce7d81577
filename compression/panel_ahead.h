#ifndef EPS_COMPRESSION_PANEL_AHEAD_H_
#define EPS_COMPRESSION_PANEL_AHEAD_H_

// How far ahead encoders fetch. This header stays free of the standard library's templates, because
// kernels that are compiled once per instruction set include it.

#include <cstddef>

namespace eps {

// Elements that come in a while, counted from those at hand, in rows that are `ld` apart. Encoders
// go over one row of tiles, a panel, after the other, and in an update each panel is in cache
// already: what memory can give meanwhile is the panel below. Where two panels are too much for the
// second cache, it is the tile to the right.
inline size_t PanelAhead(size_t ld) {
  constexpr size_t kRows = 32;
  constexpr size_t kCols = 128;
  constexpr size_t kMostElements = size_t{1} << 16;
  return kRows * ld <= kMostElements ? kRows * ld : kCols;
}
// Rows that come soon: from the second cache to the first, which would not hold all rows of two
// tiles if they are a power of two apart.
inline constexpr size_t kRowsAhead = 3;

}  // namespace eps

#endif  // EPS_COMPRESSION_PANEL_AHEAD_H_
