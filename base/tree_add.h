#ifndef EPS_BASE_TREE_ADD_H_
#define EPS_BASE_TREE_ADD_H_

#include <cstddef>

namespace eps {

// out[i] = left[i] + right[i]: the one addition of every reduction tree on a CPU, worker and
// server. Bit-equal on every instruction set; the calling thread must hold ScopedFlushDenormals.
// `out` may be `left` or `right`.
void TreeAdd(const float* left, const float* right, size_t n, float* out);

}  // namespace eps

#endif  // EPS_BASE_TREE_ADD_H_
