#ifndef EPS_BASE_JOB_DATA_POSITION_H_
#define EPS_BASE_JOB_DATA_POSITION_H_

// Which samples a micro-batch holds: a pure function of (spec, step, micro-batch), so that any
// worker can compute any part and a resume needs no loader state.

#include <cstdint>

#include "base/ids.h"
#include "base/job/job_spec.h"

namespace eps {

// A keyed permutation of [0, n): a balanced Feistel network of 6 rounds over the next even number
// of bits, with cycle walking. O(1) memory, expected O(1) time.
class FeistelPermutation {
 public:
  // REQUIRES n >= 1.
  FeistelPermutation(uint64_t n, uint64_t key);
  uint64_t operator()(uint64_t i) const;  // REQUIRES i < n

 private:
  uint64_t Encrypt(uint64_t x) const;
  uint64_t n_;
  int half_bits_;
  uint64_t key_;
};

// The number of samples: the rows of the data, or of a stream (tokens - 1) / T, at least 1. Sample
// i of a stream covers tokens [i*T, i*T+T]; labels are shifted by one.
uint64_t WholeSamples(const JobSpec& spec);

// The sample at place `slot` of global micro-batch `micro_batch` (= part * g + j) of `step`
// (1-based). Sequential: the running index wraps at WholeSamples. Shuffled: a new permutation,
// keyed by (seed, epoch), for every pass over the data.
uint64_t SampleIndex(const JobSpec& spec, Step step, uint32_t micro_batch, uint32_t slot);

}  // namespace eps

#endif  // EPS_BASE_JOB_DATA_POSITION_H_
