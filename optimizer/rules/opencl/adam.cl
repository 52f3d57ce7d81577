typedef struct {
  float grad_scale, weight_decay, beta1, one_minus_beta1, beta2, one_minus_beta2,
      rsqrt_correction2, eps, step_size;
} Scalars;

// The formula is in adam.cc.
void UpdateElement(const Scalars s, float grad, __global float* weight, ulong stride) {
  __global float* exp_avg = weight + stride;
  __global float* exp_avg_sq = weight + 2 * stride;
  const float p = *weight;
  const float g = Add(Mul(grad, s.grad_scale), Mul(s.weight_decay, p));
  const float m = Add(Mul(s.beta1, *exp_avg), Mul(s.one_minus_beta1, g));
  const float v = Add(Mul(s.beta2, *exp_avg_sq), Mul(Mul(s.one_minus_beta2, g), g));
  const float d = Add(Mul(Sqrt(v), s.rsqrt_correction2), s.eps);
  *weight = Sub(p, Div(Mul(s.step_size, m), d));
  *exp_avg = m;
  *exp_avg_sq = v;
}
