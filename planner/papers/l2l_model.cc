#include "planner/papers/l2l_model.h"

namespace eps::planner {
namespace {

// A backward pass takes as long as two forward passes and follows one more, the recomputation.
constexpr double kPassesOfTraining = 4;
// Section 2.2.1 moves each layer to the device for its forward and for its backward pass.
constexpr double kTransfersOfTraining = 2;

Seconds ForwardCompute(const RelayStep& step) {
  return step.layers * step.micro_batches * step.compute;
}

PerSecond SamplesPer(const RelayStep& step, Seconds time) {
  return PerSecond(step.micro_batches * step.samples / time.value());
}

}  // namespace

Seconds LayerTransferTime(Bytes layer, BytesPerSecond link) { return layer / link; }
Seconds LayerComputeTime(Flops forward, FlopsPerSecond rate) { return forward / rate; }

Seconds ForwardTime(const RelayStep& step) {
  return ForwardCompute(step) + step.layers * step.transfer;
}

Seconds TrainingTime(const RelayStep& step) {
  return kPassesOfTraining * ForwardCompute(step) +
         kTransfersOfTraining * step.layers * step.transfer + step.host;
}

PerSecond ForwardThroughput(const RelayStep& step) { return SamplesPer(step, ForwardTime(step)); }
PerSecond TrainingThroughput(const RelayStep& step) { return SamplesPer(step, TrainingTime(step)); }

PerSecond TrainingThroughputLimit(const RelayStep& step) {
  return SamplesPer(step, kPassesOfTraining * ForwardCompute(step));
}

double ForwardOverhead(const RelayStep& step) {
  return ForwardTime(step) / ForwardCompute(step) - 1;
}
double TrainingOverhead(const RelayStep& step) {
  return TrainingTime(step) / (kPassesOfTraining * ForwardCompute(step)) - 1;
}

PerSecond PrintedForwardThroughput(const RelayStep& step) {
  return SamplesPer(step, step.layers * (step.compute + step.transfer));
}
PerSecond PrintedTrainingThroughput(const RelayStep& step) {
  return SamplesPer(step, kPassesOfTraining * step.micro_batches * step.compute +
                              kTransfersOfTraining * step.transfer);
}

RelayTransfers WalkRelay(uint64_t layers, bool keep_top) {
  RelayTransfers transfers;
  uint64_t on_device = layers;  // not a valid layer number
  const auto fetch = [&](uint64_t layer) {
    if (on_device != layer) ++transfers.weights;
    on_device = layer;
  };
  for (uint64_t layer = 0; layer < layers; ++layer) fetch(layer);
  if (!keep_top) on_device = layers;
  for (uint64_t layer = layers; layer-- > 0;) {
    fetch(layer);
    ++transfers.gradients;
  }
  return transfers;
}

Bytes LayerInput(uint64_t samples, uint64_t tokens, uint64_t width, Bytes value) {
  return static_cast<double>(samples * tokens * width) * value;
}

Bytes DeviceMemory(const RelayMemory& memory, double layers, double micro_batches) {
  const double stashed = memory.stash == StashHome::kDevice ? layers * micro_batches : 0;
  return memory.base + (stashed + memory.in_flight * (micro_batches - 1)) * memory.layer_input;
}

double HostCapacity(Bytes host, Bytes per_parameter) { return host / per_parameter; }

}  // namespace eps::planner
