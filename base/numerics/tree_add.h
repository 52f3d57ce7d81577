#ifndef EPS_BASE_NUMERICS_TREE_ADD_H_
#define EPS_BASE_NUMERICS_TREE_ADD_H_

#include <cstddef>

namespace eps {

// Computes out[i] = left[i] + right[i], the addition of every reduction tree on a CPU, in workers
// and servers. The result has the same bits on every instruction set. Hold ScopedFlushDenormals on
// the calling thread. `out` may be `left` or `right`.
void TreeAdd(const float* left, const float* right, size_t n, float* out);

}  // namespace eps

#endif  // EPS_BASE_NUMERICS_TREE_ADD_H_
