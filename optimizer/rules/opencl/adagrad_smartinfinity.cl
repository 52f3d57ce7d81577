typedef struct {
  float grad_scale, weight_decay, eps, lr;
} Scalars;

// The formula is in adagrad_smartinfinity.cc.
void UpdateElement(const Scalars s, float grad, __global float* weight, ulong stride) {
  __global float* sum = weight + stride;
  const float p = *weight;
  const float g = Mul(grad, s.grad_scale);
  const float u = Add(g, Mul(s.weight_decay, p));
  const float h = Add(*sum, Mul(u, u));
  *weight = Sub(p, Div(Mul(s.lr, g), Add(Sqrt(h), s.eps)));
  *sum = h;
}
