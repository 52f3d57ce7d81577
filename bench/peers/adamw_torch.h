#ifndef EPS_BENCH_PEERS_ADAMW_TORCH_H_
#define EPS_BENCH_PEERS_ADAMW_TORCH_H_

#include <cstddef>
#include <memory>
#include <string>

#include "bench/peers/timing.h"

namespace eps {

// Where torch's kernel finds weights, moments and gradient: in tensors that torch allocated, as
// every program has them that uses torch.optim, or in the memory that our kernel works on, on huge
// pages.
enum class TorchMemory { kTensors, kHugePages };

// One AdamW update of `n` parameters by the project's kernel and by torch's fused one, each on its
// own weights and moments, begun alike, with the same gradient. Step 5 of a run with the defaults
// of torch.optim.AdamW. Thread-compatible.
class AdamWPair {
 public:
  AdamWPair(size_t n, TorchMemory memory);
  ~AdamWPair();

  // Seconds of an update of all parameters in `threads` parts of one thread each.
  double TimeOurs(int threads);
  // The same by at::_fused_adamw_ on `threads` threads of torch. `clips` scales the gradient first,
  // by 1, as torch.nn.utils.clip_grad_norm_ does: our kernel scales it in passing, always.
  double TimeTorch(int threads, bool clips = false);

  // What differs in weights or moments by more than rounding can explain, after the same number of
  // updates by both; empty if nothing does.
  std::string Difference() const;
  size_t size() const { return n_; }
  // For a test: an update that one of them made wrong.
  float* our_weights() { return static_cast<float*>(ours_[kWeight].data()); }

 private:
  enum Array { kWeight, kFirst, kSecond, kGradient, kArrays };
  struct Tensors;

  size_t n_;
  PageArray ours_[kArrays];
  std::unique_ptr<Tensors> torchs_;
};

}  // namespace eps

#endif  // EPS_BENCH_PEERS_ADAMW_TORCH_H_
