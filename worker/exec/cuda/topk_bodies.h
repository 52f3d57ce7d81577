#ifndef EPS_WORKER_EXEC_CUDA_TOPK_BODIES_H_
#define EPS_WORKER_EXEC_CUDA_TOPK_BODIES_H_

// Kernels (grid.h) that write the elements that topk_selection.h chose, in the order in which
// topk_launches.h enqueues them.

#include "worker/exec/cuda/elementwise.h"
#include "worker/exec/cuda/grid.h"
#include "worker/exec/cuda/topk_selection.h"

namespace eps::grid {

// Runs as one block. Replaces each of the parts with the sum of those before it. After the scan of
// chosen elements it sets the number of elements to send; after the scan of the index's words it
// chooses the format and writes the header.
struct ScanBody {
  using Args = TopkStep;
  // The sums of both counts.
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
      // Among equally long formats, the lowest number wins.
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

// Writes the numbers of the chosen elements, ascending, and their bitmap.
struct CollectBody {
  using Args = TopkStep;
  // The keys of the block's elements, and the sum of their counts.
  struct Shared {
    // An extra word for each thread spreads the threads' elements over the memory's banks.
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
        // Zero is never chosen; it equals the threshold only if no ties are to be chosen.
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
  // `before`: the numbers of earlier elements above the threshold and equal to it.
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

// Returns the number of elements between a chosen one and the previous chosen one.
EPS_HOST_DEVICE inline uint32_t GapBefore(const TopkArgs& t, uint32_t rank) {
  return rank == 0 ? t.indexes[0] : t.indexes[rank] - t.indexes[rank - 1] - 1;
}

// Sets parts[block] to the numbers of words that the block's ranks take in delta8 and in delta16.
struct CountWordsBody {
  using Args = TopkStep;
  // The sums of both counts.
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

// Writes the index and the values, and removes the sent elements from the residual.
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
