#ifndef EPS_OPTIMIZER_PANEL_H_
#define EPS_OPTIMIZER_PANEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/job/layout/chunk_map.h"
#include "compression/codec.h"

namespace eps {

// A panel is the part of a chunk that one pass covers while it stays in cache: one row of tiles
// over a segment's whole width. It is contiguous in every array and in the gradients that are read
// in place; strided access to narrower pieces costs a quarter to a half of the memory bandwidth.
struct Panel {
  uint32_t segment = 0;
  uint32_t row = 0;  // within the segment
  uint32_t rows = 0;
  uint32_t cols = 0;

  // The panel's first element within its chunk.
  uint64_t offset(const Segment& s) const { return s.offset + uint64_t{row} * s.cols; }
  size_t elements() const { return size_t{rows} * cols; }
};

// Contiguous elements of a panel: all of them, or a piece of one row.
struct ElementRange {
  uint64_t offset = 0;  // from the panel's first element
  size_t elements = 0;
};

// Calls `visit(panel)` for the panels of a chunk. Their tiles, panel after panel, are the chunk's
// tiles in grid order.
template <class Visitor>
void ForEachPanel(const Chunk& chunk, Visitor visit) {
  for (uint32_t i = 0; i < chunk.segments.size(); ++i) {
    const Segment& s = chunk.segments[i];
    for (uint32_t row = 0; row < s.rows; row += kTileRows) {
      visit(Panel{i, row, std::min(s.rows - row, kTileRows), s.cols});
    }
  }
}

template <class Visitor>
void ForEachTileOf(const Panel& panel, Visitor visit) {
  for (uint32_t col = 0; col < panel.cols; col += kTileCols) {
    visit(Tile{panel.segment, panel.row, col, panel.rows, std::min(panel.cols - col, kTileCols)});
  }
}

// Calls `visit(row piece, element range)` for the pieces of a panel's rows, in order. With their
// gradient and state, pieces stay in the first-level cache; they hold at least a tile's columns
// unless the row is shorter.
template <class Visitor>
void ForEachRowPieceOf(const Panel& panel, Visitor visit) {
  constexpr uint32_t kCols = 4 * kTileCols;
  for (uint32_t r = 0; r < panel.rows; ++r) {
    for (uint32_t col = 0; col < panel.cols;) {
      const uint32_t left = panel.cols - col;
      const uint32_t cols = left < kCols + kTileCols ? left : kCols;
      visit(RowPiece{panel.segment, panel.row + r, col, cols},
            ElementRange{uint64_t{r} * panel.cols + col, cols});
      col += cols;
    }
  }
}

// Returns the number of elements of the chunk's largest panel.
inline size_t LargestPanel(const Chunk& chunk) {
  size_t largest = 0;
  ForEachPanel(chunk, [&](const Panel& panel) { largest = std::max(largest, panel.elements()); });
  return largest;
}

}  // namespace eps

#endif  // EPS_OPTIMIZER_PANEL_H_
