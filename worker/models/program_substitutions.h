#ifndef EPS_WORKER_MODELS_PROGRAM_SUBSTITUTIONS_H_
#define EPS_WORKER_MODELS_PROGRAM_SUBSTITUTIONS_H_

// The functions that replace operators of LibTorch: masks come from the job's own
// generator, products with weights may use a second copy, and sums over rows of 16-bit values are
// taken in FP32. Throws what LibTorch throws.

#include <functional>
#include <optional>
#include <vector>

#include "ATen/core/List.h"
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

// The attention with `drop(probabilities)`, FP32, in place of its probabilities, in the order
//   scores = matmul(q, k^T) * scale; scores = masked; p = softmax(scores); matmul(drop(p), v)
// which is that of worker/models/attention. Of 16-bit arguments only the two products are 16-bit.
at::Tensor AttentionWithDropout(
    const AttentionArguments& arguments,
    const std::function<at::Tensor(const at::Tensor& probabilities)>& drop);

// Where a product finds and puts what belongs to its weight; see ProgramWeight.
struct ProductWeight {
  at::Tensor value;
  at::Tensor for_input_gradient;  // defined
  at::Tensor* gradient_sum = nullptr;
  bool out_in = false;  // y = x W^T
};

// y = x W + bias or y = x W^T + bias; a bias has one dimension. `gradient_sum` is FP32. A CPU
// rounds the gradients of weight and bias to the type of x; a device has them in FP32.
at::Tensor ProductWithWeight(const at::Tensor& x, const ProductWeight& weight,
                             const std::optional<at::Tensor>& bias);

// Returns whether LibTorch rounds to 16 bits what the backward pass of a lookup or a norm of `x`
// adds up. A CPU also adds in 16 bits: 4,096 gradients of 0.01 give 4.
bool HasNarrowSums(const at::Tensor& x);
// As LibTorch's operators, bit for bit, except that their gradients are summed in FP32. The
// gradient of a weight is FP32 if its leaf asks for that (set_grad_dtype).
at::Tensor EmbeddingWithWideSums(const at::Tensor& weight, const at::Tensor& indices,
                                 int64_t padding_idx, bool scale_grad_by_freq);
at::Tensor IndexWithWideSums(const at::Tensor& x,
                             const c10::List<std::optional<at::Tensor>>& indices);
at::Tensor LayerNormWithWideSums(const at::Tensor& x, const std::vector<int64_t>& shape,
                                 const std::optional<at::Tensor>& weight,
                                 const std::optional<at::Tensor>& bias, double eps);

// [S, out]: rows [ends[e - 1], ends[e]) of `rows` [S, in] times matrices[e] [in, out].
at::Tensor GroupedProduct(const at::Tensor& rows, const at::Tensor& matrices,
                          const at::Tensor& ends);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_PROGRAM_SUBSTITUTIONS_H_
