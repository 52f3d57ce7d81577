#ifndef EPS_VERIFY_BACKEND_STATE_H_
#define EPS_VERIFY_BACKEND_STATE_H_

// Only for tests.

#include <memory>
#include <vector>

#include "common/executor.h"
#include "common/memory_account.h"
#include "optimizer/update_rule.h"
#include "spec/chunk_map.h"
#include "spec/job_spec.h"
#include "storage/backend_harness.h"
#include "storage/state_backend.h"
#include "verify/reference_model.h"
#include "verify/reference_training.h"

namespace eps {

// A job's state where a shard keeps it, updated as a shard does: what the reference is compared
// with when there is no network. Starts with the spec's initial values. `spec` outlives it.
class BackendState {
 public:
  explicit BackendState(const JobSpec& spec);

  // One update of every chunk from the contributions of all parts, in the fp32 codec, the last part
  // first. Returns the norm of the gradient times norm_scale.
  double Update(const std::vector<UseGradients>& parts, const StepScalars& step, float norm_scale);

  // Weights, exp_avg and exp_avg_sq as they are now.
  std::vector<TensorValues> Read();

 private:
  Bytes Encoded(const Chunk& chunk, StageId stage, const UseGradients& gradient) const;
  BackendValue Wait(OpId op);

  const JobSpec& spec_;
  const ChunkMap chunks_;
  ThreadPool threads_{2};
  MemoryAccount account_;
  Completions completions_;
  uint64_t version_ = 0;
  std::unique_ptr<StateBackend> backend_;
};

}  // namespace eps

#endif  // EPS_VERIFY_BACKEND_STATE_H_
