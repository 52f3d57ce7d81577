#ifndef EPS_BASE_JOB_INITIAL_VALUES_H_
#define EPS_BASE_JOB_INITIAL_VALUES_H_

// The weights with which a job starts where it has none to load.

#include <cstdint>

#include "absl/types/span.h"
#include "base/job/job_spec.h"

namespace eps {

// Fills out with the initial values of elements [first, first + out.size()) of a tensor: ones,
// zeros, or normal or uniform deviates of the job's seed (base/numerics/rng.h). Every process and
// every split into chunks gives the same bits.
void FillInitialValues(const JobSpec& spec, TensorId tensor, uint64_t first, absl::Span<float> out);

}  // namespace eps

#endif  // EPS_BASE_JOB_INITIAL_VALUES_H_
