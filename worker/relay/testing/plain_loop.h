#ifndef EPS_WORKER_RELAY_TESTING_PLAIN_LOOP_H_
#define EPS_WORKER_RELAY_TESTING_PLAIN_LOOP_H_

// A plain version of the computation of a relay and its servers: one micro-batch after another
// through all stages, every sum along the canonical tree by recursion. A reference for tests; it
// shares no code with the relay or the servers except the stage programs and the addition.

#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/job/job_spec.h"
#include "worker/relay/relay.h"
#include "worker/relay/stage_program.h"

namespace eps {

using Tensors = std::vector<std::vector<float>>;

// Returns the sum of `count` leaves from `first` on, along the canonical tree. Moves the leaves.
template <class Value, class Add>
Value FoldPlainly(std::vector<Value>* leaves, size_t first, size_t count, const Add& add) {
  if (count == 1) return std::move((*leaves)[first]);
  size_t left = 1;
  while (2 * left < count) left *= 2;
  Value a = FoldPlainly(leaves, first, left, add);
  Value b = FoldPlainly(leaves, first + left, count - left, add);
  return add(std::move(a), std::move(b));
}

// The gradients and the loss of one part.
struct PlainPart {
  std::vector<Tensors> gradients;  // by stage, then use
  double loss_sum = 0;
  uint64_t tokens = 0;
};

// Computes the gradient and loss of one part from `weights` (by tensor); a backward pass takes its
// second copies from `second`. Dies if a program returns an error.
PlainPart RunPartPlainly(const JobSpec& spec, const Tensors& weights, const Tensors& second,
                         Step step, PartId part, int loss_scale_log2, StageRuntime* runtime,
                         BatchSource* batches);
// The same for a job without second copies.
PlainPart RunPartPlainly(const JobSpec& spec, const Tensors& weights, Step step, PartId part,
                         int loss_scale_log2, StageRuntime* runtime, BatchSource* batches);

// Returns, by tensor, the sum over all parts, then over the uses in stage order.
Tensors ReducePlainly(const JobSpec& spec, std::vector<PlainPart> parts);

// Returns the spec's initial weights, by tensor.
Tensors InitialWeights(const JobSpec& spec);

}  // namespace eps

#endif  // EPS_WORKER_RELAY_TESTING_PLAIN_LOOP_H_
