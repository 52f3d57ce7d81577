#ifndef EPS_OPTIMIZER_RULES_OPENCL_RULE_SOURCES_H_
#define EPS_OPTIMIZER_RULES_OPENCL_RULE_SOURCES_H_

// The update rules in OpenCL C, for devices that update with a runtime of OpenCL.

#include <string>

#include "absl/status/statusor.h"
#include "base/job/optimizers.h"

namespace eps {

// Returns the arithmetic and the rule of an optimizer, OpenCL C 1.2 with doubles. It defines
//
//   Scalars                                           PreparedUpdate::scalars()
//   void UpdateElement(Scalars, float grad, __global float* weight, ulong stride)
//   float StepOfElement(…)                            of PreparedSteps; if HAS_STEPS is defined
//
// Each field of an element's state is `stride` floats after the one before; the weight is the
// first. The bits are those of UpdateRule. Build with -cl-fp32-correctly-rounded-divide-sqrt, and
// with no option that makes arithmetic less exact. Unimplemented names the rules that exist.
absl::StatusOr<std::string> OpenClRule(OptimizerName name);

}  // namespace eps

#endif  // EPS_OPTIMIZER_RULES_OPENCL_RULE_SOURCES_H_
