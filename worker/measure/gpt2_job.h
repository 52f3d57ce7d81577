#ifndef EPS_WORKER_MEASURE_GPT2_JOB_H_
#define EPS_WORKER_MEASURE_GPT2_JOB_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/job/keys.h"
#include "worker/relay/stage_program.h"

namespace eps {

// A GPT-2 without dropout, whose steps are measured.
struct MeasuredShape {
  uint32_t layers = 0;
  uint32_t width = 0;
  uint32_t heads = 0;
  uint32_t vocab = 0;
  uint32_t seq_len = 0;
  uint32_t samples = 0;  // per micro-batch
  Precision precision = Precision::kFp32;
};

// Returns a job of one part that trains it. InvalidArgument for an invalid shape.
absl::StatusOr<JobSpec> MeasuredJob(const MeasuredShape& shape);

// Returns a micro-batch of a job of MeasuredJob, of `samples` samples.
MicroBatch MeasuredBatch(const JobSpec& spec, uint32_t samples);

}  // namespace eps

#endif  // EPS_WORKER_MEASURE_GPT2_JOB_H_
