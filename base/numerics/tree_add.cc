#include "base/numerics/tree_add.h"

namespace eps {

// One IEEE addition per element, no reassociation: any vector width gives the same bits, so the
// compiler's own vectorisation serves. The loop is bound by memory.
void TreeAdd(const float* left, const float* right, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = left[i] + right[i];
}

}  // namespace eps
