#include "planner/papers/papers.h"

namespace eps::planner {

std::vector<Row> JitqRows() { return {}; }

}  // namespace eps::planner
