#ifndef EPS_PLANNER_PAPERS_JITQ_CAPACITY_H_
#define EPS_PLANNER_PAPERS_JITQ_CAPACITY_H_

// Just-in-time quantization of weights (JIT-Q): the memory that it saves, the throughput that it
// costs, and whether a quantizer keeps up with what it quantizes for. Pure functions; amounts "per
// parameter" are bytes of one parameter.

#include <cstdint>
#include <vector>

#include "planner/units.h"

namespace eps::planner {

// A shared-microexponent format (JIT-Q section 2.2): blocks of 16 elements with one exponent, and
// one bit for each pair of them.
inline constexpr int kMxBlock = 16;
inline constexpr int kMxExponentBits = 8;
inline constexpr int kMxPair = 2;
struct MxFormat {
  const char* name;   // as FindCodec takes it
  int mantissa_bits;  // of an element, beside its sign

  // 9, 6 and 4 bits: sign, mantissa, and the shares of the block's exponent and of the pair's bit.
  constexpr double bits_per_element() const {
    return 1 + mantissa_bits + double{kMxExponentBits} / kMxBlock + 1.0 / kMxPair;
  }
  constexpr Bytes bytes_per_element() const { return Bytes(bits_per_element() / 8); }
};
inline constexpr MxFormat kMx4{"mx4", 2};
inline constexpr MxFormat kMx6{"mx6", 4};
inline constexpr MxFormat kMx9{"mx9", 7};

// What one parameter occupies in the memory that just-in-time quantization relieves.
struct ParameterMemory {
  Bytes resident;         // in every case: master weight, optimizer's state, gradient
  Bytes activations;      // and whatever else is not weights, spread over the parameters
  Bytes copy;             // one low-precision copy of the weight
  int copies = 2;         // one for each axis that a pass contracts
  double kept_share = 0;  // k / L: blocks that keep their copies for a while, of all blocks
};
// c b (1 - k/L) / (base + c b + A), the share of the memory that goes with the copies (JIT-Q
// section 5.1.3, "Memory Capacity Savings"; the closed form is ours).
double CapacitySaving(const ParameterMemory& memory);
// The `activations` with which CapacitySaving is `saving`. REQUIRES saving > 0.
Bytes ActivationsForSaving(const ParameterMemory& memory, double saving);

// The share of its throughput that training loses because commands of the quantizer take some of
// the device's compute units: kappa min(1, rho), with rho = T_quantize / T_compute the share of the
// time in which both run (JIT-Q section 5.1.3, "Training Throughput Loss"; the closed form is
// ours), and kappa the loss while they do.
double ThroughputLoss(double kappa, double rho);
// The kappa with which ThroughputLoss is `loss`. REQUIRES rho > 0.
double KappaOf(double loss, double rho);
// The loss of work that is bound by compute throughout, if `taken` of `units` are taken: no kappa
// is above it.
double KappaBound(int taken, int units);

// One quantizer and one device work through `blocks` equal blocks in order; the quantizer may be
// `look_ahead` blocks ahead of the device: it starts block i once the device has started block
// i - look_ahead, whose predecessors' copies are gone (JIT-Q figure 7). How long the device waits
// for it per block, averaged over the second half, when what was prepared ahead is used up.
// REQUIRES look_ahead >= 1 and blocks >= 2.
Seconds SustainedStall(Seconds quantize, Seconds compute, int look_ahead, int blocks);

// A model and how it is cut over devices (JIT-Q table 2).
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
// The matrix products of one device in one block's forward pass: attention's projections, its
// scores and sums (of all pairs of positions), and the two of the perceptron, of width 4 H.
std::vector<Gemm> BlockGemms(const ShardedTransformer& shape);

struct MatrixDevice {
  FlopsPerSecond peak;  // in the format of the products
  BytesPerSecond memory;
};
// max(2 M N K / peak, bytes of both inputs / (0.9 memory)), summed over the products of a block;
// element-wise work and results are free (JIT-Q section 5.1.1, "GPU Performance Model"). The
// products of a backward pass take the same time there: gradients of weights and of inputs run
// beside each other at no cost.
Seconds BlockComputeTime(const ShardedTransformer& shape, const MatrixDevice& device,
                         Bytes bytes_per_element);

// What one of `shards` devices receives when each sends its part of `elements` to all: (n - 1) / n
// of them (JIT-Q section 6, "Master Weights Sharding": a shard is quantized before it is sent).
Bytes GatheredBytes(double elements, Bytes bytes_per_element, int shards);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_JITQ_CAPACITY_H_
