#include "worker/models/attention/attention.h"

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "ATen/SDPBackend.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/_fused_sdp_choice.h"
#include "ATen/ops/_scaled_dot_product_flash_attention.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_backward.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h"
#include "ATen/ops/_softmax_backward_data.h"
#include "ATen/ops/bmm.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/zeros.h"
#include "torch/csrc/autograd/autograd.h"

namespace eps {
namespace {

using at::Tensor;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNoDropout = 0.0;

std::optional<Tensor> OrNone(const Tensor& mask) {
  return mask.defined() ? std::optional<Tensor>(mask) : std::nullopt;
}

// Returns leaves of a graph with the values of `x`.
AttentionThirds Leaves(const AttentionThirds& x) {
  const auto leaf = [](const Tensor& t) { return t.detach().requires_grad_(true); };
  return {leaf(x.q), leaf(x.k), leaf(x.v)};
}

// Returns LibTorch's choice for a pass with a derivative, which some kernels lack.
at::SDPBackend Choice(const AttentionThirds& x, const Tensor& seen) {
  const at::AutoGradMode with_grad(true);
  const AttentionThirds leaves = Leaves(x);
  return static_cast<at::SDPBackend>(at::_fused_sdp_choice(leaves.q, leaves.k, leaves.v,
                                                           OrNone(seen), kNoDropout,
                                                           /*is_causal=*/!seen.defined()));
}

Attended FlashOnCpu(const AttentionThirds& x, const Tensor& seen) {
  const bool is_causal = !seen.defined();
  std::optional<Tensor> added;  // to the scores, as LibTorch does with a bool mask
  if (!is_causal) {
    added = at::zeros(seen.sizes(), x.q.options()).masked_fill_(seen.logical_not(), kMinusInfinity);
  }
  const auto [out, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(x.q, x.k, x.v, kNoDropout, is_causal, added);
  return {out, AttentionKernel::kFlash,
          [x, added, is_causal, out = out, logsumexp = logsumexp](const Tensor& dout,
                                                                  const AttentionDrop& /*drop*/) {
            auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
                dout, x.q, x.k, x.v, out, logsumexp, kNoDropout, is_causal, added);
            return AttentionThirds{dq, dk, dv};
          }};
}

Attended CausalFlashOnGpu(const AttentionThirds& x) {
  const auto kept = at::_scaled_dot_product_flash_attention(x.q, x.k, x.v, kNoDropout,
                                                            /*is_causal=*/true);
  return {std::get<0>(kept), AttentionKernel::kFlash,
          [x, kept](const Tensor& dout, const AttentionDrop& /*drop*/) {
            const auto& [out, logsumexp, ends_q, ends_k, max_q, max_k, seed, offset, unused] = kept;
            auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
                dout, x.q, x.k, x.v, out, logsumexp, ends_q, ends_k, max_q.expect_int(),
                max_k.expect_int(), kNoDropout, /*is_causal=*/true, seed, offset);
            return AttentionThirds{dq, dk, dv};
          }};
}

Attended WithGraph(const AttentionThirds& x, const Tensor& seen) {
  const AttentionThirds leaves = Leaves(x);
  const at::AutoGradMode with_grad(true);
  const Tensor out =
      at::scaled_dot_product_attention(leaves.q, leaves.k, leaves.v, OrNone(seen), kNoDropout,
                                       /*is_causal=*/!seen.defined());
  return {out.detach(), AttentionKernel::kGraph,
          [leaves, out](const Tensor& dout, const AttentionDrop& /*drop*/) {
            const auto grads = torch::autograd::grad({out}, {leaves.q, leaves.k, leaves.v}, {dout});
            return AttentionThirds{grads[0], grads[1], grads[2]};
          }};
}

double ScaleOf(const AttentionThirds& x) {
  return 1.0 / std::sqrt(static_cast<double>(x.q.size(-1)));
}

// Returns whether the token of a row does not see the one of a column.
Tensor Hidden(const Tensor& seen, const Tensor& scores) {
  if (seen.defined()) return seen.logical_not();
  return at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool)).triu(1);
}

// Returns the matrices of all heads as [samples * heads, rows, columns], the form in which
// LibTorch's matmul multiplies them. The layout decides on the bits of products.
Tensor AsBatch(const Tensor& x) { return x.reshape({-1, x.size(-2), x.size(-1)}); }

// `p` are the probabilities before dropout.
AttentionThirds WrittenOutBackward(const AttentionThirds& x, const Tensor& seen, const Tensor& p,
                                   const Tensor& dout, const AttentionDrop& drop) {
  const at::ScalarType type = x.q.scalar_type();
  const Tensor dy = AsBatch(dout);
  const Tensor dv = at::bmm(AsBatch(drop(p).to(type)).transpose(1, 2), dy);
  Tensor ds = at::bmm(dy, AsBatch(x.v).transpose(1, 2)).to(at::kFloat).view(p.sizes());
  ds = drop(ds);
  ds = at::_softmax_backward_data(ds, p, -1, at::kFloat);
  ds = AsBatch(ds.masked_fill_(Hidden(seen, ds), 0).mul_(ScaleOf(x)).to(type));
  const Tensor k_t = x.k.transpose(2, 3);
  const Tensor dq = at::bmm(ds, AsBatch(k_t).transpose(1, 2));
  const Tensor dk_t = at::bmm(AsBatch(x.q).transpose(1, 2), ds);
  return {dq.view(x.q.sizes()), dk_t.view(k_t.sizes()).transpose(2, 3), dv.view(x.v.sizes())};
}

Attended WrittenOut(const AttentionThirds& x, const Tensor& seen, const AttentionDrop& drop) {
  Tensor scores = at::matmul(x.q, x.k.transpose(2, 3)).to(at::kFloat).mul_(ScaleOf(x));
  scores.masked_fill_(Hidden(seen, scores), kMinusInfinity);
  const Tensor p = at::softmax(scores, -1);
  scores.reset();
  return {at::matmul(drop(p).to(x.q.scalar_type()), x.v), AttentionKernel::kWrittenOut,
          [x, seen, p](const Tensor& dout, const AttentionDrop& same_drop) {
            return WrittenOutBackward(x, seen, p, dout, same_drop);
          }};
}

}  // namespace

Attended Attend(const AttentionThirds& x, const Tensor& seen, const AttentionDrop& drop) {
  if (drop != nullptr) return WrittenOut(x, seen, drop);
  if (Choice(x, seen) == at::SDPBackend::flash_attention) {
    if (x.q.is_cpu()) return FlashOnCpu(x, seen);
    if (x.q.is_cuda() && !seen.defined() && x.q.size(-1) % 8 == 0) return CausalFlashOnGpu(x);
  }
  return WithGraph(x, seen);
}

}  // namespace eps
