// rmsprop: an updater for EPS. It works as it is: change the formula, keep the shape.
//
//   make          builds rmsprop.so
//   make check    lets EPS check it
//
// RMSProp (Hinton, lecture 6e), as torch.optim.RMSprop without momentum defines it, with the weight
// decay in the gradient. For each element, where every operation rounds to float:
//
//   g = grad * grad_scale + weight_decay * weight
//   v = alpha * v + (1 - alpha) * (g * g)
//   weight = weight - lr * g / (sqrt(v) + eps)

#include <math.h>

#include "eps_updater.h"

// The state: arrays of one float per element, which EPS keeps. They are 0 before the first update.
static const char* const kFields[] = {"square_avg"};

// The numbers that a user may choose, and their places in `parameters` below.
enum { kAlpha, kEps, kParameterCount };
static const eps_updater_parameter kParameters[kParameterCount] = {
    {"alpha", 0.99, 0.0, 0.999999},
    {"eps", 1e-8, 1e-20, 1.0},
};

// The numbers of one update, computed in double and rounded to float once. Compute them here, and
// not for each element: a double in the loop makes it slow.
typedef struct numbers {
  float grad_scale, weight_decay, alpha, one_minus_alpha, lr, eps;
} numbers;

static numbers numbers_of(const eps_updater_step* step, const double* parameters) {
  numbers s;
  s.grad_scale = step->grad_scale;
  s.weight_decay = (float)step->weight_decay;
  s.alpha = (float)parameters[kAlpha];
  s.one_minus_alpha = (float)(1.0 - parameters[kAlpha]);
  s.lr = (float)step->lr;
  s.eps = (float)parameters[kEps];
  return s;
}

// The loop that trains. `restrict` promises that the arrays do not overlap, so that the compiler can
// compute several elements at once. That changes no bit: +, -, *, / and sqrt round each element on
// its own. exp, log or pow would not do: their last bits depend on the C library.
//
// A loop keeps to three rules. It uses nothing but the element's own numbers: no sum over elements,
// no random numbers, no static variable. It adds in one order, so never compile with -ffast-math.
// And it calls nothing that the compiler cannot turn into instructions.
static void update(const eps_updater_step* step, const double* parameters, size_t n,
                   const float* restrict grad, float* restrict weight, float* const* fields) {
  const numbers s = numbers_of(step, parameters);
  float* restrict square_avg = fields[0];
  for (size_t i = 0; i < n; ++i) {
    const float g = grad[i] * s.grad_scale + s.weight_decay * weight[i];
    const float v = s.alpha * square_avg[i] + s.one_minus_alpha * (g * g);
    weight[i] = weight[i] - s.lr * g / (sqrtf(v) + s.eps);
    square_avg[i] = v;
  }
}

// The same formula for readers, one rounding per line. `eps verify` trains with it and compares all
// bits. If you write `update` with vector instructions, this is how you learn whether it is right.
static void reference(const eps_updater_step* step, const double* parameters, size_t n,
                      const float* grad, float* weight, float* const* fields) {
  const numbers s = numbers_of(step, parameters);
  for (size_t i = 0; i < n; ++i) {
    const float scaled = grad[i] * s.grad_scale;
    const float decay = s.weight_decay * weight[i];
    const float g = scaled + decay;

    const float squared = g * g;
    const float old_part = s.alpha * fields[0][i];
    const float new_part = s.one_minus_alpha * squared;
    const float v = old_part + new_part;

    const float root = sqrtf(v);
    const float divisor = root + s.eps;
    const float rise = s.lr * g;
    const float change = rise / divisor;
    weight[i] = weight[i] - change;
    fields[0][i] = v;
  }
}

static const eps_updater kUpdater = {
    EPS_UPDATER_ABI, "rmsprop", sizeof(kFields) / sizeof(kFields[0]), kFields,
    kParameterCount, kParameters, update, reference,
};

// EPS finds this function by its name.
__attribute__((visibility("default"))) const eps_updater* eps_updater_v1(void) {
  return &kUpdater;
}
