#include "planner/papers/jitq_capacity.h"

#include <algorithm>

#include "base/check.h"

namespace eps::planner {
namespace {

// Reachable share of the memory bandwidth (JIT-Q section 5.1.1)
constexpr double kReachableBandwidth = 0.9;

}  // namespace

double CapacitySaving(const ParameterMemory& memory) {
  const Bytes copies = memory.copies * memory.copy;
  return copies * (1 - memory.kept_share) / (memory.resident + copies + memory.activations);
}

Bytes ActivationsForSaving(const ParameterMemory& memory, double saving) {
  const Bytes copies = memory.copies * memory.copy;
  return copies * (1 - memory.kept_share) / saving - memory.resident - copies;
}

double ThroughputLoss(double kappa, double rho) { return kappa * std::min(1.0, rho); }

double KappaOf(double loss, double rho) { return loss / std::min(1.0, rho); }

double KappaBound(int taken, int units) { return static_cast<double>(taken) / units; }

Seconds SustainedStall(Seconds quantize, Seconds compute, int look_ahead, int blocks) {
  EPS_CHECK(look_ahead >= 1 && blocks >= 2);
  std::vector<Seconds> start(blocks);  // when the device starts block i
  Seconds quantizer_free;
  for (int i = 0; i < blocks; ++i) {
    const Seconds may_start = i < look_ahead ? Seconds() : start[i - look_ahead];
    quantizer_free = Max(quantizer_free, may_start) + quantize;
    const Seconds device_free = i == 0 ? Seconds() : start[i - 1] + compute;
    start[i] = Max(device_free, quantizer_free);
  }
  const int first = (blocks - 1) / 2;
  const int last = blocks - 1;
  return (start[last] - start[first]) / (last - first) - compute;
}

std::vector<Gemm> BlockGemms(const ShardedTransformer& shape) {
  const double tokens = shape.sequence * shape.batch;
  const double width = shape.hidden / shape.tensor_parallel;  // width of all heads on the device
  const double head = shape.hidden / shape.heads;
  const double attentions = shape.batch * shape.heads / shape.tensor_parallel;
  return {
      {tokens, 3 * width, shape.hidden, 1},                // queries, keys and values
      {shape.sequence, shape.sequence, head, attentions},  // scores
      {shape.sequence, head, shape.sequence, attentions},  // sums of values
      {tokens, shape.hidden, width, 1},                    // attention's result
      {tokens, 4 * width, shape.hidden, 1},                // first product of the perceptron
      {tokens, shape.hidden, 4 * width, 1},                // second product of the perceptron
  };
}

Seconds BlockComputeTime(const ShardedTransformer& shape, const MatrixDevice& device,
                         Bytes bytes_per_element) {
  Seconds time;
  for (const Gemm& gemm : BlockGemms(shape)) {
    const Flops work(2 * gemm.m * gemm.n * gemm.k * gemm.count);
    const Bytes inputs = gemm.count * (gemm.m + gemm.n) * gemm.k * bytes_per_element;
    time += Max(work / device.peak, inputs / (kReachableBandwidth * device.memory));
  }
  return time;
}

Bytes GatheredBytes(double elements, Bytes bytes_per_element, int shards) {
  return elements * (shards - 1) / shards * bytes_per_element;
}

}  // namespace eps::planner
