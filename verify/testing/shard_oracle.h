#ifndef EPS_VERIFY_TESTING_SHARD_ORACLE_H_
#define EPS_VERIFY_TESTING_SHARD_ORACLE_H_

// For tests only.

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/executor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "compression/codec_table.h"
#include "optimizer/update_request.h"
#include "optimizer/update_rule.h"
#include "storage/state_backend.h"
#include "storage/testing/backend_harness.h"
#include "verify/reference_model.h"
#include "verify/reference_training.h"
#include "worker/relay/relay.h"

namespace eps {

// Computes the state of a single server after each step: folds the contributions of the parts with
// the worker's code, then reduces and applies them with the DRAM backend, using the numbers that
// the lead shard would decide. Weights and gradients pass through the codecs of the production
// table with the production kernels. Starts with the spec's initial values; every gradient must be
// admissible.
class ShardOracle {
 public:
  // Borrows all arguments; they must outlive the oracle.
  ShardOracle(const JobSpec& spec, ReferenceModel* model, BatchSource* batches);

  StepFigures RunStep();

  // Returns the current weights, then the fields of the optimizer's state.
  std::vector<TensorValues> Read();

 private:
  static StageInputs InputsOf(const std::vector<TensorValues>& fetched);
  // Sets what a worker receives of `weights` for both passes.
  void Fetch(const TensorValues& weights);
  void Pass(const Chunk& chunk, uint32_t stage, Axis axis, TensorValues* by_use) const;
  size_t UseOf(uint32_t stage, TensorId tensor) const;
  std::vector<float> Gather(const Chunk& chunk, uint32_t stage, const TensorValues& by_use) const;
  UseGradients RunPart(uint32_t part, LossSum* loss);
  StepScalars Scalars(double lr, double scale) const;
  // Updates every chunk once, in reverse order of parts. Returns the norm of the gradient.
  void SetTrustRatios(std::vector<UpdateRequest>* requests);
  double Update(const std::vector<UseGradients>& parts, const StepScalars& scalars, double scale);
  // Returns the encoded contribution of a part and keeps its residual.
  Bytes Push(const Chunk& chunk, StageId stage, uint32_t part, const UseGradients& gradient);
  // Returns EncodeOptions::count. Call it for the chunks of a tensor in order, each before its
  // Push.
  uint64_t CountOf(const Codec& codec, const Chunk& chunk, StageId stage, uint32_t part,
                   const TensorValues& by_use);
  BackendValue Wait(OpId op);

  const JobSpec& spec_;
  ReferenceModel* const model_;
  BatchSource* const batches_;
  const ChunkMap chunks_;
  const CodecTable codecs_;
  std::vector<TensorValues> fetched_;  // by stage, then use
  std::vector<TensorValues> fetched_for_input_gradient_;
  std::map<std::tuple<uint32_t, StageId, ChunkId>, std::vector<float>> residuals_;
  // Counts for all chunks of a tensor, by its first chunk.
  std::map<std::tuple<uint32_t, StageId, ChunkId>, std::vector<uint64_t>> counts_;
  ThreadPool threads_{2};
  MemoryAccount account_;
  Completions completions_;
  uint64_t step_ = 0;
  double last_norm_ = 0;
  std::unique_ptr<StateBackend> backend_;
};

}  // namespace eps

#endif  // EPS_VERIFY_TESTING_SHARD_ORACLE_H_
