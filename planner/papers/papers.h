#ifndef EPS_PLANNER_PAPERS_PAPERS_H_
#define EPS_PLANNER_PAPERS_PAPERS_H_

// The rows of each of the four papers that EPS combines. Pure functions. Comments next to the
// definitions explain each formula and its source.

#include <vector>

#include "planner/papers/row.h"

namespace eps::planner {

std::vector<Row> L2lRows();            // "Training Large Neural Networks with Constant Memory"
std::vector<Row> NntileRows();         // NNTile
std::vector<Row> SmartInfinityRows();  // Smart-Infinity
std::vector<Row> JitqRows();           // JIT-Q

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_PAPERS_H_
