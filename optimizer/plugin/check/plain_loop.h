#ifndef EPS_OPTIMIZER_PLUGIN_CHECK_PLAIN_LOOP_H_
#define EPS_OPTIMIZER_PLUGIN_CHECK_PLAIN_LOOP_H_

#include <cstddef>

namespace eps {

// Reads n gradients, and reads and writes n weights and n values of each of at most four fields,
// with one addition and one multiplication for each value. Finite gradients leave finite values.
// Thread-safe for different arrays.
void PlainLoop(size_t n, const float* grad, float* weight, size_t field_count,
               float* const* fields);

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_CHECK_PLAIN_LOOP_H_
