#ifndef EPS_WORKER_EXEC_CUDA_LOSS_BODIES_H_
#define EPS_WORKER_EXEC_CUDA_LOSS_BODIES_H_

// The kernel (grid.h) of the cross entropy and its gradient, with a thread block per row, and its
// launch. Its bits depend on the values of a row alone: thread t adds elements t, t + 256, ... in
// that order, and a fixed tree adds the threads' sums.
//
// With u = 2^-24, the logarithm of a probability p over V classes has an error of at most
// u (4 |ln p| + ln V + 13): the roundings of score - maximum have a relative effect of at most
// u ln V on the sum, ExpOne of 2.1u, CompensatedSum of 2u, the tree of 8u; LogOne adds 3u ln(sum),
// the two differences at most u |ln p| each, and |ln p| >= ln(sum). Denormal scores and differences
// change no bit, whether or not they are flushed: their exponential is 1, and if the label has one,
// ln(sum) >= ln 2. `Element` is float, or uint16_t for bfloat16.

#include <cstdint>

#include "worker/exec/cuda/elementwise.h"
#include "worker/exec/cuda/grid.h"
#include "worker/exec/cuda/kernels.h"
#include "worker/exec/cuda/loss_arithmetic.h"

namespace eps::grid {

// Returns the larger, or NaN if one is NaN.
EPS_HOST_DEVICE inline float LargerOrNan(float a, float b) { return b > a || b != b ? b : a; }

// Turns a row of logits into the gradient by them.
template <class Element>
struct LossBody {
  // The arguments of a launch: logits [blocks, vocab].
  struct Args {
    Element* logits;
    const int32_t* labels;
    uint64_t vocab;
    float scale;
    float* label_log_p;
  };
  static constexpr uint32_t kRun = 16;
  static_assert(kRun * kRun == kThreads);
  // Values of the threads; the maxima and sums of 16 threads each; the label's score.
  struct Shared {
    float values[kThreads];
    float maxima[kRun];
    float sums[kRun];
    float label_score;
  };
  static constexpr int kPhases = 5;

  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t block,
                                  uint32_t thread) {
    const int32_t label = args.labels[block];
    Element* const row = args.logits + block * args.vocab;
    if (label == EPS_CUDA_IGNORE_LABEL) {
      if (phase > 0) return;
      if (thread == 0) args.label_log_p[block] = 0;
      Fill(args, 0, row, thread);
    } else if (phase == 0) {
      FindMaximum(args, row, label, shared, thread);
    } else if (phase == 1) {
      if (thread < kRun) shared->maxima[thread] = Maximum(shared->values + thread * kRun);
    } else if (phase == 2) {
      shared->values[thread] = SumOf(args, row, Maximum(shared->maxima), thread);
    } else if (phase == 3) {
      if (thread < kRun) shared->sums[thread] = TreeSum(shared->values + thread * kRun);
    } else {
      const float maximum = Maximum(shared->maxima);
      // Infinity - infinity is NaN, so the loss is NaN without a finite maximum.
      const bool valid =
          maximum - maximum == 0 && label >= 0 && static_cast<uint64_t>(label) < args.vocab;
      const float nan = elementwise::FloatOf(0x7fc00000u);
      const float sum = TreeSum(shared->sums);
      if (thread == 0) {
        args.label_log_p[block] =
            valid ? shared->label_score - maximum - loss_arithmetic::LogOne(sum) : nan;
      }
      if (valid) {
        WriteGradient(args, maximum, 1.0f / sum, static_cast<uint32_t>(label), row, thread);
      } else {
        Fill(args, nan, row, thread);
      }
    }
  }

 private:
  EPS_HOST_DEVICE static void Fill(const Args& args, float value, Element* row, uint32_t thread) {
    for (uint64_t i = thread; i < args.vocab; i += kThreads) elementwise::Store(value, row + i);
  }

  EPS_HOST_DEVICE static float Maximum(const float* values) {
    float maximum = values[0];
    for (uint32_t i = 1; i < kRun; ++i) maximum = LargerOrNan(maximum, values[i]);
    return maximum;
  }

  // Adds values as a binary tree: each takes part in four additions.
  EPS_HOST_DEVICE static float TreeSum(const float* values) {
    float sums[kRun];
    for (uint32_t i = 0; i < kRun; ++i) sums[i] = values[i];
    for (uint32_t half = kRun / 2; half > 0; half /= 2) {
      for (uint32_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
    }
    return sums[0];
  }

  EPS_HOST_DEVICE static void FindMaximum(const Args& args, const Element* row, int32_t label,
                                          Shared* shared, uint32_t thread) {
    float maximum = -elementwise::FloatOf(0x7f800000u);
    for (uint64_t i = thread; i < args.vocab; i += kThreads) {
      maximum = LargerOrNan(maximum, elementwise::Load(row + i));
    }
    shared->values[thread] = maximum;
    if (thread == 0 && label >= 0 && static_cast<uint64_t>(label) < args.vocab) {
      shared->label_score = elementwise::Load(row + label);
    }
  }

  // Returns the sum of e^(score - maximum) over this thread's elements.
  EPS_HOST_DEVICE static float SumOf(const Args& args, const Element* row, float maximum,
                                     uint32_t thread) {
    loss_arithmetic::CompensatedSum sum;
    if (maximum - maximum != 0) return 0;  // not finite
    for (uint64_t i = thread; i < args.vocab; i += kThreads) {
      sum.Add(loss_arithmetic::ExpOne(elementwise::Load(row + i) - maximum));
    }
    return sum.Get();
  }

  EPS_HOST_DEVICE static void WriteGradient(const Args& args, float maximum, float one_by_sum,
                                            uint32_t label, Element* row, uint32_t thread) {
    for (uint64_t i = thread; i < args.vocab; i += kThreads) {
      const float exp = loss_arithmetic::ExpOne(elementwise::Load(row + i) - maximum);
      float share = elementwise::FlushedFloat(exp * one_by_sum);
      if (i == label) share = share - 1.0f;
      elementwise::Store(elementwise::FlushedFloat(share * args.scale), row + i);
    }
  }
};

// Returns kInvalidValue for no classes or more rows than a grid has blocks.
template <class Launcher>
int LaunchLoss(int elements, void* logits, const int32_t* labels, uint64_t rows, uint64_t vocab,
               float scale, float* label_log_p, Launcher& launcher) {
  if (vocab == 0 || rows > 0x7fffffffu) return kInvalidValue;
  const uint32_t blocks = static_cast<uint32_t>(rows);
  if (elements == EPS_CUDA_FP32) {
    if (rows == 0) return 0;
    return launcher.template Run<LossBody<float>>(
        blocks, {static_cast<float*>(logits), labels, vocab, scale, label_log_p});
  }
  if (elements == EPS_CUDA_BF16) {
    if (rows == 0) return 0;
    return launcher.template Run<LossBody<uint16_t>>(
        blocks, {static_cast<uint16_t*>(logits), labels, vocab, scale, label_log_p});
  }
  return kInvalidValue;
}

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_LOSS_BODIES_H_
