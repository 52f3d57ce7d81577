#include "worker/models/gradient_sums.h"

#include <utility>

#include "ATen/ops/addmm.h"
#include "ATen/ops/mm.h"

namespace eps {
namespace {

using at::Tensor;

Tensor Wide(const Tensor& x) { return x.to(at::kFloat); }

// Returns whether LibTorch multiplies these with FP32 sums by itself: 16-bit factors on a device.
bool HasWideProduct(const Tensor& a) { return a.is_cuda() && a.scalar_type() != at::kFloat; }

Tensor WideProduct(const Tensor& a, const Tensor& b) {
  return HasWideProduct(a) ? at::mm(a, b, at::kFloat) : at::mm(Wide(a), Wide(b));
}

}  // namespace

void AddTerm(Tensor term, Tensor* sum) {
  if (sum->defined()) {
    sum->add_(term);
  } else {
    *sum = std::move(term);
  }
}

bool AddsWithinProducts(const Tensor& like) { return like.is_cuda(); }

void AddProduct(const Tensor& a, const Tensor& b, Tensor* sum) {
  if (AddsWithinProducts(a)) return AddWithinProduct(a, b, sum);
  AddTerm(WideProduct(a, b), sum);
}

void AddWithinProduct(const Tensor& a, const Tensor& b, Tensor* sum) {
  if (!sum->defined()) {
    *sum = WideProduct(a, b);
  } else if (HasWideProduct(a)) {
    at::addmm_out(*sum, *sum, a, b, at::kFloat);
  } else {
    sum->addmm_(Wide(a), Wide(b));
  }
}

}  // namespace eps
