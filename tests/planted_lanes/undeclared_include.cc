// Planted: includes a header of a target that is not among the dependencies, only among theirs. The
// asan lane, which builds with layering_check, must refuse to build it.

#include "base/check.h"

namespace eps {

void CheckPositive(int value) { EPS_CHECK(value > 0); }

}  // namespace eps
