typedef struct {
  float grad_scale, weight_decay, beta1, one_minus_beta1, beta2, one_minus_beta2, correction1,
      rsqrt_correction2, eps, step_size;
} Scalars;

// The new moments of an element, and its step.
typedef struct {
  float m, v, s;
} Step;

// The formula is in lamb.cc.
Step StepOf(const Scalars s, float grad, __global const float* weight, ulong stride) {
  Step of;
  const float g = Mul(grad, s.grad_scale);
  of.m = Add(Mul(s.beta1, weight[stride]), Mul(s.one_minus_beta1, g));
  of.v = Add(Mul(s.beta2, weight[2 * stride]), Mul(Mul(s.one_minus_beta2, g), g));
  const float d = Add(Mul(Sqrt(of.v), s.rsqrt_correction2), s.eps);
  of.s = Add(Div(Mul(s.correction1, of.m), d), Mul(s.weight_decay, *weight));
  return of;
}

void UpdateElement(const Scalars s, float grad, __global float* weight, ulong stride) {
  const Step of = StepOf(s, grad, weight, stride);
  *weight = Sub(*weight, Mul(s.step_size, of.s));
  weight[stride] = of.m;
  weight[2 * stride] = of.v;
}

#define HAS_STEPS
float StepOfElement(const Scalars s, float grad, __global const float* weight, ulong stride) {
  return StepOf(s, grad, weight, stride).s;
}
