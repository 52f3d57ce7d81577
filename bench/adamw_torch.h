#ifndef EPS_BENCH_ADAMW_TORCH_H_
#define EPS_BENCH_ADAMW_TORCH_H_

#include <cstddef>
#include <string>

#include "bench/timing.h"

namespace eps {

// One AdamW update of `n` parameters by the project's kernel and by torch's fused one, each on its
// own weights and moments, begun alike; both read the same gradient. Step 5 of a run with the
// defaults of torch.optim.AdamW. Thread-compatible.
class AdamWPair {
 public:
  explicit AdamWPair(size_t n);

  // Seconds of an update of all parameters in `threads` parts of one thread each.
  double TimeOurs(int threads);
  // The same by at::_fused_adamw_ on `threads` threads of torch.
  double TimeTorch(int threads);

  // What differs in weights or moments by more than rounding can explain, after the same number of
  // updates by both; empty if nothing does.
  std::string Difference() const;
  size_t size() const { return n_; }
  // For a test: an update that one of them made wrong.
  float* our_weights() { return static_cast<float*>(ours_[0].data()); }

 private:
  size_t n_;
  PageArray grad_;
  PageArray ours_[3];  // weights, first and second moments
  PageArray torchs_[3];
};

}  // namespace eps

#endif  // EPS_BENCH_ADAMW_TORCH_H_
