typedef struct {
  float grad_scale, decay, beta1, one_minus_beta1;
  double sqrt_beta2, sqrt_one_minus_beta2;
  float rsqrt_correction2, eps, step_size;
} Scalars;

// The formula is in adamw_sqrtv.cc.
void UpdateElement(const Scalars s, float grad, __global float* weight, ulong stride) {
  __global float* exp_avg = weight + stride;
  __global float* root = weight + 2 * stride;
  const float g = Mul(grad, s.grad_scale);
  const float m = Add(Mul(s.beta1, *exp_avg), Mul(s.one_minus_beta1, g));
  const double a = s.sqrt_beta2 * Wide(*root);
  const double b = s.sqrt_one_minus_beta2 * Wide(g);
  const double aa = a * a;
  const double bb = b * b;
  const float r = Narrow(sqrt(aa + bb));
  const float d = Add(Mul(r, s.rsqrt_correction2), s.eps);
  *weight = Sub(Mul(*weight, s.decay), Div(Mul(s.step_size, m), d));
  *exp_avg = m;
  *root = r;
}
