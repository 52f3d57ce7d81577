#ifndef EPS_PLANNER_WORKLOAD_H_
#define EPS_PLANNER_WORKLOAD_H_

// What a job asks of any machine: bytes and operations per stage and step, counted from its spec
// with the same chunk map, codecs and legality as the program's. No hardware here.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/units.h"
#include "base/job/job_spec.h"

namespace eps::planner {

// One stage in one step. "A part" is its micro_batches micro-batches, which one worker computes.
struct StageWork {
  std::string name;
  uint64_t elements = 0;  // parameters that it uses, shared ones included
  uint32_t chunks = 0;    // that they come and go in
  // Encoded weights that one worker fetches before its forward and its backward pass. The last
  // stage goes from one into the other and fetches once (fetch_backward then has the second
  // copies of quantization.backward_weights=both_axes alone).
  Bytes fetch_forward;
  Bytes fetch_backward;
  Bytes push;  // encoded gradients of one part
  // What they left out, of one part: to the worker and back in every step, if it waits at the
  // servers (quantization.residual_home).
  Bytes residual;
  Flops forward;   // of one part
  Flops backward;  // of one part: twice `forward`, and the recomputation where there is one
  // FP32, of one part, where every matrix is kept; as often as its operations are done.
  Bytes forward_activations;
  Bytes backward_activations;
  Bytes stash;  // the stage's encoded input, of one part; 0 for the first stage

  // Chunks of a fetch of so many bytes of weights, and of what was left out of so many parts.
  double chunks_of(Bytes weights, double parts) const {
    return chunks * ((weights > Bytes(0) ? 1 : 0) + (residual > Bytes(0) ? parts : 0));
  }
};

struct Workload {
  std::vector<StageWork> stages;  // in relay order
  uint64_t parameters = 0;        // each shared tensor once
  uint32_t parts = 1;
  uint32_t micro_batches = 1;  // of a part
  uint64_t tokens = 0;         // of a step, all parts
  bool sealed = false;         // updates wait for the decision at the end of the step
  Bytes state_per_parameter;   // FP32 master weight and the optimizer's fields: 12 B for AdamW
  Flops model_flops;           // of a step without recomputation, as MFU counts them

  // Sums over the stages.
  Bytes fetched_by_worker() const;  // weights, however many parts it hosts
  Bytes pushed_of_part() const;     // gradients
  Bytes residual_of_part() const;   // each way
  // The chunks of these: weights and, of each part, what waits at the servers; gradients.
  double fetched_chunks(uint32_t parts) const;
  double pushed_chunks_of_part() const;
};

// Forward operations of a GPT-2 block for one sequence of S tokens, width E, inner width I:
// 4 S E I + 8 S E^2 + 4 S^2 E; of the head, 2 S E V (NNTile section 4).
Flops BlockForwardFlops(double tokens, double width, double inner);
Flops HeadForwardFlops(double tokens, double width, double vocabulary);

// What the forward pass of a GPT-2 block keeps for its backward pass in FP32, of one sequence: 17
// matrices of the width, and 2.5 values for each head and two positions: 34 and 5 heads / width
// times the sequence in bytes at two bytes an element (Korthikanti et al., "Reducing Activation
// Recomputation in Large Transformer Models", 2022, equation 2). Of the head: logits, their softmax
// and gradient.
Bytes BlockActivations(double tokens, double width, double heads);
Bytes HeadActivations(double tokens, double vocabulary);

// Bytes of a step over the network, all workers together: weights, gradients, and residuals, which
// come and go on top of both.
Bytes FetchedBytes(const Workload& work, uint32_t workers);
Bytes PushedBytes(const Workload& work);
Bytes ResidualBytes(const Workload& work);

// InvalidArgument if a codec of the spec is unknown. REQUIRES spec.Validate().ok().
absl::StatusOr<Workload> WorkloadOf(const JobSpec& spec);

}  // namespace eps::planner

#endif  // EPS_PLANNER_WORKLOAD_H_
