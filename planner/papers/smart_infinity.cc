#include "planner/papers/papers.h"

namespace eps::planner {

std::vector<Row> SmartInfinityRows() { return {}; }

}  // namespace eps::planner
