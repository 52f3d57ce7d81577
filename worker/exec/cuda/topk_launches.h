#ifndef EPS_WORKER_EXEC_CUDA_TOPK_LAUNCHES_H_
#define EPS_WORKER_EXEC_CUDA_TOPK_LAUNCHES_H_

// Launches the kernels that encode a chunk by top-k on a launcher (grid.h). The results are those
// of the functions with the same names in kernels.h.

#include <cstdint>

#include "worker/exec/cuda/grid.h"
#include "worker/exec/cuda/kernels.h"
#include "worker/exec/cuda/topk_bodies.h"

namespace eps::grid {

// Offsets in bytes of the parts of the scratch memory; each is aligned.
struct TopkScratch {
  uint64_t parts;
  uint64_t indexes;
  uint64_t bitmap;
  uint64_t bytes;
};

inline TopkScratch LayOutTopkScratch(uint64_t n, uint64_t max_count) {
  constexpr uint64_t kAlignment = 256;
  const auto behind = [](uint64_t begin, uint64_t bytes) {
    return begin + DivideUp(bytes, kAlignment) * kAlignment;
  };
  TopkScratch scratch = {};
  scratch.parts = behind(0, sizeof(TopkState));
  scratch.indexes = behind(scratch.parts, DivideUp(n, kSpan) * sizeof(PairOfCounts));
  scratch.bitmap = behind(scratch.indexes, max_count * sizeof(uint32_t));
  scratch.bytes = behind(scratch.bitmap, DivideUp(n, 8));
  return scratch;
}

template <class Launcher>
int LaunchEncodeTopk(const eps_cuda_topk& call, const float* gradient, float* residual_or_null,
                     void* scratch, uint8_t* out, uint64_t* out_bytes, Launcher& launcher) {
  constexpr uint32_t kSampleStride = 64;
  const uint64_t ranked = call.sampled != 0 ? DivideUp(call.n, kSampleStride) : call.n;
  if (call.n == 0 || call.n > uint64_t{1} << 31 || call.rank == 0 || call.rank > ranked ||
      call.max_count == 0 || call.max_count > call.n) {
    return kInvalidValue;
  }
  const TopkScratch place = LayOutTopkScratch(call.n, call.max_count);
  uint8_t* const memory = static_cast<uint8_t*>(scratch);
  TopkStep step = {};
  TopkArgs& t = step.topk;
  t.gradient = gradient;
  t.residual_or_null = residual_or_null;
  t.n = static_cast<uint32_t>(call.n);
  t.stride = call.sampled != 0 ? kSampleStride : 1;
  t.rank = static_cast<uint32_t>(call.rank);
  t.max_count = static_cast<uint32_t>(call.max_count);
  t.sampled = call.sampled != 0;
  t.raw32 = call.raw32 != 0;
  t.state = reinterpret_cast<TopkState*>(memory);
  t.parts = reinterpret_cast<PairOfCounts*>(memory + place.parts);
  t.indexes = reinterpret_cast<uint32_t*>(memory + place.indexes);
  t.bitmap = memory + place.bitmap;
  t.out = out;
  t.out_bytes = out_bytes;

  const uint32_t spans = static_cast<uint32_t>(DivideUp(call.n, kSpan));
  const uint32_t chosen_spans = static_cast<uint32_t>(DivideUp(call.max_count, kSpan));
  const uint32_t bitmap_spans = static_cast<uint32_t>(DivideUp(DivideUp(call.n, 8), kSpan));
  int error = 0;
  if (residual_or_null != nullptr) {
    step.items = BlocksFor(call.n);
    error = launcher.template Run<AddResidualBody>(step.items, step);
  }
  if (error == 0) error = launcher.template Run<PrepareBody>(1, step);
  for (step.step = 0; step.step < kDigits && error == 0; ++step.step) {
    // Each block adds its bins to the shared ones, so use few blocks that each count much.
    const uint64_t blocks = DivideUp(ranked, kSpan);
    step.items = static_cast<uint32_t>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
    error = launcher.template Run<HistogramBody>(step.items, step);
    if (error == 0) error = launcher.template Run<PickDigitBody>(1, step);
  }
  if (error == 0) error = launcher.template Run<CountChosenBody>(spans, step);
  step.step = kScanChosen;
  step.items = spans;
  if (error == 0) error = launcher.template Run<ScanBody>(1, step);
  if (error == 0) error = launcher.template Run<CollectBody>(spans, step);
  if (error == 0 && !t.raw32) error = launcher.template Run<CountWordsBody>(chosen_spans, step);
  step.step = kScanWords;
  step.items = t.raw32 ? 0 : chosen_spans;
  if (error == 0) error = launcher.template Run<ScanBody>(1, step);
  const uint32_t written = chosen_spans > bitmap_spans ? chosen_spans : bitmap_spans;
  if (error == 0) error = launcher.template Run<WriteBody>(written, step);
  return error;
}

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_TOPK_LAUNCHES_H_
