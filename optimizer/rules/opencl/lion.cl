typedef struct {
  float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, lr;
} Scalars;

// The formula is in lion.cc.
void UpdateElement(const Scalars s, float grad, __global float* weight, ulong stride) {
  __global float* exp_avg = weight + stride;
  const float g = Mul(grad, s.grad_scale);
  const float old = *exp_avg;
  const float c = Add(Mul(s.beta1, old), Mul(s.one_minus_beta1, g));
  const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : c;
  *weight = Sub(Mul(*weight, s.decay), Mul(s.lr, sign));
  *exp_avg = Add(Mul(s.beta2, old), Mul(s.one_minus_beta2, g));
}
