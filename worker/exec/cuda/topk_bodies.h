#ifndef EPS_WORKER_EXEC_CUDA_TOPK_BODIES_H_
#define EPS_WORKER_EXEC_CUDA_TOPK_BODIES_H_

// Kernels (grid.h) of the top-k codec, in the order in which topk_launches.h enqueues them. What
// is chosen and where it is written follows from counts and their prefix sums alone: no thread's
// speed decides anything.

#include "worker/exec/cuda/elementwise.h"
#include "worker/exec/cuda/grid.h"

namespace eps::grid {

// Elements, or ranks of chosen elements, that one thread block takes care of.
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

// What elements are chosen by: magnitude, all NaN equal and above infinity.
EPS_HOST_DEVICE inline uint32_t KeyOf(float value) {
  const uint32_t magnitude = elementwise::BitsOf(value) & 0x7fffffffu;
  return magnitude < 0x7f800001u ? magnitude : 0x7f800001u;
}

struct PairOfCounts {
  uint32_t a;
  uint32_t b;
};

// What the kernels tell each other; in device memory.
struct TopkState {
  // While the threshold is looked for: its upper bits, and its rank among the keys that have them.
  uint32_t prefix;
  uint32_t rank;
  uint32_t found;
  // Then: chosen are the keys above `above`, and the first `ties` of those equal to it.
  uint32_t above;
  uint32_t ties;
  uint32_t count;   // of chosen elements
  uint32_t format;  // of the index
  uint32_t index_bytes;
  uint32_t bins[kBins];
};

struct TopkArgs {
  const float* gradient;
  float* residual_or_null;
  uint32_t n;
  // The rank is counted among elements 0, stride, 2 * stride, …
  uint32_t stride;
  uint32_t rank;
  uint32_t max_count;
  bool sampled;  // all at least as large as the one of that rank, up to max_count
  bool raw32;
  // Scratch: what TopkScratch lays out.
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

struct TopkStep {
  TopkArgs topk;
  int step;        // the digit, or which scan
  uint32_t items;  // blocks of a grid that steps through elements, or parts to scan
};

// residual += gradient.
struct AddResidualBody {
  using Args = TopkStep;
  struct Shared {};
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

// One block: makes the state ready for the first digit.
struct PrepareBody {
  using Args = TopkStep;
  struct Shared {};
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

// Counts, of the keys that are not zero and have the prefix, those with each value of a digit.
struct HistogramBody {
  using Args = TopkStep;
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

// One block: the digit of the key of that rank, and with the last digit what is chosen.
struct PickDigitBody {
  using Args = TopkStep;
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
      // Fewer keys than the rank are not zero: all of them are chosen. Only the first digit can
      // tell, because a later one's rank is among keys that are there.
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

// parts[block] = of its elements, how many keys are above the threshold, and how many equal to it.
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
  // A key above in the lower half, one that is equal in the upper; neither count exceeds kSpan.
  EPS_HOST_DEVICE static uint32_t CountOf(uint32_t key, uint32_t above) {
    return key > above ? 1u : key == above ? 0x10000u : 0u;
  }
};

constexpr int kScanChosen = 0;
constexpr int kScanWords = 1;

// One block: each of the parts becomes the sum of those before it. Behind the chosen elements, it
// says how many are sent; behind the words of the index, it chooses the format and writes the
// header.
struct ScanBody {
  using Args = TopkStep;
  struct Shared {
    BlockSum a;
    BlockSum b;
  };
  static constexpr int kPhases = 3;
  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t /*block*/,
                                  uint32_t thread) {
    PairOfCounts* const parts = args.topk.parts;
    const uint32_t run = static_cast<uint32_t>(DivideUp(args.items, kThreads));
    const uint32_t begin = run * thread < args.items ? run * thread : args.items;
    const uint32_t end = args.items - begin < run ? args.items : begin + run;
    if (phase == 0) {
      PairOfCounts sum = {0, 0};
      for (uint32_t i = begin; i < end; ++i) {
        sum.a += parts[i].a;
        sum.b += parts[i].b;
      }
      shared->a.counts[thread] = sum.a;
      shared->b.counts[thread] = sum.b;
    } else if (phase == 1) {
      shared->a.AddUp(thread);
      shared->b.AddUp(thread);
    } else {
      PairOfCounts before = {shared->a.Before(thread), shared->b.Before(thread)};
      for (uint32_t i = begin; i < end; ++i) {
        const PairOfCounts part = parts[i];
        parts[i] = before;
        before.a += part.a;
        before.b += part.b;
      }
      if (thread == 0) Finish(args, {shared->a.Total(), shared->b.Total()});
    }
  }

 private:
  EPS_HOST_DEVICE static void Finish(const Args& args, PairOfCounts total) {
    const TopkArgs& t = args.topk;
    if (args.step == kScanChosen) {
      const uint32_t ties = total.b < t.state->ties ? total.b : t.state->ties;
      const uint32_t count = total.a + ties;
      t.state->count = count < t.max_count ? count : t.max_count;
      return;
    }
    const uint32_t count = t.state->count;
    uint32_t format = kRaw32;
    uint32_t bytes = 4 * count;
    if (!t.raw32) {
      format = kDelta8;
      bytes = total.a;
      // Among equals the lowest number.
      if (2 * uint64_t{total.b} < bytes) {
        format = kDelta16;
        bytes = 2 * total.b;
      }
      const uint32_t bitmap = (t.n + 7) / 8;
      if (bitmap < bytes) {
        format = kBitmap;
        bytes = bitmap;
      }
    }
    t.state->format = format;
    t.state->index_bytes = bytes;
    const uint32_t header[] = {count, format, bytes};
    for (uint32_t i = 0; i < kTopkHeader; ++i) {
      t.out[i] = static_cast<uint8_t>(header[i / 4] >> (8 * (i % 4)) & 255u);
    }
    *t.out_bytes = uint64_t{kTopkHeader} + bytes + 2 * uint64_t{count};
  }
};

// The numbers of the chosen elements, ascending, and the bitmap of them.
struct CollectBody {
  using Args = TopkStep;
  struct Shared {
    // A word more for each thread spreads the threads' elements over the memory's banks.
    uint32_t keys[kSpan + kThreads];
    BlockSum sum;
  };
  static constexpr int kPhases = 4;
  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t block,
                                  uint32_t thread) {
    const TopkArgs& t = args.topk;
    const uint64_t first = uint64_t{block} * kSpan;
    const uint32_t above = t.state->above;
    uint32_t* const keys = shared->keys + thread * (kPerThread + 1);
    if (phase == 0) {
      for (uint32_t j = thread; j < kSpan; j += kThreads) {
        // Zero is never chosen, and counts as a tie only where no tie is.
        shared->keys[j + j / kPerThread] = first + j < t.n ? KeyOf(t.values()[first + j]) : 0;
      }
    } else if (phase == 1) {
      uint32_t both = 0;
      for (uint32_t j = 0; j < kPerThread; ++j) both += CountChosenBody::CountOf(keys[j], above);
      shared->sum.counts[thread] = both;
    } else if (phase == 2) {
      shared->sum.AddUp(thread);
    } else {
      const uint32_t both = shared->sum.Before(thread);
      Write(t, first + thread * kPerThread, keys,
            {t.parts[block].a + (both & 0xffffu), t.parts[block].b + (both >> 16)});
    }
  }

 private:
  // `before`: elements before the first of these that are above the threshold, and equal to it.
  EPS_HOST_DEVICE static void Write(const TopkArgs& t, uint64_t first, const uint32_t* keys,
                                    PairOfCounts before) {
    const uint32_t above = t.state->above;
    const uint32_t ties = t.state->ties;
    uint32_t mask = 0;
    for (uint32_t j = 0; j < kPerThread; ++j) {
      const uint32_t position = before.a + (before.b < ties ? before.b : ties);
      const bool tie = keys[j] == above;
      if ((keys[j] > above || (tie && before.b < ties)) && position < t.state->count) {
        t.indexes[position] = static_cast<uint32_t>(first + j);
        mask |= 1u << j;
      }
      before.a += keys[j] > above;
      before.b += tie;
    }
    const uint64_t bytes = (uint64_t{t.n} + 7) / 8;
    for (uint32_t i = 0; i < 2 && first / 8 + i < bytes; ++i) {
      t.bitmap[first / 8 + i] = static_cast<uint8_t>(mask >> (8 * i) & 255u);
    }
  }
};

// Elements between a chosen one and the one before it.
EPS_HOST_DEVICE inline uint32_t GapBefore(const TopkArgs& t, uint32_t rank) {
  return rank == 0 ? t.indexes[0] : t.indexes[rank] - t.indexes[rank - 1] - 1;
}

// parts[block] = words of delta8 and of delta16 for its ranks.
struct CountWordsBody {
  using Args = TopkStep;
  struct Shared {
    BlockSum a;
    BlockSum b;
  };
  static constexpr int kPhases = 3;
  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t block,
                                  uint32_t thread) {
    const TopkArgs& t = args.topk;
    if (phase == 0) {
      PairOfCounts words = {0, 0};
      for (uint32_t j = 0; j < kPerThread; ++j) {
        const uint32_t rank = block * kSpan + j * kThreads + thread;
        if (rank >= t.state->count) continue;
        const uint32_t gap = GapBefore(t, rank);
        words.a += gap / 255 + 1;
        words.b += gap / 65535 + 1;
      }
      shared->a.counts[thread] = words.a;
      shared->b.counts[thread] = words.b;
    } else if (phase == 1) {
      shared->a.AddUp(thread);
      shared->b.AddUp(thread);
    } else if (thread == 0) {
      t.parts[block] = {shared->a.Total(), shared->b.Total()};
    }
  }
};

// The index and the values; takes what is sent out of the residual.
struct WriteBody {
  using Args = TopkStep;
  using Shared = BlockSum;
  static constexpr int kPhases = 3;
  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t block,
                                  uint32_t thread) {
    const TopkArgs& t = args.topk;
    const uint64_t first = uint64_t{block} * kSpan + thread * kPerThread;
    if (phase == 0) {
      uint32_t words = 0;
      for (uint64_t rank = first; rank < first + kPerThread && rank < t.state->count; ++rank) {
        words += WordsOf(t, static_cast<uint32_t>(rank));
      }
      shared->counts[thread] = words;
    } else if (phase == 1) {
      shared->AddUp(thread);
    } else {
      uint64_t word = shared->Before(thread);
      if (t.state->format == kDelta8 || t.state->format == kDelta16) {
        const PairOfCounts part = t.parts[block];
        word += t.state->format == kDelta8 ? part.a : part.b;
      }
      for (uint64_t rank = first; rank < first + kPerThread && rank < t.state->count; ++rank) {
        WriteIndex(t, static_cast<uint32_t>(rank), word);
        word += WordsOf(t, static_cast<uint32_t>(rank));
        WriteValue(t, static_cast<uint32_t>(rank));
      }
      if (t.state->format == kBitmap) CopyBitmap(t, block, thread);
    }
  }

 private:
  EPS_HOST_DEVICE static uint32_t WordsOf(const TopkArgs& t, uint32_t rank) {
    if (t.state->format == kDelta8) return GapBefore(t, rank) / 255 + 1;
    if (t.state->format == kDelta16) return GapBefore(t, rank) / 65535 + 1;
    return 0;
  }

  EPS_HOST_DEVICE static void WriteIndex(const TopkArgs& t, uint32_t rank, uint64_t word) {
    uint8_t* const index = t.out + kTopkHeader;
    if (t.state->format == kRaw32) {
      Put(t.indexes[rank], 4, index + 4 * uint64_t{rank});
    } else if (t.state->format == kDelta8 || t.state->format == kDelta16) {
      const uint32_t width = t.state->format == kDelta8 ? 1 : 2;
      const uint32_t escape = (1u << (8 * width)) - 1;
      uint32_t gap = GapBefore(t, rank);
      for (; gap >= escape; gap -= escape) Put(escape, width, index + width * word++);
      Put(gap, width, index + width * word);
    }
  }

  EPS_HOST_DEVICE static void WriteValue(const TopkArgs& t, uint32_t rank) {
    const uint32_t i = t.indexes[rank];
    const float value = t.values()[i];
    const uint16_t sent = elementwise::EncodeBf16One(value);
    Put(sent, 2, t.out + kTopkHeader + t.state->index_bytes + 2 * uint64_t{rank});
    if (t.residual_or_null == nullptr) return;
    const float minus = -elementwise::DecodeBf16One(sent);
    t.residual_or_null[i] = elementwise::TreeAddOne(value, minus);
  }

  EPS_HOST_DEVICE static void CopyBitmap(const TopkArgs& t, uint32_t block, uint32_t thread) {
    const uint64_t begin = uint64_t{block} * kSpan;
    for (uint64_t i = begin + thread; i < begin + kSpan && i < t.state->index_bytes;
         i += kThreads) {
      t.out[kTopkHeader + i] = t.bitmap[i];
    }
  }

  EPS_HOST_DEVICE static void Put(uint32_t value, uint32_t bytes, uint8_t* to) {
    for (uint32_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(value >> (8 * i) & 255u);
  }
};

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_TOPK_BODIES_H_
