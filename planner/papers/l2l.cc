#include "planner/papers/papers.h"

namespace eps::planner {

std::vector<Row> L2lRows() { return {}; }

}  // namespace eps::planner
