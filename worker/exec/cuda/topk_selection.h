#ifndef EPS_WORKER_EXEC_CUDA_TOPK_SELECTION_H_
#define EPS_WORKER_EXEC_CUDA_TOPK_SELECTION_H_

// Kernels (grid.h) that choose the elements that the top-k codec sends; those of topk_bodies.h
// write them. Only counts and their prefix sums determine which elements are chosen and where they
// are written, so the result does not depend on the speed of any thread.

#include "worker/exec/cuda/elementwise.h"
#include "worker/exec/cuda/grid.h"

namespace eps::grid {

// Elements, or ranks of chosen elements, that one thread block handles.
constexpr uint32_t kSpan = 4096;
constexpr uint32_t kPerThread = kSpan / kThreads;
static_assert(kPerThread == 16, "CollectBody writes two bytes of the bitmap per thread");

// Keys have 31 bits, found in three digits from the top.
constexpr int kDigits = 3;
constexpr uint32_t kBins = 2048;
EPS_HOST_DEVICE constexpr int DigitShift(int digit) {
  return digit == 0 ? 20 : digit == 1 ? 10 : 0;
}
EPS_HOST_DEVICE constexpr uint32_t DigitBits(int digit) { return digit == 0 ? 11 : 10; }

constexpr uint32_t kRaw32 = 0;
constexpr uint32_t kDelta8 = 1;
constexpr uint32_t kDelta16 = 2;
constexpr uint32_t kBitmap = 3;
constexpr uint32_t kTopkHeader = 12;

// Returns the key by which an element is chosen: its magnitude; all NaN are equal and above
// infinity.
EPS_HOST_DEVICE inline uint32_t KeyOf(float value) {
  const uint32_t magnitude = elementwise::BitsOf(value) & 0x7fffffffu;
  return magnitude < 0x7f800001u ? magnitude : 0x7f800001u;
}

// Two counts that are scanned together.
struct PairOfCounts {
  uint32_t a;
  uint32_t b;
};

// The state that the kernels pass to each other, in device memory.
struct TopkState {
  // During the search for the threshold: its upper bits, and its rank among the keys with them.
  uint32_t prefix;
  uint32_t rank;
  uint32_t found;
  // Afterwards: keys above `above` are chosen, and the first `ties` of those equal to it.
  uint32_t above;
  uint32_t ties;
  uint32_t count;   // of chosen elements
  uint32_t format;  // of the index
  uint32_t index_bytes;
  uint32_t bins[kBins];
};

// The arguments of one call, shared by all of its kernels.
struct TopkArgs {
  const float* gradient;
  float* residual_or_null;
  uint32_t n;
  // `rank` counts among elements 0, stride, 2 * stride, …
  uint32_t stride;
  uint32_t rank;
  uint32_t max_count;
  bool sampled;  // choose all that are at least as large as the one of that rank, up to max_count
  bool raw32;
  // Scratch memory, laid out by TopkScratch.
  TopkState* state;
  PairOfCounts* parts;
  uint32_t* indexes;
  uint8_t* bitmap;
  uint8_t* out;
  uint64_t* out_bytes;

  EPS_HOST_DEVICE const float* values() const {
    return residual_or_null != nullptr ? residual_or_null : gradient;
  }
};

// The arguments of one kernel of a call.
struct TopkStep {
  TopkArgs topk;
  int step;        // the digit, or the number of the scan
  uint32_t items;  // blocks of a grid that steps through elements, or parts to scan
};

// Adds the gradient to the residual.
struct AddResidualBody {
  using Args = TopkStep;
  struct Shared {};  // not used
  static constexpr int kPhases = 1;
  EPS_HOST_DEVICE static void Run(int /*phase*/, const Args& args, Shared* /*shared*/,
                                  uint32_t block, uint32_t thread) {
    const TopkArgs& t = args.topk;
    for (uint64_t i = uint64_t{block} * kThreads + thread; i < t.n;
         i += uint64_t{args.items} * kThreads) {
      t.residual_or_null[i] = elementwise::TreeAddOne(t.gradient[i], t.residual_or_null[i]);
    }
  }
};

// Runs as one block. Prepares the state for the first digit.
struct PrepareBody {
  using Args = TopkStep;
  struct Shared {};  // not used
  static constexpr int kPhases = 1;
  EPS_HOST_DEVICE static void Run(int /*phase*/, const Args& args, Shared* /*shared*/,
                                  uint32_t /*block*/, uint32_t thread) {
    TopkState* const state = args.topk.state;
    for (uint32_t i = thread; i < kBins; i += kThreads) state->bins[i] = 0;
    if (thread != 0) return;
    state->prefix = 0;
    state->rank = args.topk.rank;
    state->found = 0;
    state->above = 0;
    state->ties = 0;
  }
};

// Counts keys by the value of a digit, among the keys that are not zero and have the prefix.
struct HistogramBody {
  using Args = TopkStep;
  // The counts of this block.
  struct Shared {
    uint32_t bins[kBins];
  };
  static constexpr int kPhases = 3;
  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t block,
                                  uint32_t thread) {
    const TopkArgs& t = args.topk;
    if (t.state->found != 0) return;
    if (phase == 0) {
      for (uint32_t i = thread; i < kBins; i += kThreads) shared->bins[i] = 0;
    } else if (phase == 1) {
      const int shift = DigitShift(args.step);
      const uint32_t bits = DigitBits(args.step);
      const uint64_t step = uint64_t{args.items} * kThreads * t.stride;
      for (uint64_t i = (uint64_t{block} * kThreads + thread) * t.stride; i < t.n; i += step) {
        const uint32_t key = KeyOf(t.values()[i]);
        if (key == 0 || key >> shift >> bits != t.state->prefix) continue;
        AddTo(&shared->bins[key >> shift & ((1u << bits) - 1)], 1);
      }
    } else {
      for (uint32_t i = thread; i < kBins; i += kThreads) {
        if (shared->bins[i] != 0) AddTo(&t.state->bins[i], shared->bins[i]);
      }
    }
  }
};

// Runs as one block. Finds the digit of the key of that rank and, after the last digit, determines
// the elements to choose.
struct PickDigitBody {
  using Args = TopkStep;
  // The prefix sums of the bins, and the result of the search.
  struct Shared {
    BlockSum sum;
    uint32_t rank;
    uint32_t prefix;
    uint32_t found;
  };
  static constexpr int kPhases = 3;
  // Thread 0 has the highest bins.
  static constexpr uint32_t kRun = kBins / kThreads;

  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t /*block*/,
                                  uint32_t thread) {
    TopkState* const state = args.topk.state;
    const uint32_t highest = kBins - 1 - thread * kRun;
    if (phase == 0) {
      uint32_t sum = 0;
      for (uint32_t i = 0; i < kRun; ++i) sum += state->bins[highest - i];
      shared->sum.counts[thread] = sum;
      if (thread == 0) {
        shared->rank = state->rank;
        shared->prefix = state->prefix;
        shared->found = state->found;
      }
    } else if (phase == 1) {
      shared->sum.AddUp(thread);
    } else {
      if (shared->found == 0) Pick(args, shared, highest, shared->sum.Before(thread), thread);
      for (uint32_t i = 0; i < kRun; ++i) state->bins[highest - i] = 0;
    }
  }

 private:
  EPS_HOST_DEVICE static void Pick(const Args& args, const Shared* shared, uint32_t highest,
                                   uint32_t before, uint32_t thread) {
    TopkState* const state = args.topk.state;
    const uint32_t rank = shared->rank;
    if (rank <= before) return;
    if (rank > before + shared->sum.counts[thread]) {
      // There are fewer nonzero keys than the rank, so all of them are chosen. Only the first digit
      // can detect this, because a later digit's rank is among existing keys.
      if (thread == kThreads - 1) state->found = 1;
      return;
    }
    uint32_t digit = highest;
    for (; before + state->bins[digit] < rank; --digit) before += state->bins[digit];
    const uint32_t prefix = shared->prefix << DigitBits(args.step) | digit;
    state->prefix = prefix;
    state->rank = rank - before;
    if (args.step + 1 < kDigits) return;
    // The key is complete, and not zero.
    state->above = args.topk.sampled ? prefix - 1 : prefix;
    state->ties = args.topk.sampled ? 0 : rank - before;
  }
};

// Sets parts[block] to the numbers of the block's keys above the threshold and equal to it.
struct CountChosenBody {
  using Args = TopkStep;
  using Shared = BlockSum;
  static constexpr int kPhases = 3;
  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t block,
                                  uint32_t thread) {
    const TopkArgs& t = args.topk;
    if (phase == 0) {
      uint32_t both = 0;
      for (uint32_t j = 0; j < kPerThread; ++j) {
        const uint64_t i = uint64_t{block} * kSpan + j * kThreads + thread;
        if (i < t.n) both += CountOf(KeyOf(t.values()[i]), t.state->above);
      }
      shared->counts[thread] = both;
    } else if (phase == 1) {
      shared->AddUp(thread);
    } else if (thread == 0) {
      const uint32_t both = shared->Total();
      t.parts[block] = {both & 0xffffu, both >> 16};
    }
  }
  // Counts a key above in the lower half and an equal one in the upper; neither exceeds kSpan.
  EPS_HOST_DEVICE static uint32_t CountOf(uint32_t key, uint32_t above) {
    return key > above ? 1u : key == above ? 0x10000u : 0u;
  }
};

constexpr int kScanChosen = 0;
constexpr int kScanWords = 1;

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_TOPK_SELECTION_H_
