#ifndef EPS_WORKER_MODELS_ATTENTION_ATTENTION_H_
#define EPS_WORKER_MODELS_ATTENTION_ATTENTION_H_

// The causal attention of a transformer block, and its derivative without an autograd graph. Has
// the bits of LibTorch's functions under autograd. Throws what LibTorch throws; call it without
// autograd.

#include <functional>

#include "ATen/core/Tensor.h"

namespace eps {

// Queries, keys and values, or their gradients: [samples, heads, tokens, head size] each, of one
// type (FP32, BF16 or FP16), with any strides.
struct AttentionThirds {
  at::Tensor q, k, v;
};

// Returns the product of FP32 [samples, heads, tokens, tokens] and a dropout mask, in memory of its
// own. All calls for one attention use the same mask.
using AttentionDrop = std::function<at::Tensor(const at::Tensor& x)>;

// How an attention is computed.
enum class AttentionKernel {
  kFlash,       // by LibTorch's flash attention and its derivative
  kGraph,       // by another kernel of LibTorch; only this way keeps an autograd graph
  kWrittenOut,  // product by product, with dropout
};

// The output of an attention, and its derivative.
struct Attended {
  at::Tensor out;  // as q
  AttentionKernel kernel = AttentionKernel::kFlash;
  // Returns the gradients of q, k and v from that of `out`; call it once, with the `drop` of
  // Attend. Holds what it needs: q, k, v, the mask of seen tokens and, by kernel, `out` with one
  // number for each of its rows, a graph, or the FP32 probabilities before dropout.
  std::function<AttentionThirds(const at::Tensor& dout, const AttentionDrop& drop)> backward;
};

// Computes an attention. `seen` is a bool mask [samples, 1, tokens, tokens]: whether the token of a
// row sees the one of a column; each sees itself. If it is undefined, a token sees itself and the
// earlier ones.
//
// Without `drop` (nullptr), this is scaled_dot_product_attention by the kernel that LibTorch
// chooses for a pass with a derivative. A CPU takes flash if the elements of a head are adjacent, a
// GPU in 16 bits without `seen`. On a GPU the head size must be a multiple of 8, too: LibTorch pads
// other ones, which keep a graph here, as all other choices do.
//
// With `drop`, the order of operations is
//   scores = FP32(matmul(q, k^T)) * float(1 / sqrt(head size)), -infinity where nothing is seen
//   out = matmul(round(drop(softmax(scores))), v)
// where `round` gives the type of q. The derivative rounds where autograd does: the products have
// the type of q, and all between them is FP32.
Attended Attend(const AttentionThirds& x, const at::Tensor& seen, const AttentionDrop& drop);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_ATTENTION_ATTENTION_H_
