#ifndef EPS_WORKER_MODELS_PROGRAM_SUBSTITUTIONS_H_
#define EPS_WORKER_MODELS_PROGRAM_SUBSTITUTIONS_H_

// The functions that replace operators of LibTorch: masks come from the job's own
// generator, and products with weights may use a second copy. Throws what LibTorch throws.

#include <functional>
#include <optional>

#include "ATen/core/Tensor.h"

namespace eps {

// The arguments of aten::scaled_dot_product_attention.
struct AttentionArguments {
  at::Tensor query, key, value;
  std::optional<at::Tensor> mask;
  bool is_causal = false;
  std::optional<double> scale;
  bool enable_gqa = false;
};

// The attention with its probabilities multiplied by `drop(probabilities)`, in the order
//   scores = matmul(q, k^T) * scale; scores = masked; p = softmax(scores); matmul(p * mask, v)
// which is that of worker/models/gpt2.cc.
at::Tensor AttentionWithDropout(
    const AttentionArguments& arguments,
    const std::function<at::Tensor(const at::Tensor& probabilities)>& mask);

// Where a product finds and puts what belongs to its weight; see ProgramWeight.
struct ProductWeight {
  at::Tensor value;
  at::Tensor for_input_gradient;  // defined
  at::Tensor* gradient_sum = nullptr;
  bool out_in = false;  // y = x W^T
};

// y = x W + bias or y = x W^T + bias; a bias has one dimension.
at::Tensor ProductWithWeight(const at::Tensor& x, const ProductWeight& weight,
                             const std::optional<at::Tensor>& bias);

// [S, out]: rows [ends[e - 1], ends[e]) of `rows` [S, in] times matrices[e] [in, out].
at::Tensor GroupedProduct(const at::Tensor& rows, const at::Tensor& matrices,
                          const at::Tensor& ends);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_PROGRAM_SUBSTITUTIONS_H_
