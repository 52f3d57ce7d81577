#include "compression/codecs/topk/selection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "compression/codecs/topk/kernels.h"

namespace eps::topk {
namespace {

using topk_kernels::CollectAtLeast;
using topk_kernels::kCollectSlack;
using topk_kernels::KeyOfBits;

uint32_t KeyAt(const float* x, size_t i) {
  uint32_t bits;
  std::memcpy(&bits, x + i, sizeof(bits));
  return KeyOfBits(bits);
}

uint32_t* Words(Buffer* buffer) { return reinterpret_cast<uint32_t*>(buffer->data()); }

Buffer IndexBuffer(size_t count, MemoryAccount* account) {
  return Buffer((count + kCollectSlack) * sizeof(uint32_t), MemoryKind::kScratch, account);
}

// A key and its rank.
struct Threshold {
  uint32_t key = 0;
  size_t above = 0;  // number of larger keys
};

// Returns the key of rank `rank` from the top (from 1) among those that for_each_key(visit) shows.
// Radix selection with digits of 11, 10 and 10 bits, so for_each_key must show the same keys three
// times. REQUIRES at least `rank` keys.
template <class ForEachKey>
Threshold KeyOfRankAmong(ForEachKey for_each_key, size_t rank) {
  EPS_DCHECK(1 <= rank);
  struct Digit {
    int shift;
    uint32_t mask;
  };
  constexpr Digit kDigits[] = {{20, 0x7ff}, {10, 0x3ff}, {0, 0x3ff}};
  Threshold threshold;
  uint32_t known = 0;  // mask of the digits found so far
  for (const Digit& digit : kDigits) {
    std::array<uint64_t, 2048> counts{};
    for_each_key([&](uint32_t key) {
      if ((key & known) == threshold.key) ++counts[key >> digit.shift & digit.mask];
    });
    uint32_t value = digit.mask;
    while (threshold.above + counts[value] < rank) threshold.above += counts[value--];
    threshold.key |= value << digit.shift;
    known |= digit.mask << digit.shift;
  }
  return threshold;
}

// The same for key_at(0) … key_at(n - 1). REQUIRES 1 <= rank <= n.
template <class KeyFunction>
Threshold KeyOfRank(KeyFunction key_at, size_t n, size_t rank) {
  EPS_DCHECK(rank <= n);
  return KeyOfRankAmong(
      [&](const auto& visit) {
        for (size_t i = 0; i < n; ++i) visit(key_at(i));
      },
      rank);
}

// Keeps the k elements of largest key among the `count` listed and returns how many remain. `keys`
// are their keys, none of them 0.
size_t KeepLargest(uint32_t* indexes, const uint32_t* keys, size_t count, size_t k) {
  if (count <= k) return count;
  const Threshold threshold = KeyOfRank([keys](size_t i) { return keys[i]; }, count, k);
  size_t equals = k - threshold.above;  // equal keys to keep, lower indexes first
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool equal = keys[i] == threshold.key && equals > 0;
    indexes[kept] = indexes[i];
    kept += keys[i] > threshold.key || equal;
    equals -= equal;
  }
  return kept;
}

// Selects without a guess: counts the keys of all elements, digit by digit.
Selection SelectByCounting(const float* x, size_t n, size_t k, MemoryAccount* account) {
  Selection selection;
  selection.memory = IndexBuffer(k, account);
  uint32_t* const indexes = Words(&selection.memory);
  const Threshold threshold = KeyOfRank([x](size_t i) { return KeyAt(x, i); }, n, k);
  if (threshold.key == 0) {  // fewer than k elements are nonzero
    selection.count = CollectAtLeast(x, n, 1, k, indexes);
    return selection;
  }
  size_t equals = k - threshold.above;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t key = KeyAt(x, i);
    if (key < threshold.key) continue;
    if (key == threshold.key) {
      if (equals == 0) continue;
      --equals;
    }
    indexes[selection.count++] = static_cast<uint32_t>(i);
  }
  return selection;
}

// Below this number of elements, guessing costs more than it saves.
constexpr size_t kLeastToGuess = 4096;
// The stride of the sample that guesses a threshold. Odd, so that it covers all columns of usual
// matrices.
constexpr size_t kGuessStride = 61;

// Returns a key that very likely at least k elements reach, but only few more. Sets `expected` to
// an upper estimate of their number.
uint32_t GuessThreshold(const float* x, size_t n, size_t k, MemoryAccount* account,
                        size_t* expected) {
  const size_t sample = (n + kGuessStride - 1) / kGuessStride;
  Buffer memory(sample * sizeof(uint32_t), MemoryKind::kScratch, account);
  uint32_t* const keys = Words(&memory);
  for (size_t i = 0; i < sample; ++i) keys[i] = KeyAt(x, i * kGuessStride);
  // The number of the k largest that fall into a sample varies by the square root of its mean.
  const double mean = static_cast<double>(k) / kGuessStride;
  const size_t rank = static_cast<size_t>(mean + 4 * std::sqrt(mean)) + 6;
  *expected = std::min(n, (rank + rank / 4) * kGuessStride);
  if (rank >= sample) return 1;
  return std::max(1u, KeyOfRank([keys](size_t i) { return keys[i]; }, sample, rank).key);
}

}  // namespace

// One pass collects the elements above a guessed threshold, and the exact selection runs among
// these few. If the guess is wrong, counting gives the same result more slowly.
Selection SelectLargest(const float* x, size_t n, size_t k, MemoryAccount* account) {
  if (k == 0) return Selection();
  if (n < kLeastToGuess) return SelectByCounting(x, n, k, account);
  size_t expected = 0;
  const uint32_t guess = GuessThreshold(x, n, k, account, &expected);
  Selection selection;
  selection.memory = IndexBuffer(expected, account);
  uint32_t* const indexes = Words(&selection.memory);
  selection.count = CollectAtLeast(x, n, guess, expected, indexes);
  const bool too_many = selection.count == expected && expected < n;
  const bool too_few = selection.count < k && guess > 1;
  if (too_many || too_few) return SelectByCounting(x, n, k, account);
  if (selection.count <= k) return selection;
  Buffer memory(selection.count * sizeof(uint32_t), MemoryKind::kScratch, account);
  uint32_t* const keys = Words(&memory);
  for (size_t i = 0; i < selection.count; ++i) keys[i] = KeyAt(x, indexes[i]);
  selection.count = KeepLargest(indexes, keys, selection.count, k);
  return selection;
}

std::vector<uint64_t> CountLargest(const std::vector<uint64_t>& sizes, uint64_t k,
                                   const std::function<const float*(size_t)>& array) {
  std::vector<uint64_t> counts(sizes.size(), 0);
  if (k == 0) return counts;
  const Threshold threshold = KeyOfRankAmong(
      [&](const auto& visit) {
        for (size_t a = 0; a < sizes.size(); ++a) {
          const float* const x = array(a);
          for (uint64_t i = 0; i < sizes[a]; ++i) visit(KeyAt(x, i));
        }
      },
      k);
  uint64_t equals = threshold.key == 0 ? 0 : k - threshold.above;  // lower indexes first
  for (size_t a = 0; a < sizes.size(); ++a) {
    const float* const x = array(a);
    uint64_t equals_here = 0;
    for (uint64_t i = 0; i < sizes[a]; ++i) {
      const uint32_t key = KeyAt(x, i);
      counts[a] += key > threshold.key;
      equals_here += key == threshold.key;
    }
    equals_here = std::min(equals_here, equals);
    counts[a] += equals_here;
    equals -= equals_here;
  }
  return counts;
}

Selection SelectSampled(const float* x, size_t n, size_t sample_rank, size_t limit,
                        MemoryAccount* account) {
  const size_t sample = (n + kSampleStride - 1) / kSampleStride;
  Buffer memory(sample * sizeof(uint32_t), MemoryKind::kScratch, account);
  uint32_t* const keys = Words(&memory);
  for (size_t i = 0; i < sample; ++i) keys[i] = KeyAt(x, i * kSampleStride);
  const Threshold threshold = KeyOfRank([keys](size_t i) { return keys[i]; }, sample, sample_rank);
  Selection selection;
  selection.memory = IndexBuffer(limit, account);
  selection.count =
      CollectAtLeast(x, n, std::max(1u, threshold.key), limit, Words(&selection.memory));
  return selection;
}

}  // namespace eps::topk
