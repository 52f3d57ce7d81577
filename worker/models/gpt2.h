#ifndef EPS_WORKER_MODELS_GPT2_H_
#define EPS_WORKER_MODELS_GPT2_H_

// GPT-2 as Hugging Face computes it, one stage at a time. The order of operations is part of the
// result's bits (with the compute profile); a reference that follows it gets the same bits.
// B samples of T tokens, N = B * T rows, d = n_embd, mask(s) = FillDropoutMask of site s with key
// (seed, step, micro-batch, stage), 0-based stage; a probability of 0 skips the multiplication.
// All FP32, denormals flushed. mm/addmm/layer_norm/gelu/sum are LibTorch's functions. W' is W, or
// its copy along the other axis where there is one (docs/quantization.md).
//
// embedding   y = wte[token] + wpe[position]; y = y * mask(0)                           [B, T, d]
//   backward  dy = dy * mask(0); dwte = embedding_dense_backward(dy);
//             dwpe[:T] = sum of dy over samples, the other rows 0
//
// block       h1 = layer_norm(x)
//             q, k, v = thirds of addmm(b, h1, W) as [B, heads, T, d / heads]
//             a = scaled_dot_product_attention(q, k, v, causal) if attn_pdrop = 0, else
//                 softmax(masked(matmul(q, k^T) * float(1 / sqrt(d / heads)))) * mask(0), @ v
//             x2 = x + addmm(b, a, W) * mask(1)
//             f = addmm(b, layer_norm(x2), W); g = gelu(f, "tanh")
//             y = x2 + addmm(b, g, W) * mask(2)
//   backward  recomputes up to g (y itself is not needed), then for y = addmm(b, u, W):
//             db = dy.sum(0); dW = mm(u^T, dy); du = mm(dy, W'^T); the residual is dx2 = dy +
//             (through the MLP), dx = dx2 + (through the attention); layer norm, gelu and
//             attention by LibTorch's own derivatives
//
// head        h = layer_norm(x) for all N rows; then for each block of loss_block_tokens rows, in
//             order: l = log_softmax(mm(h, W^T)); loss = sum of -l[label] in double, row by row;
//             dl = log_softmax's derivative of -2^-k at the label (0 in rows without a label);
//             dW = mm(dl^T, h) for the first block, addmm_(dl^T, h) into it for the others;
//             dh = mm(dl, W'); last, layer norm's derivative for all N rows

#include <memory>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"

namespace eps {

class TorchStage;  // worker/exec/torch_stage.h

// The program of one stage. REQUIRES spec.model.type == kGpt2; `spec` outlives the stage.
// InvalidArgument names a tensor that the stage lacks: a layout that is not GPT-2's.
absl::StatusOr<std::unique_ptr<TorchStage>> NewGpt2Stage(const JobSpec& spec, StageId stage);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_GPT2_H_
