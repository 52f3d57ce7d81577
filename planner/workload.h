#ifndef EPS_PLANNER_WORKLOAD_H_
#define EPS_PLANNER_WORKLOAD_H_

// The bytes and operations that a job needs per stage and step, independent of the hardware. They
// are counted from the job's spec with the chunk map and the codecs of the run itself.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/job/keys.h"
#include "planner/units.h"

namespace eps::planner {

// The work of one stage in one step. A part is the group of `micro_batches` micro-batches that one
// worker computes.
struct StageWork {
  std::string name;
  uint64_t elements = 0;  // parameters of the stage, shared ones included
  uint32_t chunks = 0;    // chunks that hold these parameters
  // Encoded weights that one worker fetches before its forward and its backward pass. The last
  // stage runs both passes in a row and fetches once; its fetch_backward then holds only the second
  // copies of quantization.backward_weights=both_axes. A stage whose backward pass needs no weights
  // (StageSpec::backward_needs_weights) fetches none for it.
  Bytes fetch_forward;
  Bytes fetch_backward;
  Bytes push;  // encoded gradients of one part
  // Residuals of one part. If they are kept at the servers (quantization.residual_home), they move
  // to the worker and back in every step.
  Bytes residual;
  Flops forward;   // of one part
  Flops backward;  // of one part: twice `forward`, plus the recomputation, if any
  // Activations of one part in FP32, with every intermediate matrix counted once per execution.
  Bytes forward_activations;
  Bytes backward_activations;
  Bytes stash;  // the encoded input of the stage, of one part; 0 for the first stage

  // Returns the number of chunks that a fetch of `weights` bytes with the residuals of `parts`
  // parts moves.
  double chunks_of(Bytes weights, double parts) const {
    return chunks * ((weights > Bytes(0) ? 1 : 0) + (residual > Bytes(0) ? parts : 0));
  }
};

// The work of all stages and the sums that plans need.
struct Workload {
  std::vector<StageWork> stages;  // in relay order
  uint64_t parameters = 0;        // shared tensors count once
  uint32_t parts = 1;
  uint32_t micro_batches = 1;              // of a part
  uint64_t tokens = 0;                     // of a step, over all parts
  Precision precision = Precision::kFp32;  // in which workers compute
  bool sealed = false;    // updates wait for the commit decision at the end of the step
  bool measures = false;  // updates also wait for norms, for which the state is read once more
  // FP32 master weight and the optimizer's fields: 12 B for AdamW, less if some are frozen.
  Bytes state_per_parameter;
  Flops model_flops;  // of a step, without recomputation, as MFU counts them

  // Sums over the stages.
  Bytes fetched_by_worker() const;  // weights; does not depend on its number of parts
  Bytes pushed_of_part() const;     // gradients of one part
  Bytes residual_of_part() const;   // residuals of one part, in each direction
  // Chunks that these transfers move: weights and the residuals of `parts` parts; gradients.
  double fetched_chunks(uint32_t parts) const;
  double pushed_chunks_of_part() const;
};

// Bytes that one step moves over the network for all workers together. Residuals move in both
// directions, in addition to the weights and the gradients.
Bytes FetchedBytes(const Workload& work, uint32_t workers);
Bytes PushedBytes(const Workload& work);
Bytes ResidualBytes(const Workload& work);

// Counts the work of `spec`. Returns InvalidArgument if one of its codecs is unknown. REQUIRES
// spec.Validate().ok().
absl::StatusOr<Workload> WorkloadOf(const JobSpec& spec);

}  // namespace eps::planner

#endif  // EPS_PLANNER_WORKLOAD_H_
