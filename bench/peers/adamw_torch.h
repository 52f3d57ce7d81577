#ifndef EPS_BENCH_PEERS_ADAMW_TORCH_H_
#define EPS_BENCH_PEERS_ADAMW_TORCH_H_

#include <cstddef>
#include <memory>
#include <string>

#include "bench/peers/timing.h"

namespace eps {

// The memory of torch's kernel: tensors that torch allocated, as in every program that uses
// torch.optim, or huge pages like those of our kernel.
enum class TorchMemory { kTensors, kHugePages };

// One AdamW update of `n` parameters by the project's kernel and by torch's fused kernel, each with
// its own weights and moments, initially equal, and the same gradient. It is step 5 of a run with
// the defaults of torch.optim.AdamW. Thread-compatible.
class AdamWPair {
 public:
  AdamWPair(size_t n, TorchMemory memory);
  ~AdamWPair();

  // Returns the seconds of an update of all parameters, in `threads` parts of one thread each.
  double TimeOurs(int threads);
  // Returns the seconds of the same update by at::_fused_adamw_ on `threads` threads of torch.
  // `clips` scales the gradient by 1 first, as torch.nn.utils.clip_grad_norm_ does; our kernel
  // always scales it during the update.
  double TimeTorch(int threads, bool clips = false);

  // Returns what differs in weights or moments by more than rounding can explain, after equally
  // many updates by both; empty if nothing does.
  std::string Difference() const;
  size_t size() const { return n_; }
  // For tests that simulate a wrong update.
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
