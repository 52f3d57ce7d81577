typedef struct {
  float grad_scale, weight_decay;
  uchar has_buffer, nesterov;
  float momentum, one_minus_dampening, lr;
} Scalars;

// The formula is in sgd.cc.
void UpdateElement(const Scalars s, float grad, __global float* weight, ulong stride) {
  const float p = *weight;
  const float g = Add(Mul(grad, s.grad_scale), Mul(s.weight_decay, p));
  float u = g;
  if (s.has_buffer) {
    __global float* momentum_buffer = weight + stride;
    u = Add(Mul(s.momentum, *momentum_buffer), Mul(s.one_minus_dampening, g));
    *momentum_buffer = u;
    if (s.nesterov) u = Add(g, Mul(s.momentum, u));
  }
  *weight = Sub(p, Mul(s.lr, u));
}
