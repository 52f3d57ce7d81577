#include "worker/models/program_substitutions.h"

#include <cmath>
#include <limits>
#include <vector>

#include "ATen/ops/_safe_softmax.h"
#include "ATen/ops/_unsafe_view.h"
#include "ATen/ops/addmm.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/embedding_dense_backward.h"
#include "ATen/ops/index.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/native_layer_norm.h"
#include "ATen/ops/native_layer_norm_backward.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/zeros.h"
#include "torch/csrc/autograd/custom_function.h"
#include "worker/models/gradient_sums.h"

namespace eps {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor RepeatedHeads(const Tensor& x, const Tensor& query) {
  return x.repeat_interleave(query.size(-3) / x.size(-3), -3);
}

Tensor Product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
               bool out_in) {
  if (out_in) return at::linear(x, weight, bias);
  return bias.has_value() ? at::addmm(*bias, x, weight) : at::matmul(x, weight);
}

// LibTorch gives some products as views, which must not be written outside of the function that
// made them; the scores of a head are. Returns the same values as no view, copied only if the view
// is not the whole of a contiguous tensor.
Tensor WithoutViews(const Tensor& y) {
  if (!y.is_view()) return y;
  const Tensor base(y._base());
  const bool is_whole = base.numel() == y.numel() && base.is_contiguous() && y.is_contiguous();
  return is_whole ? at::_unsafe_view(base, y.sizes()) : y.clone();
}

// A product whose gradients are computed as autograd computes them, except that the gradient of x
// uses another matrix, and that of the weight may be added to a sum at once.
class WeightProduct : public torch::autograd::Function<WeightProduct> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const ProductWeight& options) {
    context->save_for_backward({x, options.for_input_gradient});
    context->saved_data["out_in"] = options.out_in;
    context->saved_data["bias"] = bias.has_value();
    context->saved_data["sum"] =
        static_cast<int64_t>(reinterpret_cast<intptr_t>(options.gradient_sum));
    return WithoutViews(Product(x, weight, bias, options.out_in));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const bool out_in = context->saved_data["out_in"].toBool();
    auto* const sum =
        reinterpret_cast<Tensor*>(static_cast<intptr_t>(context->saved_data["sum"].toInt()));
    const Tensor dy = grads[0].reshape({-1, grads[0].size(-1)});
    const Tensor rows = x.reshape({-1, x.size(-1)});
    const bool rounds = x.is_cpu() && HasNarrowSums(x);
    Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) {
      dx = at::mm(dy, out_in ? saved[1] : saved[1].t()).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      const Tensor left = out_in ? dy.t() : rows.t();
      const Tensor& right = out_in ? rows : dy;
      Tensor* const target = sum != nullptr ? sum : &dweight;
      if (rounds) {
        AddTerm(at::mm(left, right).to(at::kFloat), target);
      } else {
        AddWithinProduct(left, right, target);
      }
    }
    if (context->saved_data["bias"].toBool()) {
      dbias = rounds ? dy.sum(0) : dy.sum({0}, /*keepdim=*/false, at::kFloat);
    }
    return {dx, dweight, dbias, Tensor()};
  }
};

class WideEmbedding : public torch::autograd::Function<WideEmbedding> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& weight, const Tensor& indices,
                        int64_t padding_idx, bool scale_grad_by_freq) {
    context->saved_data["indices"] = indices;
    context->saved_data["rows"] = weight.size(0);
    context->saved_data["padding"] = padding_idx;
    context->saved_data["scale"] = scale_grad_by_freq;
    return at::embedding(weight, indices, padding_idx, scale_grad_by_freq);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto& saved = context->saved_data;
    return {at::embedding_dense_backward(grads[0].to(at::kFloat), saved.at("indices").toTensor(),
                                         saved.at("rows").toInt(), saved.at("padding").toInt(),
                                         saved.at("scale").toBool()),
            Tensor(), Tensor(), Tensor()};
  }
};

using Indices = c10::List<std::optional<Tensor>>;

class WideIndex : public torch::autograd::Function<WideIndex> {
 public:
  struct Where {
    Indices indices;
  };
  static Tensor forward(AutogradContext* context, const Tensor& x, const Where& where) {
    context->saved_data["indices"] = where.indices;
    context->saved_data["sizes"] = x.sizes();
    return at::index(x, where.indices);
  }

  // Threads add FP32 in the order of the indices if LibTorch's algorithms are deterministic
  // (worker/exec/torch_runtime.cc).
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto& saved = context->saved_data;
    const Tensor sum =
        at::zeros(saved.at("sizes").toIntVector(), grads[0].options().dtype(at::kFloat));
    sum.index_put_(saved.at("indices").to<Indices>(), grads[0].to(at::kFloat),
                   /*accumulate=*/true);
    return {sum, Tensor()};
  }
};

// Its backward pass computes the statistics of the rows again.
class WideLayerNorm : public torch::autograd::Function<WideLayerNorm> {
 public:
  struct Rows {
    std::vector<int64_t> shape;
    double eps;
  };
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                        const Rows& rows) {
    context->save_for_backward({x, weight.value_or(Tensor()), bias.value_or(Tensor())});
    context->saved_data["shape"] = rows.shape;
    context->saved_data["eps"] = rows.eps;
    return at::layer_norm(x, rows.shape, weight, bias, rows.eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto wide = [](const Tensor& x) {
      return x.defined() ? std::optional<Tensor>(x.to(at::kFloat)) : std::nullopt;
    };
    const Tensor x = saved[0].to(at::kFloat);
    const std::optional<Tensor> weight = wide(saved[1]);
    const std::optional<Tensor> bias = wide(saved[2]);
    const std::vector<int64_t> shape = context->saved_data["shape"].toIntVector();
    const auto [y, mean, rstd] =
        at::native_layer_norm(x, shape, weight, bias, context->saved_data["eps"].toDouble());
    auto [dx, dweight, dbias] =
        at::native_layer_norm_backward(grads[0].to(at::kFloat), x, shape, mean, rstd, weight, bias,
                                       {true, weight.has_value(), bias.has_value()});
    return {dx, dweight, dbias, Tensor()};
  }
};

}  // namespace

Tensor AttentionWithDropout(const AttentionArguments& arguments,
                            const std::function<Tensor(const Tensor&)>& drop) {
  const Tensor& query = arguments.query;
  const bool repeat = arguments.enable_gqa;
  const Tensor key = repeat ? RepeatedHeads(arguments.key, query) : arguments.key;
  const Tensor value = repeat ? RepeatedHeads(arguments.value, query) : arguments.value;
  const double scale =
      arguments.scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  Tensor scores = at::matmul(query, key.transpose(-2, -1)).to(at::kFloat).mul(scale);
  if (arguments.is_causal) {
    TORCH_CHECK(!arguments.mask.has_value(), "an attention is causal and has a mask");
    const Tensor later =
        at::ones({query.size(-2), key.size(-2)}, scores.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(later, kMinusInfinity);
  }
  Tensor probabilities;
  if (!arguments.mask.has_value()) {
    probabilities = at::softmax(scores, -1);
  } else {
    const Tensor& given = *arguments.mask;
    scores = given.scalar_type() == at::kBool
                 ? scores.masked_fill(given.logical_not(), kMinusInfinity)
                 : scores.add(given);
    // Gives 0 in a row that is masked everywhere, as of padding.
    probabilities = at::_safe_softmax(scores, -1);
  }
  return at::matmul(drop(probabilities).to(value.scalar_type()), value);
}

Tensor ProductWithWeight(const Tensor& x, const ProductWeight& weight,
                         const std::optional<Tensor>& bias) {
  return WeightProduct::apply(x, weight.value, bias, weight);
}

bool HasNarrowSums(const Tensor& x) { return at::isReducedFloatingType(x.scalar_type()); }

Tensor EmbeddingWithWideSums(const Tensor& weight, const Tensor& indices, int64_t padding_idx,
                             bool scale_grad_by_freq) {
  return WideEmbedding::apply(weight, indices, padding_idx, scale_grad_by_freq);
}

Tensor IndexWithWideSums(const Tensor& x, const Indices& indices) {
  return WideIndex::apply(x, WideIndex::Where{indices});
}

Tensor LayerNormWithWideSums(const Tensor& x, const std::vector<int64_t>& shape,
                             const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                             double eps) {
  return WideLayerNorm::apply(x, weight, bias, WideLayerNorm::Rows{shape, eps});
}

Tensor GroupedProduct(const Tensor& rows, const Tensor& matrices, const Tensor& ends) {
  const Tensor on_host = ends.to(at::kCPU).to(at::kLong).contiguous();
  TORCH_CHECK(on_host.dim() == 1 && matrices.dim() == 3 && on_host.size(0) == matrices.size(0),
              "expected one end for each of the ", matrices.size(0), " matrices");
  std::vector<Tensor> products;
  int64_t begin = 0;
  for (int64_t e = 0; e < matrices.size(0); ++e) {
    const int64_t end = on_host.const_data_ptr<int64_t>()[e];
    products.push_back(at::mm(rows.narrow(0, begin, end - begin), matrices[e]));
    begin = end;
  }
  TORCH_CHECK(begin == rows.size(0), "the groups end at row ", begin, " of ", rows.size(0));
  return at::cat(products, 0);
}

}  // namespace eps
