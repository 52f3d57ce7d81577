#include "optimizer/plugin/check/plain_loop.h"

namespace eps {
namespace {

inline float Mixed(float value, float grad) { return (value + grad) * 0.5F; }

void Loop0(size_t n, const float* __restrict g, float* __restrict w) {
  for (size_t i = 0; i < n; ++i) w[i] = Mixed(w[i], g[i]);
}

void Loop1(size_t n, const float* __restrict g, float* __restrict w, float* __restrict a) {
  for (size_t i = 0; i < n; ++i) {
    w[i] = Mixed(w[i], g[i]);
    a[i] = Mixed(a[i], g[i]);
  }
}

void Loop2(size_t n, const float* __restrict g, float* __restrict w, float* __restrict a,
           float* __restrict b) {
  for (size_t i = 0; i < n; ++i) {
    w[i] = Mixed(w[i], g[i]);
    a[i] = Mixed(a[i], g[i]);
    b[i] = Mixed(b[i], g[i]);
  }
}

void Loop3(size_t n, const float* __restrict g, float* __restrict w, float* __restrict a,
           float* __restrict b, float* __restrict c) {
  for (size_t i = 0; i < n; ++i) {
    w[i] = Mixed(w[i], g[i]);
    a[i] = Mixed(a[i], g[i]);
    b[i] = Mixed(b[i], g[i]);
    c[i] = Mixed(c[i], g[i]);
  }
}

void Loop4(size_t n, const float* __restrict g, float* __restrict w, float* __restrict a,
           float* __restrict b, float* __restrict c, float* __restrict d) {
  for (size_t i = 0; i < n; ++i) {
    w[i] = Mixed(w[i], g[i]);
    a[i] = Mixed(a[i], g[i]);
    b[i] = Mixed(b[i], g[i]);
    c[i] = Mixed(c[i], g[i]);
    d[i] = Mixed(d[i], g[i]);
  }
}

}  // namespace

void PlainLoop(size_t n, const float* grad, float* weight, size_t field_count,
               float* const* fields) {
  switch (field_count) {
    case 0:
      return Loop0(n, grad, weight);
    case 1:
      return Loop1(n, grad, weight, fields[0]);
    case 2:
      return Loop2(n, grad, weight, fields[0], fields[1]);
    case 3:
      return Loop3(n, grad, weight, fields[0], fields[1], fields[2]);
    default:
      return Loop4(n, grad, weight, fields[0], fields[1], fields[2], fields[3]);
  }
}

}  // namespace eps
