typedef struct {
  float grad_scale, weight_decay, eps, lr;
} Scalars;

// The formula is in adagrad.cc.
void UpdateElement(const Scalars s, float grad, __global float* weight, ulong stride) {
  __global float* sum = weight + stride;
  const float p = *weight;
  const float g = Add(Mul(grad, s.grad_scale), Mul(s.weight_decay, p));
  const float h = Add(*sum, Mul(g, g));
  *weight = Sub(p, Div(Mul(s.lr, g), Add(Sqrt(h), s.eps)));
  *sum = h;
}
