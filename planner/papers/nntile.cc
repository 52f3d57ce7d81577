#include "planner/papers/papers.h"

namespace eps::planner {

std::vector<Row> NntileRows() { return {}; }

}  // namespace eps::planner
