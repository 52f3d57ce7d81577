#ifndef EPS_VERIFY_SHARD_ORACLE_H_
#define EPS_VERIFY_SHARD_ORACLE_H_

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
#include "worker/relay/relay.h"

namespace eps {

// What one server would have after each step: the contributions of the parts are folded with the
// code of a worker and reduced and applied by the DRAM backend, with the numbers that the lead
// shard would decide. Starts with the spec's initial values. The fp32 codec only.
class ShardOracle {
 public:
  // All borrowed; they outlive it.
  ShardOracle(const JobSpec& spec, ReferenceModel* model, BatchSource* batches);

  StepFigures RunStep();

  // Weights, then the fields of the optimizer's state, as they are now.
  std::vector<TensorValues> Read();

 private:
  UseGradients RunPart(uint32_t part, const StageInputs& inputs, LossSum* loss);
  StepScalars Scalars(double lr, double scale) const;
  // One update of every chunk, the last part's contribution first. Returns the gradient's norm.
  double Update(const std::vector<UseGradients>& parts, const StepScalars& scalars, double scale);
  Bytes Encoded(const Chunk& chunk, StageId stage, const UseGradients& gradient) const;
  BackendValue Wait(OpId op);

  const JobSpec& spec_;
  ReferenceModel* const model_;
  BatchSource* const batches_;
  const ChunkMap chunks_;
  ThreadPool threads_{2};
  MemoryAccount account_;
  Completions completions_;
  uint64_t step_ = 0;
  double last_norm_ = 0;
  std::unique_ptr<StateBackend> backend_;
};

}  // namespace eps

#endif  // EPS_VERIFY_SHARD_ORACLE_H_
