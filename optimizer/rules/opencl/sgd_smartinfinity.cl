typedef struct {
  float grad_scale, weight_decay;
  uchar has_buffer;
  float momentum, one_minus_momentum, lr;
} Scalars;

// The formula is in sgd_smartinfinity.cc.
void UpdateElement(const Scalars s, float grad, __global float* weight, ulong stride) {
  const float p = *weight;
  float b = Add(Mul(grad, s.grad_scale), Mul(s.weight_decay, p));
  if (s.has_buffer) {
    __global float* momentum_buffer = weight + stride;
    b = Add(Mul(s.momentum, *momentum_buffer), Mul(s.one_minus_momentum, b));
    *momentum_buffer = b;
  }
  *weight = Sub(p, Mul(s.lr, b));
}
