#ifndef EPS_WORKER_MODELS_GRADIENT_SUMS_H_
#define EPS_WORKER_MODELS_GRADIENT_SUMS_H_

// Sums of gradients of weights, in FP32. A sum without terms is an undefined tensor. Throws what
// LibTorch throws; call it without autograd.

#include "ATen/core/Tensor.h"

namespace eps {

// *sum = *sum + term. The first term becomes the sum, so nothing else may refer to its memory.
void AddTerm(at::Tensor term, at::Tensor* sum);

// Says whether products of tensors where `like` is add to a sum within the product, which rounds
// once: on a device. A CPU rounds the product to FP32, and then the sum.
bool AddsWithinProducts(const at::Tensor& like);

// *sum = *sum + a b, for matrices of any type, as AddsWithinProducts says.
void AddProduct(const at::Tensor& a, const at::Tensor& b, at::Tensor* sum);

// As AddProduct, but adds within the product on every device.
void AddWithinProduct(const at::Tensor& a, const at::Tensor& b, at::Tensor* sum);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_GRADIENT_SUMS_H_
