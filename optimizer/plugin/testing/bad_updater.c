// Momentum, and on request something that a plug-in must not do: the macro BAD_NAME chooses it
// (BUILD). Without one it is a good updater.

#define _GNU_SOURCE
#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "eps_updater.h"

#if defined(BAD_FIELD_TWICE)
static const char* const kFields[] = {"momentum", "momentum"};
#elif defined(BAD_MANY_FIELDS)
static const char* const kFields[] = {"a", "b", "c", "d", "e"};
#elif defined(BAD_FIELD_NAME)
static const char* const kFields[] = {"Momentum"};
#else
static const char* const kFields[] = {"momentum"};
#endif

static const eps_updater_parameter kParameters[] = {
#if defined(BAD_USUAL_VALUE)
    {"momentum", 1.5, 0, 1},
#elif defined(BAD_RANGE)
    {"momentum", 0.9, 0, HUGE_VAL},
#elif defined(BAD_PARAMETER_TWICE)
    {"momentum", 0.9, 0, 1}, {"momentum", 0.9, 0, 1},
#else
    {"momentum", 0.9, 0, 1},
#endif
};

static float element(const eps_updater_step* step, float momentum, float grad, float* weight,
                     float* field) {
  const float lr = (float)step->lr;
  const float g = grad * step->grad_scale;
  *field = momentum * *field + g;
  *weight = *weight - lr * *field;
  return g;
}

static void reference(const eps_updater_step* step, const double* parameters, size_t n,
                      const float* grad, float* weight, float* const* fields) {
  for (size_t i = 0; i < n; ++i) {
    element(step, (float)parameters[0], grad[i], weight + i, fields[0] + i);
#if defined(BAD_GROWTH)
    weight[i] = weight[i] * 10.0f;
#endif
  }
}

#if defined(BAD_SHARED_BUFFER)
static float buffer[8192];
#endif
#if defined(BAD_COUNTER)
static uint64_t kept;
#elif defined(BAD_KEPT_RATE)
static uint64_t kept;
static float kept_rate;
#endif

// Does the bad thing before the elements are updated.
static void before(const eps_updater_step* step, size_t n, const float* grad) {
  (void)step, (void)n, (void)grad;
#if defined(BAD_READ_BEYOND)
  (void)*(const volatile float*)(grad + n);
#elif defined(BAD_READ_BEFORE)
  (void)*(const volatile float*)(grad - 1);
#elif defined(BAD_WRITE_GRADIENT)
  ((float*)(uintptr_t)grad)[0] *= step->grad_scale;
#elif defined(BAD_WRITE_STEP)
  ((eps_updater_step*)(uintptr_t)step)->lr *= 2;
#elif defined(BAD_FILE)
  close(open("/dev/null", O_RDONLY));
#elif defined(BAD_MAPPING)
  munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
#elif defined(BAD_LOOP)
  for (volatile int forever = 1; forever;) {
  }
#elif defined(BAD_EXIT)
  _exit(0);
#elif defined(BAD_TRAP)
  __builtin_trap();
#endif
}

// And after it.
static void after(size_t n, const float* grad, float* weight, float* const* fields) {
  (void)n, (void)grad, (void)weight, (void)fields;
#if defined(BAD_WRITE_BEYOND)
  fields[0][n] = 0;
#elif defined(BAD_WRITE_FAR)
  *(weight - 32) = 0;
#elif defined(BAD_ROUNDING)
  fesetround(FE_UPWARD);
#elif defined(BAD_SIGNALS)
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, NULL);
#elif defined(BAD_COUNTER)
  if (++kept % 2 == 0) weight[0] += 1.0f;
#elif defined(BAD_ALIGNMENT)
  if ((uintptr_t)weight % 64 != (uintptr_t)grad % 64) weight[0] += 1.0f;
#elif defined(BAD_TAIL)
  for (size_t i = n / 4 * 4; i < n; ++i) weight[i] += 1.0f;
#endif
}

__attribute__((unused)) static void update(const eps_updater_step* step,
                                           const double* parameters, size_t n, const float* grad,
                                           float* weight, float* const* fields) {
  float momentum = (float)parameters[0];
  eps_updater_step used = *step;
  before(step, n, grad);
#if defined(BAD_KEPT_RATE)
  if (kept != step->update) kept_rate = (float)step->lr;
  kept = step->update;
  used.lr = kept_rate;
#elif defined(BAD_PARAMETER)
  if (momentum == 1.0f) momentum = 0.9999f;
#elif defined(BAD_SHARED_BUFFER)
  memcpy(buffer, grad, n * sizeof(float));
  sched_yield();
  grad = buffer;
#endif
  for (size_t i = 0; i < n; ++i) {
    float g = grad[i];
#if defined(BAD_NAN)
    if (g != g) g = 0;
#elif defined(BAD_DENORMALS)
    uint32_t bits;
    memcpy(&bits, &g, sizeof(bits));
    if ((bits & 0x7f800000u) == 0 && (bits & 0x7fffffu) != 0) g = 1.0f;
#endif
    element(&used, momentum, g, weight + i, fields[0] + i);
#if defined(BAD_GROWTH)
    weight[i] = weight[i] * 10.0f;
#endif
  }
  after(n, grad, weight, fields);
}

#if defined(BAD_CONSTRUCTOR)
__attribute__((constructor)) static void leave_a_trace(void) {
  const char* const path = getenv("EPS_TRACE");
  if (path != NULL) close(open(path, O_CREAT | O_WRONLY, 0600));
}
#elif defined(BAD_LOAD_LOOP)
__attribute__((constructor)) static void loop(void) {
  for (volatile int forever = 1; forever;) {
  }
}
#elif defined(BAD_LOAD_ABORT)
__attribute__((constructor)) static void die(void) { abort(); }
#endif

__attribute__((unused)) static const eps_updater kUpdater = {
#if defined(BAD_VERSION)
    EPS_UPDATER_ABI + 1,
#else
    EPS_UPDATER_ABI,
#endif
#if defined(BAD_NAME)
    "bad-updater",
#else
    "bad_updater",
#endif
    sizeof(kFields) / sizeof(kFields[0]),
    kFields,
    sizeof(kParameters) / sizeof(kParameters[0]),
    kParameters,
#if defined(BAD_NO_UPDATE)
    NULL,
#else
    update,
#endif
    reference,
};

#if defined(BAD_SYMBOL)
#define eps_updater_v1 another_name
#endif
const eps_updater* eps_updater_v1(void) {
#if defined(BAD_NULL)
  return NULL;
#else
  return &kUpdater;
#endif
}
