#ifndef EPS_WORKER_DATA_BATCH_SOURCE_H_
#define EPS_WORKER_DATA_BATCH_SOURCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "worker/data/sample_source.h"
#include "worker/relay/evaluation.h"
#include "worker/relay/relay.h"

namespace eps {

// Cuts the micro-batches of `spec` (base/job/data_position.h). Micro-batches of rows that have
// padding end at the longest row, rounded up to a multiple of 8. `data` must outlive the source;
// every source keeps a copy of its spec, because it serves all terms of a job.
std::unique_ptr<BatchSource> NewBatchSource(const JobSpec& spec, const SampleSource& data);
// For models without tokens (synthetic): batches that carry only their identity.
std::unique_ptr<BatchSource> NewEmptyBatchSource(const JobSpec& spec);

// Supplies the first `samples` held-out samples of `data` (0 means all complete ones) in order, in
// micro-batches of the spec's size; the last one may be smaller. `data` must outlive the source.
// InvalidArgument with the figures if the data holds fewer samples, or rows of another length.
absl::StatusOr<std::unique_ptr<EvaluationSource>> NewEvaluationSource(const JobSpec& spec,
                                                                      const SampleSource& data,
                                                                      uint64_t samples);
// For models without tokens: inputs that occur in no training step. REQUIRES samples >= 1.
std::unique_ptr<EvaluationSource> NewEmptyEvaluationSource(const JobSpec& spec, uint64_t samples);

}  // namespace eps

#endif  // EPS_WORKER_DATA_BATCH_SOURCE_H_
