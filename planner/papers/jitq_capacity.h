#ifndef EPS_PLANNER_PAPERS_JITQ_CAPACITY_H_
#define EPS_PLANNER_PAPERS_JITQ_CAPACITY_H_

// Just-in-time quantization of weights (JIT-Q): the memory that it saves, the throughput that it
// costs, and whether a quantizer keeps pace with the device. Pure functions. "Per parameter" means
// the bytes of one parameter.

#include <cstdint>
#include <vector>

#include "planner/units.h"

namespace eps::planner {

// A shared-microexponent format (JIT-Q section 2.2): blocks of 16 elements share one exponent, and
// each pair of elements shares one bit.
inline constexpr int kMxBlock = 16;
inline constexpr int kMxExponentBits = 8;
inline constexpr int kMxPair = 2;
// An MX format of the paper.
struct MxFormat {
  const char* name;   // the name that FindCodec accepts
  int mantissa_bits;  // per element, without its sign

  // 9, 6 or 4 bits: the sign, the mantissa, and the shares of the block's exponent and of the
  // pair's bit.
  constexpr double bits_per_element() const {
    return 1 + mantissa_bits + double{kMxExponentBits} / kMxBlock + 1.0 / kMxPair;
  }
  constexpr Bytes bytes_per_element() const { return Bytes(bits_per_element() / 8); }
};
inline constexpr MxFormat kMx4{"mx4", 2};
inline constexpr MxFormat kMx6{"mx6", 4};
inline constexpr MxFormat kMx9{"mx9", 7};

// The memory that one parameter occupies where just-in-time quantization saves copies.
struct ParameterMemory {
  Bytes resident;     // always resident: master weight, optimizer state, gradient
  Bytes activations;  // everything else that is not weights, divided by the number of parameters
  Bytes copy;         // one low-precision copy of the weight
  int copies = 2;     // one for each axis that a pass contracts over
  double kept_share = 0;  // k / L: share of the blocks that keep their copies for a while
};
// Returns the share of the memory that is saved without the copies: c b (1 - k/L) /
// (base + c b + A) (JIT-Q section 5.1.3, "Memory Capacity Savings"; the closed form is ours).
double CapacitySaving(const ParameterMemory& memory);
// Returns the `activations` for which CapacitySaving returns `saving`. REQUIRES saving > 0.
Bytes ActivationsForSaving(const ParameterMemory& memory, double saving);

// Returns the share of throughput that training loses while commands of the quantizer occupy some
// of the device's compute units: kappa min(1, rho). rho = T_quantize / T_compute is the share of
// the time in which both run (JIT-Q section 5.1.3, "Training Throughput Loss"; the closed form is
// ours), and kappa is the loss during that time.
double ThroughputLoss(double kappa, double rho);
// Returns the kappa for which ThroughputLoss returns `loss`. REQUIRES rho > 0.
double KappaOf(double loss, double rho);
// Returns the loss of work that is entirely compute-bound if `taken` of `units` compute units are
// occupied. It is an upper bound of kappa.
double KappaBound(int taken, int units);

// Simulates one quantizer and one device that process `blocks` equal blocks in order. The quantizer
// may be `look_ahead` blocks ahead of the device: it starts block i once the device has started
// block i - look_ahead, because the copies of earlier blocks are then free (JIT-Q figure 7).
// Returns the time that the device waits per block, averaged over the second half, when the initial
// lead is used up. REQUIRES look_ahead >= 1 and blocks >= 2.
Seconds SustainedStall(Seconds quantize, Seconds compute, int look_ahead, int blocks);

// A model and how it is partitioned over devices (JIT-Q table 2).
struct ShardedTransformer {
  const char* name;
  int layers;
  double hidden;
  double heads;
  double sequence;
  double batch;  // sequences in one pass
  double tensor_parallel;
  double pipeline_parallel;

  constexpr double parameters() const { return layers * block_parameters(); }  // 12 L H^2
  constexpr double block_parameters() const { return 12 * hidden * hidden; }
};

// `count` products of an M x K and a K x N matrix.
struct Gemm {
  double m;
  double n;
  double k;
  double count;
};
// Returns the matrix products of one device in one block's forward pass: the projections of
// attention, its scores and weighted sums (over all pairs of positions), and the two products of
// the perceptron, whose width is 4 H.
std::vector<Gemm> BlockGemms(const ShardedTransformer& shape);

// The device in the GPU performance model of the paper.
struct MatrixDevice {
  FlopsPerSecond peak;  // peak in the format of the products
  BytesPerSecond memory;
};
// Returns the sum over the products of a block of max(2 M N K / peak, bytes of both inputs / (0.9
// memory)). Element-wise work and results are free (JIT-Q section 5.1.1, "GPU Performance Model").
// In that model the products of a backward pass take the same time, because the gradients of
// weights and of inputs run concurrently at no extra cost.
Seconds BlockComputeTime(const ShardedTransformer& shape, const MatrixDevice& device,
                         Bytes bytes_per_element);

// Returns the bytes that one of `shards` devices receives when each sends its part of `elements` to
// all others: (n - 1) / n of the elements. A shard is quantized before it is sent (JIT-Q section 6,
// "Master Weights Sharding").
Bytes GatheredBytes(double elements, Bytes bytes_per_element, int shards);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_JITQ_CAPACITY_H_
