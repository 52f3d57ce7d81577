#ifndef EPS_OPTIMIZER_PANEL_H_
#define EPS_OPTIMIZER_PANEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/job/layout/chunk_map.h"

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

// Returns the number of elements of the chunk's largest panel.
inline size_t LargestPanel(const Chunk& chunk) {
  size_t largest = 0;
  ForEachPanel(chunk, [&](const Panel& panel) { largest = std::max(largest, panel.elements()); });
  return largest;
}

}  // namespace eps

#endif  // EPS_OPTIMIZER_PANEL_H_
